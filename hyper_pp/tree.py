"""Nested values: what a stage takes and returns, taken apart into tensors and a skeleton.

A value is any nesting of tuples, named tuples, lists and dicts whose leaves are tensors or plain values (None, numbers,
strings). The skeleton keeps the nesting and the plain values; it can be compared and pickled, so a receiver can be told
what will arrive.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

IsTensor = Callable[[Any], bool]


@dataclass(frozen=True)
class Slot:
    """Stands in a skeleton where a tensor was."""

    index: int


_ONLY_SLOT = Slot(0)


def flatten(value: Any, is_tensor: IsTensor) -> tuple[list[Any], Any]:
    """Take a nested value apart.

    Args:
        value: Tuples, lists and dicts of tensors and plain values.
        is_tensor: Tells tensors from plain values.

    Returns:
        The tensors in depth-first order (dicts in insertion order), and the skeleton.
    """
    if is_tensor(value):  # by far the most frequent value
        return [value], _ONLY_SLOT
    tensors: list[Any] = []
    return tensors, _skeleton(value, is_tensor, tensors)


def _skeleton(node: Any, is_tensor: IsTensor, tensors: list[Any]) -> Any:
    # Not a nested function: one that calls itself is a reference cycle, and would keep the tensors until the next
    # garbage collection.
    if is_tensor(node):
        tensors.append(node)
        return Slot(len(tensors) - 1)
    if isinstance(node, dict):
        return {key: _skeleton(item, is_tensor, tensors) for key, item in node.items()}
    if isinstance(node, (tuple, list)):
        return _rebuild(node, [_skeleton(item, is_tensor, tensors) for item in node])
    return node


def unflatten(skeleton: Any, tensors: Sequence[Any]) -> Any:
    """Put a nested value together again: the inverse of :func:`flatten`."""
    if isinstance(skeleton, Slot):
        return tensors[skeleton.index]
    if isinstance(skeleton, dict):
        return {key: unflatten(item, tensors) for key, item in skeleton.items()}
    if isinstance(skeleton, (tuple, list)):
        return _rebuild(skeleton, [unflatten(item, tensors) for item in skeleton])
    return skeleton


def map_tensors(function: Callable[[Any], Any], value: Any, is_tensor: IsTensor) -> Any:
    """Return ``value`` with ``function`` applied to every tensor in it."""
    tensors, skeleton = flatten(value, is_tensor)
    return unflatten(skeleton, [function(tensor) for tensor in tensors])


def _rebuild(like: Any, items: list[Any]) -> Any:
    if isinstance(like, list):
        return items
    return type(like)(*items) if hasattr(like, "_fields") else tuple(items)
