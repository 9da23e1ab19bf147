"""Nested values across rank boundaries: what arrives is agreed once, or every time where shapes may change."""

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from hyper_pp.actions import Action
from hyper_pp.errors import ShapeError
from hyper_pp.protocols import Pending, Tensor, Tensors, TensorSpec, Transport, Value
from hyper_pp.tree import Slot, flatten, unflatten

# Sends that may be under way to one peer before the oldest is waited for: enough to keep a link busy, few enough that
# their tensors don't add up. As many as the transport's lookahead where that is more.
MAX_OUTSTANDING_SENDS = 4


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
        overlap: False: wait at each transfer. True: wait for a receive at the first use of what arrives, and for a send
            when more than :attr:`max_sends` to one peer are under way.
    """

    def __init__(self, transport: Transport, tensors: Tensors, *, dynamic_shapes: bool, overlap: bool) -> None:
        self.max_sends = MAX_OUTSTANDING_SENDS
        self._transport = transport
        self._is_tensor = tensors.is_tensor
        self._spec = tensors.spec
        self._dynamic_shapes = dynamic_shapes
        self._overlap = overlap
        self._agreed: dict[bool, dict[Action, Header]] = {True: {}, False: {}}  # by training
        self._gradient_specs: dict[Action, list[TensorSpec]] = {}
        self.begin(training=True)

    def begin(self, *, training: bool) -> None:
        """Start a step with nothing under way."""
        self.exchanged = False  # whether anything went out or was asked for in this step
        self._training = training
        self._sends: dict[int, deque[Pending]] = {}

    def finish(self) -> None:
        """Wait for every send of the step."""
        for sends in self._sends.values():
            while sends:
                sends.popleft().wait()

    def pack(self, value: Value, requires_grad: Sequence[bool]) -> Packed:
        """Take a value apart; ``requires_grad`` is one bool per tensor, or empty for none at all."""
        leaves, skeleton = flatten(value, self._is_tensor)
        if requires_grad:
            specs = [
                TensorSpec(shape, dtype, use) for (shape, dtype, _), use in zip(map(self._spec, leaves), requires_grad)
            ]
        else:
            specs = list(map(self._spec, leaves))
        return Packed(leaves, Header(skeleton, tuple(specs)))

    # -- values ----------------------------------------------------------------------------------------------------

    def send(self, action: Action, packed: Packed, peer: int) -> None:
        """Send a value that :meth:`pack` took apart; tell the receiver first what comes, where it doesn't know.

        Raises:
            ShapeError: Shapes are static and this value differs from the one before; nothing of it was sent.
        """
        header = packed.header
        if self._dynamic_shapes:
            self.exchanged = True
            self._transport.send_object(header, peer)
        else:
            agreed = self._agreed[self._training].get(action)
            if agreed is None:
                other_mode = self._agreed[not self._training].get(action)
                if other_mode is not None and other_mode.without_grad() != header.without_grad():
                    _refuse(action, other_mode, header)
                self.exchanged = True
                self._transport.send_object(header, peer)
                self._agreed[self._training][action] = header
            elif agreed != header:
                _refuse(action, agreed, header)
        self._start(packed.tensors, peer)

    def recv(self, action: Action, peer: int) -> Delivery:
        """Receive a value."""
        self.exchanged = True
        agreed = self._agreed[self._training]
        header = None if self._dynamic_shapes else agreed.get(action)
        if header is None:
            header = self._transport.recv_object(peer)
            assert isinstance(header, Header)
            agreed[action] = header
        delivery = RemoteDelivery(header, self._transport.recv(header.specs, peer))
        if not self._overlap:
            delivery.get()
        return delivery

    # -- gradients -------------------------------------------------------------------------------------------------

    def send_gradients(self, gradients: Sequence[Tensor], peer: int) -> None:
        """Send the gradients of the tensors that need one, whose shapes the receiver knows."""
        if gradients:
            self._start(list(gradients), peer)

    def recv_gradients(self, specs: Sequence[TensorSpec] | None, peer: int, action: Action) -> list[Tensor] | Pending:
        """Receive gradients of tensors of these specs; None: of those that the same action received before."""
        if specs is None:
            specs = self._gradient_specs[action]
        else:
            self._gradient_specs[action] = list(specs)
        if not specs:
            return []
        self.exchanged = True
        pending = self._transport.recv(specs, peer)
        return pending if self._overlap else pending.wait()

    def _start(self, tensors: list[Tensor], peer: int) -> None:
        self.exchanged = True
        pending = self._transport.send(tensors, peer)
        if not self._overlap:
            pending.wait()
            return
        sends = self._sends.setdefault(peer, deque())
        sends.append(pending)
        if len(sends) > self.max_sends:
            sends.popleft().wait()


def _refuse(action: Action, before: Header, now: Header) -> NoReturn:
    difference = f"before: {before}, now: {now}"
    if str(before) == str(now):
        difference = f"{now}: another part of it needs a gradient than before"
    raise ShapeError(
        f"stage {action.stage} sends another value for micro-batch {action.micro_batch} than before "
        f"({difference}); "
        "pass dynamic_shapes=True if shapes or plain values change between steps"
    )


def _describe(skeleton: Any, specs: Sequence[TensorSpec]) -> str:
    if isinstance(skeleton, Slot):
        return str(specs[skeleton.index])
    if isinstance(skeleton, dict):
        return "{" + ", ".join(f"{key}: {_describe(item, specs)}" for key, item in skeleton.items()) + "}"
    if isinstance(skeleton, (tuple, list)):
        return "(" + ", ".join(_describe(item, specs) for item in skeleton) + ")"
    return repr(skeleton)
