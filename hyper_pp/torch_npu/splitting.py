"""From a whole batch to the arguments of each micro-batch, by torch's chunk specs, and back."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.pipelining.microbatch import (
    TensorChunkSpec,
    _Replicate,
    merge_chunks,
    split_args_kwargs_into_chunks,
)
from torch.nn.attention.flex_attention import BlockMask
from torch.utils._pytree import tree_leaves

from hyper_pp.microbatch import Splitter, merge, offsets, split_sizes
from hyper_pp.protocols import Value
from hyper_pp.torch_npu.tensors import TorchTensors
from hyper_pp.tree import flatten


class BatchCutter:
    """Cuts a rank's arguments into micro-batches.

    Args:
        tensors: The framework's tensor operations.
        num_micro_batches: M.
        args_chunk_spec: One spec per positional argument; None splits every tensor along dimension 0.
        kwargs_chunk_spec: Specs by keyword; keywords that are left out are split along dimension 0.
    """

    def __init__(
        self,
        tensors: TorchTensors,
        num_micro_batches: int,
        args_chunk_spec: Sequence[Any] | None,
        kwargs_chunk_spec: Mapping[str, Any] | None,
    ) -> None:
        self._tensors = tensors
        self._num_micro_batches = num_micro_batches
        self._args_spec = args_chunk_spec
        self._kwargs_spec = kwargs_chunk_spec
        self._plain = Splitter(tensors)

    def cut(
        self, args: tuple[Value, ...], kwargs: Mapping[str, Value]
    ) -> list[tuple[tuple[Value, ...], dict[str, Value]]]:
        """Return (args, kwargs) of each micro-batch; larger ones come first where the batch doesn't divide.

        Raises:
            ValueError: The batch is smaller than the number of micro-batches, or the tensors disagree on its size.
        """
        count = self._num_micro_batches
        if any(isinstance(leaf, BlockMask) for leaf in tree_leaves((args, dict(kwargs)))):
            split_args, split_kwargs = split_args_kwargs_into_chunks(
                args, dict(kwargs), count, self._args_spec, self._kwargs_spec
            )
            if len(split_args) != count:
                raise ValueError(f"a batch of {len(split_args)} can't be split into {count} micro-batches")
            return list(zip(split_args, split_kwargs))
        arg_dims, kwarg_dims = self._dims(args, kwargs)
        split_args = self._cut_evenly(args, arg_dims)
        # Keywords are split each by itself: one entry per micro-batch, say, beside a batch of samples.
        split = {name: self._cut_evenly(value, kwarg_dims[name]) for name, value in kwargs.items()}
        return [(split_args[m], {name: parts[m] for name, parts in split.items()}) for m in range(count)]

    def _cut_evenly(self, value: Value, dim: Any) -> list[Value]:
        count = self._num_micro_batches
        size = self._plain.batch_size(value, dim)
        return self._plain.cut(value, dim, [(0, 0)] * count if size is None else offsets(split_sizes(size, count)))

    def batch_size(self, args: tuple[Value, ...], kwargs: Mapping[str, Value]) -> int | None:
        """Return how many samples the arguments hold; None where nothing is split."""
        return self._plain.batch_size((args, dict(kwargs)), self._dims(args, kwargs))

    def cut_shard(
        self, args: tuple[Value, ...], kwargs: Mapping[str, Value], owned: Sequence[int], sizes: Sequence[int]
    ) -> dict[int, tuple[tuple[Value, ...], dict[str, Value]]]:
        """Return (args, kwargs) by micro-batch, cut from the part of the batch that this rank was given.

        Args:
            args: Positional arguments of the micro-batches this rank owns, joined in index order.
            kwargs: Keyword arguments likewise.
            owned: Those micro-batches.
            sizes: Samples of every micro-batch of the step.
        """
        spans = offsets([sizes[m] for m in owned])
        return dict(zip(owned, self._plain.cut((args, dict(kwargs)), self._dims(args, kwargs), spans)))

    def _dims(self, args: tuple[Value, ...], kwargs: Mapping[str, Value]) -> tuple[Any, Any]:
        """Return the batch dimensions, nested like (args, kwargs)."""
        splitter = Splitter(
            self._tensors,
            None if self._args_spec is None else [_dim_of(spec) for spec in self._args_spec],
            {name: _dim_of(spec) for name, spec in (self._kwargs_spec or {}).items() if name in kwargs},
        )
        arg_dims, kwarg_dims = splitter.dims_of(args, kwargs)
        return tuple(arg_dims), kwarg_dims

    def target_size(self, target: Value) -> int | None:
        """Return how many samples the target holds; None where nothing is split."""
        return self._plain.batch_size(target, 0)

    def cut_target(self, target: Value) -> tuple[list[Value], list[int]]:
        """Return the targets of the micro-batches and their sizes; sizes are equal where nothing is split."""
        count = self._num_micro_batches
        size = self.target_size(target)
        if size is None:
            return [target] * count, [1] * count
        sizes = split_sizes(size, count)
        return self._plain.cut(target, 0, offsets(sizes)), sizes


def merge_outputs(outputs: Sequence[Value], merge_spec: Any, tensors: TorchTensors) -> Value:
    """Join the last stage's outputs of all micro-batches.

    Args:
        outputs: In micro-batch order.
        merge_spec: Torch's, nested like one output; None joins every tensor along dimension 0.
        tensors: The framework's tensor operations.
    """
    if merge_spec is None:
        return merge(outputs, 0, tensors)
    return merge_chunks(list(outputs), merge_spec)


def input_fault(name: str, given: Value, declared: Sequence[torch.Tensor] | None) -> str | None:
    """Return how a micro-batch differs from the declared example tensors; None if it doesn't."""
    if declared is None:
        return None
    leaves, _ = flatten(given, lambda value: isinstance(value, torch.Tensor))
    examples, _ = flatten(tuple(declared), lambda value: isinstance(value, torch.Tensor))
    if len(leaves) != len(examples):
        return f"{name}: {len(examples)} tensors are declared, {len(leaves)} were given"
    for position, (leaf, example) in enumerate(zip(leaves, examples)):
        # The batch dimension may differ: micro-batches of an uneven batch do.
        num_other = sum(size != declared_size for size, declared_size in zip(leaf.shape, example.shape))
        if leaf.dtype != example.dtype or leaf.dim() != example.dim() or num_other > 1:
            return (
                f"{name} {position}: {example.dtype}{list(example.shape)} is declared, "
                f"{leaf.dtype}{list(leaf.shape)} was given"
            )
    return None


def _dim_of(spec: Any) -> Any:
    """Return the batch dimension a spec names; None for a value that every micro-batch gets whole."""
    if isinstance(spec, TensorChunkSpec):
        return spec.split_dim
    if spec is None or isinstance(spec, _Replicate):
        return None
    if isinstance(spec, dict):
        return {key: _dim_of(item) for key, item in spec.items()}
    if isinstance(spec, (tuple, list)):
        return [_dim_of(item) for item in spec]
    raise TypeError(f"a chunk spec is a TensorChunkSpec, or nested like the argument (got {spec!r})")
