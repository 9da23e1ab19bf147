"""Nested values across rank boundaries: what arrives is agreed once, or every time where shapes may change."""

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from hyper_pp.actions import Action
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


class Packed(NamedTuple):
    """A value taken apart for sending.

    Args:
        tensors: Its tensors in flatten order.
        header: What the receiver must know of it; ``requires_grad`` says which tensors' gradients come back.
    """

    tensors: list[Tensor]
    header: Header


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
        self._is_tensor = tensors.is_tensor
        self._spec = tensors.spec
        self._dynamic_shapes = dynamic_shapes
        self._agreed: dict[bool, dict[Action, Header]] = {True: {}, False: {}}  # by training
        self._gradient_specs: dict[Action, list[TensorSpec]] = {}

    def pack(self, value: Value, requires_grad: Sequence[bool]) -> Packed:
        """Take a value apart; ``requires_grad`` is one bool per tensor, or empty for none at all."""
        leaves, skeleton = flatten(value, self._is_tensor)
        if requires_grad:
            specs = [
                TensorSpec(shape, dtype, use)
                for (shape, dtype, _), use in zip(map(self._spec, leaves), requires_grad)
            ]
        else:
            specs = list(map(self._spec, leaves))
        return Packed(leaves, Header(skeleton, tuple(specs)))

    def send(self, action: Action, packed: Packed, peer: int, training: bool) -> Pending:
        """Start sending a value; tell the receiver first what comes, where it doesn't know.

        Raises:
            ValueError: Shapes are static and this value differs from the one before; nothing of it was sent.
        """
        header = packed.header
        if self._dynamic_shapes:
            self._transport.send_object(header, peer)
        else:
            agreed = self._agreed[training].get(action)
            if agreed is None:
                other_mode = self._agreed[not training].get(action)
                if other_mode is not None and other_mode.without_grad() != header.without_grad():
                    self._refuse(action, other_mode, header)
                self._transport.send_object(header, peer)
                self._agreed[training][action] = header
            elif agreed != header:
                self._refuse(action, agreed, header)
        return self._transport.send(packed.tensors, peer)

    def _refuse(self, action: Action, before: Header, now: Header) -> NoReturn:
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
        header = None if self._dynamic_shapes else self._agreed[training].get(action)
        if header is None:
            header = self._transport.recv_object(peer)
            assert isinstance(header, Header)
            self._agreed[training][action] = header
        return RemoteDelivery(header, self._transport.recv(header.specs, peer))

    def send_gradients(self, gradients: Sequence[Tensor], peer: int) -> Pending:
        """Start sending the gradients of the tensors that need one, whose shapes the receiver knows."""
        return self._transport.send(list(gradients), peer)

    def recv_gradients(
        self, specs: Sequence[TensorSpec] | None, peer: int, action: Action
    ) -> Pending | None:
        """Start receiving gradients of tensors of these specs; None: those that the same action received before.

        Returns:
            None where there is nothing to receive.
        """
        if specs is None:
            specs = self._gradient_specs[action]
        else:
            self._gradient_specs[action] = list(specs)
        return self._transport.recv(specs, peer) if specs else None


def _describe(skeleton: Any, specs: Sequence[TensorSpec]) -> str:
    if isinstance(skeleton, Slot):
        return str(specs[skeleton.index])
    if isinstance(skeleton, dict):
        return "{" + ", ".join(f"{key}: {_describe(item, specs)}" for key, item in skeleton.items()) + "}"
    if isinstance(skeleton, (tuple, list)):
        return "(" + ", ".join(_describe(item, specs) for item in skeleton) + ")"
    return repr(skeleton)
