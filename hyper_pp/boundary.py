"""Nested values across rank boundaries: what arrives is agreed once, or every time where shapes may change."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from hyper_pp.actions import Action, partner
from hyper_pp.protocols import Pending, Tensor, Tensors, TensorSpec, Transport, Value
from hyper_pp.tree import Slot, flatten, unflatten


class Header(NamedTuple):
    """What a receiver is told before a value arrives."""

    skeleton: Any
    specs: tuple[TensorSpec, ...]

    def without_grad(self) -> "Header":
        """Return the header as evaluation has it, so that training and evaluation can be compared."""
        return Header(self.skeleton, tuple(spec._replace(requires_grad=False) for spec in self.specs))

    def __str__(self) -> str:
        return _describe(self.skeleton, self.specs)


class Delivery:
    """A value on its way to the action that needs it: here already, or being received."""

    def __init__(self, value: Value, requires_grad: Sequence[bool]) -> None:
        self._value = value
        self._requires_grad = tuple(requires_grad)

    def get(self) -> tuple[Value, tuple[bool, ...]]:
        """Wait for the value; return it and, for each of its tensors, whether its sender can use a gradient."""
        return self._value, self._requires_grad


class RemoteDelivery(Delivery):
    """A value that another rank sends."""

    def __init__(self, header: Header, pending: Pending) -> None:
        super().__init__(None, [spec.requires_grad for spec in header.specs])
        self._header = header
        self._pending: Pending | None = pending

    def get(self) -> tuple[Value, tuple[bool, ...]]:
        """Wait for the value."""
        if self._pending is not None:
            self._value = unflatten(self._header.skeleton, self._pending.wait())
            self._pending = None
        return super().get()


class Boundaries:
    """Sends and receives nested values for one rank's engine.

    A header goes ahead of the first message of every action, and is checked against ever after; with
    ``dynamic_shapes`` it goes ahead of every message.

    Args:
        transport: Moves the tensors.
        tensors: The framework's tensor operations.
        dynamic_shapes: Tell the receiver shapes and plain values every time.
    """

    def __init__(self, transport: Transport, tensors: Tensors, dynamic_shapes: bool) -> None:
        self._transport = transport
        self._tensors = tensors
        self._dynamic_shapes = dynamic_shapes
        self._agreed: dict[tuple[Action, bool], Header] = {}

    def send(self, action: Action, value: Value, requires_grad: Sequence[bool], peer: int, training: bool) -> Pending:
        """Start sending a value; tell the receiver first what comes, where it doesn't know.

        Raises:
            ValueError: Shapes are static and this value differs from the one before; nothing of it was sent.
        """
        leaves, skeleton = flatten(value, self._tensors.is_tensor)
        specs = [self._tensors.spec(leaf)._replace(requires_grad=bool(use)) for leaf, use in zip(leaves, requires_grad)]
        header = Header(skeleton, tuple(specs))
        if self._dynamic_shapes:
            self._transport.send_object(header, peer)
        else:
            self._check(action, header, training)
            if (action, training) not in self._agreed:
                self._transport.send_object(header, peer)
                self._agreed[action, training] = header
        return self._transport.send(leaves, peer)

    def _check(self, action: Action, header: Header, training: bool) -> None:
        same_mode = self._agreed.get((action, training))
        other_mode = self._agreed.get((action, not training))
        if same_mode is not None and same_mode != header:
            before, now = same_mode, header
        elif other_mode is not None and other_mode.without_grad() != header.without_grad():
            before, now = other_mode, header
        else:
            return
        difference = f"before: {before}, now: {now}"
        if str(before) == str(now):
            difference = f"{now}: another part of it needs a gradient than before"
        raise ValueError(
            f"stage {action.stage} sends another value for micro-batch {action.micro_batch} than before "
            f"({difference}); "
            "pass dynamic_shapes=True if shapes or plain values change between steps"
        )

    def recv(self, action: Action, peer: int, training: bool) -> RemoteDelivery:
        """Start receiving a value."""
        key = (partner(action), training)
        header = None if self._dynamic_shapes else self._agreed.get(key)
        if header is None:
            header = self._transport.recv_object(peer)
            assert isinstance(header, Header)
            self._agreed[key] = header
        return RemoteDelivery(header, self._transport.recv(header.specs, peer))

    def send_gradients(self, gradients: Sequence[Tensor], peer: int) -> Pending:
        """Start sending the gradients of the tensors that need one, whose shapes the receiver knows."""
        return self._transport.send(list(gradients), peer)

    def recv_gradients(self, specs: Sequence[TensorSpec], peer: int) -> Pending:
        """Start receiving gradients of tensors of these specs."""
        return self._transport.recv(list(specs), peer)


def _describe(skeleton: Any, specs: Sequence[TensorSpec]) -> str:
    if isinstance(skeleton, Slot):
        return str(specs[skeleton.index])
    if isinstance(skeleton, dict):
        return "{" + ", ".join(f"{key}: {_describe(item, specs)}" for key, item in skeleton.items()) + "}"
    if isinstance(skeleton, (tuple, list)):
        return "(" + ", ".join(_describe(item, specs) for item in skeleton) + ")"
    return repr(skeleton)
