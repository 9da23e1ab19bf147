"""What train_gpt.py and train_gpt_single.py share: options, device, optimizer, progress and the file of losses."""
from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence

import mindspore as ms
from gpt_model import GptConfig
from mindspore import Parameter, nn

_OPTIMIZERS = {
    "adam": lambda parameters, rates: nn.Adam(parameters, learning_rate=rates),
    "adamw": lambda parameters, rates: nn.AdamWeightDecay(parameters, learning_rate=rates, weight_decay=0.01),
    "momentum": lambda parameters, rates: nn.Momentum(parameters, learning_rate=rates, momentum=0.9),
}


def make_parser(description: str) -> argparse.ArgumentParser:
    """Makes a parser with the options of model, data and optimizer.

    Args:
        description: One line for --help.

    Returns:
        The parser, to which the caller may add options of its own.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("text", nargs="*", help="text files to learn; none means Python's standard library")
    parser.add_argument("--steps", type=int, default=60, help="training steps")
    parser.add_argument("--batch-size", type=int, default=8, help="sequences per step")
    parser.add_argument("--layers", type=int, default=9, help="transformer blocks between embedding and head")
    parser.add_argument("--hidden", type=int, default=96, help="width of the model")
    parser.add_argument("--heads", type=int, default=4, help="attention heads")
    parser.add_argument("--context", type=int, default=128, help="bytes per sequence")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate after warm-up")
    parser.add_argument("--warmup-steps", type=int, default=10, help="steps in which the learning rate rises to --lr")
    parser.add_argument("--optimizer", choices=sorted(_OPTIMIZERS), default="adam", help="optimizer")
    parser.add_argument("--seed", type=int, default=1, help="seed of the weights and of the batches drawn")
    parser.add_argument("--device", choices=("auto", "CPU", "Ascend"), default="auto", help="where to compute")
    parser.add_argument("--losses-out", metavar="FILE", help="write the losses of all steps as JSON")
    return parser


def make_config(args: argparse.Namespace) -> GptConfig:
    """Takes the model's sizes from the options.

    Args:
        args: What `make_parser`'s parser returned.

    Returns:
        The model's configuration.
    """
    return GptConfig(args.layers, args.hidden, args.heads, args.context, args.seed)


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


class Progress:
    """Collects the losses of a run and prints them now and then.

    Args:
        label: Text in front of every line.
        num_tokens: Bytes trained on per step.
        num_steps: Steps of the run.
        quiet: Prints nothing, for all ranks but one.
    """

    def __init__(self, label: str, num_tokens: int, num_steps: int, quiet: bool = False) -> None:
        self._label, self._num_tokens, self._num_steps, self._quiet = label, num_tokens, num_steps, quiet
        self.losses: list[float] = []
        self._start = self._steady = time.perf_counter()

    def add(self, loss: float) -> None:
        """Records a step.

        Args:
            loss: Its mean loss in nats.
        """
        self.losses.append(loss)
        done = len(self.losses)
        if done == 1:  # the first step also sets up communication and memory
            self._steady = time.perf_counter()
        if not self._quiet and (done == 1 or done % 10 == 0 or done == self._num_steps):
            print(f"{self._label}: step {done:3d}/{self._num_steps}  loss {loss:.4f}  {self._rate()}", flush=True)

    def _rate(self) -> str:
        steady = len(self.losses) - 1
        if steady == 0:
            return f"first step {self._steady - self._start:.1f} s"
        return f"{steady * self._num_tokens / (time.perf_counter() - self._steady):.0f} tokens/s"

    def write(self, path: str | None) -> None:
        """Writes {"label": …, "seconds": …, "losses": [one float a step]}.

        Args:
            path: The JSON file; None writes nothing.
        """
        if path is None:
            return
        report = {"label": self._label, "seconds": time.perf_counter() - self._start, "losses": self.losses}
        # A reader never sees half a file, even when the run is killed here.
        with open(f"{path}.part", "w", encoding="utf-8") as file:
            json.dump(report, file)
        os.replace(f"{path}.part", path)
