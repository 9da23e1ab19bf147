"""Stages under data parallelism: replicas of a pipeline add up their gradients once per step.

``torch.distributed.pipelining``'s stages do the same: nothing is exchanged until the last backward of a step.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel


class Replicated:
    """Holds the all-reduce of a stage under ``DistributedDataParallel`` back.

    Args:
        module: The wrapped module of a stage.
    """

    splits_backward = True

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

    def forward(self) -> AbstractContextManager[None]:
        """Return the context of a forward whose backward may not be the last."""
        return self._module.no_sync()

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


class Sharded:
    """Holds the reduce-scatters of a stage under ``fully_shard`` (FSDP2) back.

    Its backward can't be split: parameters are whole only until a backward has passed all of them.

    Args:
        parts: The modules of a stage that ``fully_shard`` was called on.
    """

    splits_backward = False
    looks_for_unused = False
    gradients_in_buckets = False

    def __init__(self, parts: Sequence[FSDPModule]) -> None:
        self._parts = parts
        self._num_left = 0

    def expect(self, num_backwards: int) -> None:
        """Note how many backwards the step has that begins."""
        self._num_left = num_backwards

    def forward(self) -> AbstractContextManager[None]:
        """Return the context of a forward: it needs none."""
        return nullcontext()

    @contextmanager
    def backward(self, outputs: Sequence[torch.Tensor]) -> Iterator[None]:
        """Run a backward; in the last of the step the gradients are averaged and sharded again."""
        self._num_left -= 1
        for part in self._parts:
            part.set_requires_gradient_sync(self._num_left == 0, recurse=False)
        yield


GradientSync = Replicated | Sharded


def gradient_sync(module: Any) -> GradientSync | None:
    """Return what says when a module's gradients meet those of its replicas; None if it has none."""
    if isinstance(module, DistributedDataParallel):
        return Replicated(module)
    parts = [part for part in module.modules() if isinstance(part, FSDPModule)] if isinstance(module, nn.Module) else []
    return Sharded(parts) if parts else None


def unwrapped(module: Any) -> Any:
    """Return the module that the user wrote."""
    return module.module if isinstance(module, DistributedDataParallel) else module
