"""Stages under ``DistributedDataParallel``: replicas of a pipeline add up their gradients once per step."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel


class Replicated:
    """Holds a replicated module's all-reduce back until the last backward of a step.

    Args:
        module: The wrapped module of a stage.

    Source:
        ``torch.distributed.pipelining``'s stages do the same: forwards in ``no_sync``, the last backward prepared.
    """

    def __init__(self, module: DistributedDataParallel) -> None:
        self._module = module
        self._num_left = 0

    @property
    def looks_for_unused(self) -> bool:
        """Whether the last backward needs the outputs, to see which parameters they depend on."""
        return self._module.find_unused_parameters

    @property
    def gradients_in_buckets(self) -> bool:
        """Whether a ``.grad`` may be a view of memory that the next all-reduce writes to."""
        return self._module.gradient_as_bucket_view

    def expect(self, num_backwards: int) -> None:
        """Note how many backwards the step has that begins."""
        self._num_left = num_backwards

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Run a forward whose backward may not be the last."""
        with self._module.no_sync():
            yield

    @contextmanager
    def backward(self, outputs: Sequence[torch.Tensor]) -> Iterator[None]:
        """Run a backward; in the last of the step the gradients are averaged over the replicas."""
        self._num_left -= 1
        if self._num_left != 0:
            with self._module.no_sync():
                yield
            return
        self._module.reducer.prepare_for_backward(list(outputs) if self.looks_for_unused else [])
        yield


def replicated(module: Any) -> Replicated | None:
    """Return what steers a module's all-reduce; None if it has none."""
    return Replicated(module) if isinstance(module, DistributedDataParallel) else None


def unwrapped(module: Any) -> Any:
    """Return the module that the user wrote."""
    return module.module if isinstance(module, DistributedDataParallel) else module
