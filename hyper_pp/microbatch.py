"""Split a batch into micro-batches, weigh them, and merge what comes out."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hyper_pp.protocols import Tensors, Value
from hyper_pp.tree import flatten, unflatten

BatchDims = int | None | Sequence[Any] | Mapping[str, Any]


def split_sizes(batch_size: int, num_micro_batches: int) -> list[int]:
    """Return the micro-batch sizes that ``tensor_split`` gives: as even as possible, larger ones first.

    Raises:
        ValueError: There are more micro-batches than samples.
    """
    if batch_size < num_micro_batches:
        raise ValueError(
            f"a batch of {batch_size} can't be split into {num_micro_batches} micro-batches: "
            "use a batch at least as large as the number of micro-batches, or fewer micro-batches"
        )
    size, extra = divmod(batch_size, num_micro_batches)
    return [size + 1] * extra + [size] * (num_micro_batches - extra)


class Splitter:
    """Cuts nested values along their batch dimensions.

    Args:
        tensors: The framework's tensor operations.
        args_batch_dim: Batch dimension of the positional values: an int for all of them (None: 0), or one entry per
            value. An entry is an int, None for a value that every micro-batch gets whole, or nested like the value.
        kwargs_batch_dim: Batch dimension by keyword; keywords that are left out use 0.
    """

    def __init__(
        self,
        tensors: Tensors,
        args_batch_dim: BatchDims = None,
        kwargs_batch_dim: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(args_batch_dim, Mapping):
            raise TypeError(f"args_batch_dim must be an int or one entry per input (got {args_batch_dim!r})")
        if kwargs_batch_dim is not None and not isinstance(kwargs_batch_dim, Mapping):
            raise TypeError(f"kwargs_batch_dim must be a dict by keyword (got {kwargs_batch_dim!r})")
        self._tensors = tensors
        self._args_batch_dim = args_batch_dim
        self._kwargs_batch_dim = dict(kwargs_batch_dim or {})

    def dims_of(self, args: Sequence[Value], kwargs: Mapping[str, Value]) -> tuple[list[Any], dict[str, Any]]:
        """Return the batch dimension of every argument, nested as it was given.

        Raises:
            ValueError: There are not as many entries as arguments, or a keyword isn't there.
        """
        given = self._args_batch_dim
        if given is None or isinstance(given, int):
            dims = [0 if given is None else given] * len(args)
        else:
            dims = list(given)
            if len(dims) != len(args):
                raise ValueError(f"args_batch_dim has one entry per input (entries: {len(dims)}, inputs: {len(args)})")
        unknown = [name for name in self._kwargs_batch_dim if name not in kwargs]
        if unknown:
            raise ValueError(f"kwargs_batch_dim names {unknown}, but the keywords are {list(kwargs)}")
        return dims, {name: self._kwargs_batch_dim.get(name, 0) for name in kwargs}

    def batch_size(self, value: Value, dim: Any) -> int | None:
        """Return the batch size of a nested value; None if nothing in it is split.

        Raises:
            ValueError: Its tensors disagree, or one has no such dimension.
        """
        found: int | None = None
        leaves, _ = flatten(value, self._tensors.is_tensor)
        for tensor, tensor_dim in zip(leaves, self._dims(value, dim)):
            if tensor_dim is None:
                continue
            shape = self._tensors.spec(tensor).shape
            if not -len(shape) <= tensor_dim < len(shape):
                raise ValueError(f"batch dimension {tensor_dim} is outside an input of shape {list(shape)}")
            size = shape[tensor_dim]
            if found is not None and size != found:
                raise ValueError(f"the inputs disagree on the batch size: {found} and {size} (shape {list(shape)})")
            found = size
        return found

    def cut(self, value: Value, dim: Any, starts_and_sizes: Iterable[tuple[int, int]]) -> list[Value]:
        """Return one nested value per (start, size), each a part of ``value`` along its batch dimensions."""
        leaves, skeleton = flatten(value, self._tensors.is_tensor)
        dims = self._dims(value, dim)
        narrow = self._tensors.narrow
        return [
            unflatten(
                skeleton,
                [
                    leaf if leaf_dim is None else narrow(leaf, leaf_dim, start, size)
                    for leaf, leaf_dim in zip(leaves, dims)
                ],
            )
            for start, size in starts_and_sizes
        ]

    def _dims(self, value: Value, dim: Any) -> list[int | None]:
        """Return the batch dimension of every tensor in flatten order; None where every micro-batch gets it whole."""
        if dim is None:
            return [None] * len(flatten(value, self._tensors.is_tensor)[0])
        if self._tensors.is_tensor(value):
            if isinstance(dim, bool) or not isinstance(dim, int):
                raise TypeError(f"a batch dimension must be an int or None (got {dim!r})")
            return [dim if self._tensors.spec(value).shape else None]
        if isinstance(value, dict):
            pick = dim if isinstance(dim, Mapping) else dict.fromkeys(value, dim)
            return [found for key, item in value.items() for found in self._dims(item, pick.get(key, 0))]
        if isinstance(value, (tuple, list)):
            dims = dim if isinstance(dim, (tuple, list)) else [dim] * len(value)
            if len(dims) != len(value):
                raise ValueError(f"a batch dimension per item is needed (items: {len(value)}, got {dims!r})")
            return [found for item, item_dim in zip(value, dims) for found in self._dims(item, item_dim)]
        return []


def offsets(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return (start, size) of each micro-batch in the batch."""
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    return list(zip(starts, sizes))


