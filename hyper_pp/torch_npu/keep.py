"""What a step must leave as it was: earlier gradients if it fails, buffers and random numbers if it only evaluates."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from hyper_pp.torch_npu.stage import TorchStage, random_numbers_kept


@contextmanager
def earlier_gradients_set_aside(stages: Sequence[TorchStage]) -> Iterator[None]:
    """Collect a step's gradients apart from those that are there, and add them at the end.

    Autograd adds in place, so a step that fails half-way would leave a part of its gradients in what earlier steps
    accumulated.
    """
    earlier = {}
    for stage in stages:
        overwritten = stage.gradient_sync is not None and stage.gradient_sync.gradients_in_buckets
        for parameter in stage.parameters():
            if parameter.grad is not None:
                earlier[parameter] = parameter.grad.clone() if overwritten else parameter.grad
    if not earlier:
        yield
        return
    for parameter in earlier:
        parameter.grad = None
    try:
        yield
    except BaseException:
        for parameter, grad in earlier.items():
            parameter.grad = grad
        raise
    added = [(grad, parameter.grad) for parameter, grad in earlier.items() if parameter.grad is not None]
    if added:
        with torch.no_grad():
            torch._foreach_add_([grad for grad, _ in added], [new for _, new in added])
    for parameter, grad in earlier.items():
        parameter.grad = grad


@contextmanager
def state_kept(modules: Sequence[Any]) -> Iterator[None]:
    """Put the buffers of modules in training mode, and the random numbers, back afterwards."""
    whole = [module for module in modules if isinstance(module, nn.Module)]
    training = [module for module in whole if any(part.training for part in module.modules())]
    if not training:
        yield
        return
    buffers = [(buffer, buffer.detach().clone()) for module in training for buffer in module.buffers()]
    try:
        with random_numbers_kept():
            yield
    finally:
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
