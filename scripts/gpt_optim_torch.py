"""The optimizers of MindSpore that the demo offers, on torch, update for update.

torch's own differ: its Adam adds epsilon after the bias correction, MindSpore's before it, and MindSpore's
AdamWeightDecay corrects no bias.
"""
from __future__ import annotations

import argparse
import math
from collections.abc import Iterable

import torch


class MindSporeAdam(torch.optim.Optimizer):
    """Adam as `mindspore.nn.Adam` and `mindspore.nn.AdamWeightDecay` compute it.

    Args:
        params: What to train.
        lr: Learning rate.
        betas: Decay of the first and the second moment.
        eps: Added to the root of the uncorrected second moment.
        weight_decay: Decoupled decay.
        correct_bias: Whether the moments' bias is corrected: True for Adam, False for AdamWeightDecay.
    """

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        correct_bias: bool = True,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "correct": correct_bias}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update the parameters."""
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state.update(step=0, mean=torch.zeros_like(parameter), square=torch.zeros_like(parameter))
                state["step"] += 1
                state["mean"].mul_(first).add_(parameter.grad, alpha=1 - first)
                state["square"].mul_(second).addcmul_(parameter.grad, parameter.grad, value=1 - second)
                rate = group["lr"]
                if group["correct"]:
                    rate *= math.sqrt(1 - second ** state["step"]) / (1 - first ** state["step"])
                update = state["mean"] / (state["square"].sqrt() + group["eps"])
                if group["weight_decay"]:
                    update.add_(parameter, alpha=group["weight_decay"])
                parameter.sub_(update, alpha=rate)


def make_optimizer(
    parameters: Iterable[torch.nn.Parameter], args: argparse.Namespace
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Makes the optimizer, its learning rate rising linearly over the first steps.

    Args:
        parameters: What to train.
        args: The options of `gpt_common.make_parser`.

    Returns:
        The optimizer and the scheduler of its learning rate.
    """
    parameters = list(parameters)
    if args.optimizer == "adam":
        optimizer: torch.optim.Optimizer = MindSporeAdam(parameters, args.lr)
    elif args.optimizer == "adamw":
        optimizer = MindSporeAdam(parameters, args.lr, eps=1e-6, weight_decay=0.01, correct_bias=False)
    else:
        optimizer = torch.optim.SGD(parameters, args.lr, momentum=0.9)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / (args.warmup_steps + 1)))
    return optimizer, warmup
