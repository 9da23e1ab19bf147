"""What train_gpt.py and train_gpt_single.py share: options, device, optimizer and progress."""
from __future__ import annotations

import argparse
from collections.abc import Sequence

import mindspore as ms
from gpt_common import Progress, make_config, make_parser
from mindspore import Parameter, nn

__all__ = ["Progress", "make_config", "make_optimizer", "make_parser", "set_device"]

_OPTIMIZERS = {
    "adam": lambda parameters, rates: nn.Adam(parameters, learning_rate=rates),
    "adamw": lambda parameters, rates: nn.AdamWeightDecay(parameters, learning_rate=rates, weight_decay=0.01),
    "momentum": lambda parameters, rates: nn.Momentum(parameters, learning_rate=rates, momentum=0.9),
}


def set_device(name: str) -> str:
    """Selects PyNative mode and the device.

    Args:
        name: "CPU", "Ascend" or "auto", which takes Ascend where MindSpore can use it.

    Returns:
        "CPU" or "Ascend".
    """
    if name == "auto":
        name = "Ascend" if ms.hal.is_available("Ascend") else "CPU"
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target=name)
    if name == "CPU":
        # The threads that hide launch latency on an NPU spin here and take the cores from the kernels: 10 x slower.
        ms.runtime.launch_blocking()
    return name


def make_optimizer(parameters: Sequence[Parameter], args: argparse.Namespace) -> nn.Optimizer:
    """Makes the optimizer, its learning rate rising linearly over the first steps.

    Without that warm-up Adam's first steps are so large that rounding differences double every few steps.

    Args:
        parameters: What to train.
        args: What `make_parser`'s parser returned.

    Returns:
        A MindSpore optimizer.
    """
    rates = [args.lr * min(1.0, (step + 1) / (args.warmup_steps + 1)) for step in range(args.steps)]
    return _OPTIMIZERS[args.optimizer](parameters, rates)
