"""The few tensor operations that the engine and the micro-batch splitter need, on torch."""

from collections.abc import Sequence
from typing import Any

import torch

from hyper_pp.protocols import TensorSpec

DTYPES: dict[str, torch.dtype] = {
    str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)
}
_NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}


class TorchTensors:
    """Tensor operations for one device.

    Args:
        device: Where new tensors are made.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def is_tensor(self, value: Any) -> bool:
        """Tell a torch tensor from a plain value."""
        return isinstance(value, torch.Tensor)

    def is_floating(self, tensor: torch.Tensor) -> bool:
        """Tell whether autograd differentiates the tensor's element type; complex numbers it does."""
        return tensor.is_floating_point() or tensor.is_complex()

    def spec(self, tensor: torch.Tensor) -> TensorSpec:
        """Return shape and element type, for example ``torch.float32[4, 8]``."""
        return TensorSpec(tuple(tensor.shape), _NAMES[tensor.dtype])

    def narrow(self, tensor: torch.Tensor, dim: int, start: int, length: int) -> torch.Tensor:
        """Return a view of the part ``start … start+length−1`` of dimension ``dim``."""
        return tensor.narrow(dim, start, length)

    def concat(self, tensors: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
        """Join tensors along ``dim``."""
        return torch.cat(list(tensors), dim)

    def full(self, spec: TensorSpec, value: float) -> torch.Tensor:
        """Return a new tensor of that shape and element type, filled with ``value``."""
        return torch.full(spec.shape, value, dtype=DTYPES[spec.dtype], device=self.device)

    def weighted_sum(self, scalars: Sequence[torch.Tensor], weights: Sequence[float]) -> torch.Tensor:
        """Return Σ weight·scalar as a float32 tensor of shape (), cut from any graph; 0.0 for none."""
        total = torch.zeros((), dtype=torch.float32, device=self.device)
        for scalar, weight in zip(scalars, weights):
            total += scalar.detach().to(torch.float32) * weight
        return total

    def add(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Return the sum of two tensors of equal shape as a new tensor."""
        return left.detach() + right.detach()

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy that belongs to no graph."""
        return tensor.detach().clone()

    def same(self, left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
        """Tell whether two lists of tensors hold the same values; the host waits for the device once."""
        if not left:
            return True
        with torch.no_grad():
            return not torch.stack([(one != other).any() for one, other in zip(left, right, strict=True)]).any().item()

    def number(self, value: Any) -> float:
        """Return a one-element tensor or a number as a Python float."""
        return float(value)