def weights_of(
    sizes: Sequence[int], targets: Sequence[Value], weight_fn: Callable[[Value], Any] | None, tensors: Tensors
) -> list[float]:
    """Return the micro-batches' shares of the loss: by size, or by ``weight_fn`` of their targets.

    Args:
        sizes: Samples per micro-batch.
        targets: Their targets; used with ``weight_fn`` only.
        weight_fn: Target micro-batch → number, for example its valid tokens.
        tensors: The framework's tensor operations.

    Returns:
        One share per micro-batch; they sum to 1, or are all 0 where ``weight_fn`` gives 0 everywhere.

    Raises:
        ValueError: ``weight_fn`` returns a negative number, NaN or infinity.
    """
    if weight_fn is None:
        return [size / sum(sizes) for size in sizes]
    raw = [tensors.number(weight_fn(target)) for target in targets]
    for m, weight in enumerate(raw):
        if not math.isfinite(weight) or weight < 0:
            raise ValueError(f"weight_fn must return a finite number of at least 0 (got {weight} for micro-batch {m})")
    total = math.fsum(raw)
    return [weight / total if total else 0.0 for weight in raw]


def merge(outputs: Sequence[Value], dim: Any, tensors: Tensors) -> Value:
    """Join the outputs of all micro-batches, in micro-batch order.

    Args:
        outputs: One nested value per micro-batch, all nested alike.
        dim: Dimension along which tensors are joined; an int, or nested like the outputs.
        tensors: The framework's tensor operations.

    Returns:
        Nested like one output. Scalars and plain values that differ come back as a list, one per micro-batch.

    Raises:
        ValueError: The outputs are nested differently.
    """
    first = outputs[0]
    if tensors.is_tensor(first):
        if not tensors.spec(first).shape:
            return list(outputs)
        return tensors.concat(list(outputs), dim)
    if isinstance(first, dict):
        if any(not isinstance(output, dict) or list(output) != list(first) for output in outputs):
            raise ValueError("the outputs of the micro-batches have different keys, so they can't be merged")
        pick = dim if isinstance(dim, Mapping) else dict.fromkeys(first, dim)
        return {key: merge([output[key] for output in outputs], pick[key], tensors) for key in first}
    if isinstance(first, (tuple, list)):
        if any(len(output) != len(first) for output in outputs):
            raise ValueError("the outputs of the micro-batches have different lengths, so they can't be merged")
        dims = dim if isinstance(dim, (tuple, list)) else [dim] * len(first)
        items = [merge([output[i] for output in outputs], dims[i], tensors) for i in range(len(first))]
        if isinstance(first, list):
            return items
        return type(first)(*items) if hasattr(first, "_fields") else tuple(items)
    return first if all(output == first for output in outputs) else list(outputs)
