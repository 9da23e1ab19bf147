"""What a framework provides so that the engine can run on it: tensors, stages and a transport.

One conformance test runs against every implementation and against the pure-Python fake of the core tests.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

Tensor = Any
Value = Any  # a nested value, see hyper_pp.tree


class TensorSpec(NamedTuple):
    """What a receiver must know of a tensor before it arrives.

    Args:
        shape: Its shape.
        dtype: Its element type in the framework's own text form, for example ``"Float32"`` or ``"torch.float32"``.
        requires_grad: The sender's stage can use a gradient of it.
    """

    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool = False

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class Tensors(Protocol):
    """The few tensor operations that the engine and the micro-batch splitter need."""

    def is_tensor(self, value: Any) -> bool:
        """Tell a tensor of this framework from a plain value."""

    def is_floating(self, tensor: Tensor) -> bool:
        """Tell whether gradients make sense for the tensor's element type."""

    def spec(self, tensor: Tensor) -> TensorSpec:
        """Return shape and element type; ``requires_grad`` is left False."""

    def narrow(self, tensor: Tensor, dim: int, start: int, length: int) -> Tensor:
        """Return the part ``start … start+length−1`` of dimension ``dim``."""

    def concat(self, tensors: Sequence[Tensor], dim: int) -> Tensor:
        """Join tensors along ``dim``."""

    def full(self, spec: TensorSpec, value: float) -> Tensor:
        """Return a new tensor of that shape and element type, filled with ``value``."""

    def weighted_sum(self, scalars: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        """Return Σ weight·scalar as a float32 tensor of shape (), cut from any graph; 0.0 for none."""

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the sum of two tensors of equal shape as a new tensor."""

    def copy(self, tensor: Tensor) -> Tensor:
        """Return a copy that belongs to no graph."""

    def same(self, left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
        """Tell whether two lists of tensors of equal shapes hold the same values; NaN is not the same as NaN."""

    def number(self, value: Any) -> float:
        """Return a one-element tensor or a number as a Python float."""


class Tape(Protocol):
    """What a recorded forward leaves for its backward; opaque but for this."""

    @property
    def requires_grad(self) -> tuple[bool, ...]:
        """For each tensor of the output, in flatten order: whether a gradient of it can be used."""


class Stage(Protocol):
    """One model chunk, the preprocess block or the loss function: something with a forward and a backward.

    Parameter gradients accumulate inside the stage until they are cleared. Several forwards may be outstanding, and
    their backwards may come in any order.
    """

    def forward(
        self,
        args: tuple[Value, ...],
        kwargs: Mapping[str, Value],
        *,
        needs_grad: Sequence[bool],
        record: bool,
        seed: int | None = None,
        keep_buffers: bool = False,
        continues: Tape | None = None,
    ) -> tuple[Value, Tape | None]:
        """Run the forward on one micro-batch.

        Args:
            args: Positional inputs; cut from whatever graph they came from.
            kwargs: Keyword inputs; never differentiated.
            needs_grad: For each tensor of ``args`` in flatten order, whether ``backward`` shall return its gradient.
            record: Keep what the backward needs. Without it, nothing is kept.
            seed: If given, random numbers are drawn from this seed and the generator's own state is put back.
            keep_buffers: Put the module's buffers back afterwards (a recompute must not count twice).
            continues: Tape of the stage whose output the first tensors of ``args`` are. Both forwards then have one
                backward, by the tape returned here: it accumulates the parameter gradients of both stages and returns
                the gradients of that stage's inputs. No other tensor may need a gradient. Only with ``record``.

        Returns:
            The output, and the tape (None without ``record``).
        """

    def backward(self, tape: Tape, output_grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Accumulate parameter gradients and return the gradients of the inputs; consumes the tape.

        Args:
            tape: Of a recorded forward.
            output_grads: One per tensor of the output in flatten order; None where it has no gradient.

        Returns:
            One per tensor of ``args``: the gradient (zeros if the output doesn't depend on it) where it was asked for,
            else None.
        """

    def backward_input(self, tape: Tape, output_grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return what :meth:`backward` returns, but leave every parameter gradient to :meth:`backward_weight`."""

    def backward_weight(self, tape: Tape) -> None:
        """Accumulate the parameter gradients that :meth:`backward_input` left; consumes the tape."""

    def trainable(self) -> bool:
        """Tell whether any parameter has ``requires_grad``."""

    def parameters(self) -> list[Tensor]:
        """Return the trainable parameters, in a fixed order that is the same on every rank."""

    def buffers(self) -> list[Tensor]:
        """Return everything else that is part of the module's state: frozen parameters and buffers."""

    def gradients(self) -> list[Tensor | None]:
        """Return the accumulated gradients, aligned with :meth:`parameters`; None where nothing arrived yet."""

    def set_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        """Replace the accumulated gradients, aligned with :meth:`parameters`."""


class Pending(Protocol):
    """A transfer under way."""

    def wait(self) -> list[Tensor]:
        """Order what follows behind the transfer; return the received tensors (a send returns none)."""


class Transport(Protocol):
    """Moves tensors between the ranks of one pipeline. Peers are pipeline ranks.

    Every rank posts its transfers in one total order; the transport keeps that order, keeps a send's tensors alive
    until it is done, and checks nothing that the engine has agreed on already.
    """

    rank: int
    num_ranks: int
    # Receives that the engine may post ahead of the plan; 0 where all transfers share one queue. Asked after a first
    # step, so that it may depend on the size of the messages.
    @property
    def lookahead(self) -> int:
        """Receives that may be posted ahead."""

    def send(self, tensors: Sequence[Tensor], peer: int) -> Pending:
        """Start sending; any dtype, layout and size, or TypeError that lists what can be carried."""

    def recv(self, specs: Sequence[TensorSpec], peer: int) -> Pending:
        """Start receiving tensors of these shapes and dtypes."""

    def send_object(self, value: Any, peer: int) -> None:
        """Send a small picklable value, in order with the tensors."""

    def recv_object(self, peer: int) -> Any:
        """Receive what :meth:`send_object` sent."""

    def broadcast(self, tensors: Sequence[Tensor], source: int) -> None:
        """Overwrite the tensors on every other rank with those of ``source``; all ranks call it."""

    def reduce(self, tensors: Sequence[Tensor], target: int) -> list[Tensor]:
        """Return the sums over ranks on ``target``, undefined values elsewhere; all ranks call it."""

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return every rank's small picklable value, by rank; all ranks call it."""

    def abort(self, reason: str) -> None:
        """Tell every other rank to end at once with ``reason`` as the first cause; returns."""
