"""The tensor operations the engine needs, for MindSpore on any device."""

import functools
from collections.abc import Sequence
from typing import Any

import mindspore
import numpy
from mindspore import Tensor, mint

from hyper_pp.mindspore.autograd import cut, no_grad
from hyper_pp.protocols import TensorSpec

_NAMES = (
    "bool_",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)
DTYPES = {str(getattr(mindspore, name)): getattr(mindspore, name) for name in _NAMES}


def dtype_of(text: str) -> Any:
    """Return the MindSpore type that prints as ``text``, for example ``"Float32"``.

    Raises:
        TypeError: There is none.
    """
    if text not in DTYPES:
        raise TypeError(f"dtype must be one of {', '.join(DTYPES)} (got {text})")
    return DTYPES[text]


@functools.cache
def on_cpu() -> bool:
    """Tell whether MindSpore computes on the CPU, where some operators don't exist."""
    return mindspore.get_context("device_target") == "CPU"


class MindSporeTensors:
    """Implements :class:`hyper_pp.protocols.Tensors`."""

    def is_tensor(self, value: Any) -> bool:
        """Tell a tensor from a plain value."""
        return isinstance(value, Tensor)

    def is_floating(self, tensor: Tensor) -> bool:
        """Tell whether gradients make sense for the tensor's element type."""
        return tensor.is_floating_point()

    def spec(self, tensor: Tensor) -> TensorSpec:
        """Return shape and element type."""
        return TensorSpec(tuple(tensor.shape), str(tensor.dtype))

    def narrow(self, tensor: Tensor, dim: int, start: int, length: int) -> Tensor:
        """Return the part ``start … start+length−1`` of dimension ``dim``."""
        with no_grad():
            if length == tensor.shape[dim]:
                return tensor
            if length == 0:  # MindSpore's narrow refuses a start at the end
                return mint.zeros((*tensor.shape[:dim], 0, *tensor.shape[dim + 1 :]), dtype=tensor.dtype)
            return mint.narrow(tensor, dim, start, length)

    def concat(self, tensors: Sequence[Tensor], dim: int) -> Tensor:
        """Join tensors along ``dim``."""
        with no_grad():
            return mint.cat(list(tensors), dim)

    def full(self, spec: TensorSpec, value: float) -> Tensor:
        """Return a new tensor, filled with ``value``; made on the device, where a backward may start from it."""
        dtype = dtype_of(spec.dtype)
        with no_grad():
            if value == 0:
                return mint.zeros(spec.shape, dtype=dtype)
            if on_cpu():
                return Tensor(numpy.full(spec.shape, value), dtype)
            return mint.full(spec.shape, value, dtype=dtype)

    def weighted_sum(self, scalars: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        """Return Σ weight·scalar as a float32 tensor of shape (); a scalar of weight 0 counts 0 even if it is NaN."""
        with no_grad():
            counted = [(scalar, weight) for scalar, weight in zip(scalars, weights) if weight != 0]
            if not counted:
                return mint.zeros((), dtype=mindspore.float32)
            # Few operators, however many scalars: launching one costs more than all the arithmetic here.
            row = mint.cat([scalar.reshape((1,)).astype(mindspore.float32) for scalar, _ in counted])
            return mint.sum(row * Tensor(numpy.array([weight for _, weight in counted], numpy.float32)))

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the sum of two tensors of equal shape as a new tensor."""
        with no_grad():
            return left + right

    def copy(self, tensor: Tensor) -> Tensor:
        """Return a copy that belongs to no graph."""
        with no_grad():
            return cut(tensor).copy()

    def same(self, left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
        """Tell whether two lists of tensors hold the same values; the host waits for the device once."""
        if not left:
            return True
        with no_grad():
            differ = [(one != other).any().reshape((1,)) for one, other in zip(left, right, strict=True)]
            return not mint.cat([flag.astype(mindspore.int32) for flag in differ]).sum().item()

    def number(self, value: Any) -> float:
        """Return a one-element tensor or a number as a Python float."""
        return float(value.item()) if isinstance(value, Tensor) else float(value)
