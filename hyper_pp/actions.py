"""Actions: one thing one rank does, and its text form ``<stage><OP><micro_batch>``."""

import re
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from hyper_pp.errors import PlanFormatError


class Op(str, Enum):
    """What an action does; the value is its text form."""

    F = "F"  # forward of a stage
    B = "B"  # full backward
    I = "I"  # noqa: E741 - the field's own name for it
    W = "W"  # weight-gradient half
    SEND_F = "SEND_F"
    RECV_F = "RECV_F"
    SEND_B = "SEND_B"
    RECV_B = "RECV_B"
    UNSHARD = "UNSHARD"
    RESHARD = "RESHARD"
    REDUCE_GRAD = "REDUCE_GRAD"
    BCAST_T = "BCAST_T"  # parameters of the preprocess block, rank 0 to all
    TF = "TF"  # forward of the preprocess block, on the micro-batch's owner
    SEND_TF = "SEND_TF"  # its output, owner to rank 0
    RECV_TF = "RECV_TF"
    SEND_TX = "SEND_TX"  # its input, owner to rank 0
    RECV_TX = "RECV_TX"
    TB = "TB"  # backward of the preprocess block
    SEND_TB = "SEND_TB"  # gradient of its output, rank 0 to owner
    RECV_TB = "RECV_TB"
    REDUCE_T = "REDUCE_T"  # its gradients, summed onto rank 0

    # Actions are dictionary keys everywhere: the C-level hash of str is several times cheaper than Enum's.
    __hash__ = str.__hash__

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class CustomOp:
    """An Op that a user adds; made by :func:`declare_op`.

    Args:
        value: Text form, capital letters and underscores.
        after: Ops of the same stage and micro-batch that must come earlier in the rank's order.
        before: Ops of the same stage and micro-batch that must come later.
    """

    value: str
    after: tuple[Op, ...] = ()
    before: tuple[Op, ...] = ()

    def __str__(self) -> str:
        return self.value


AnyOp = Op | CustomOp

COMPUTE_OPS = frozenset({Op.F, Op.B, Op.I, Op.W, Op.TF, Op.TB})
BACKWARD_OPS = frozenset({Op.B, Op.I})  # those that yield the gradient of a stage's input
BODY_P2P_OPS = frozenset({Op.SEND_F, Op.RECV_F, Op.SEND_B, Op.RECV_B})
SEND_OPS = frozenset({Op.SEND_F, Op.SEND_B, Op.SEND_TF, Op.SEND_TX, Op.SEND_TB})
RECV_OPS = frozenset({Op.RECV_F, Op.RECV_B, Op.RECV_TF, Op.RECV_TX, Op.RECV_TB})
COLLECTIVE_OPS = frozenset({Op.BCAST_T, Op.REDUCE_T})
SHARDING_OPS = frozenset({Op.UNSHARD, Op.RESHARD, Op.REDUCE_GRAD})
PREPROCESS_OPS = frozenset(op for op in Op if op.value.endswith(("_T", "_TF", "_TX", "_TB")) or op in (Op.TF, Op.TB))
WITHOUT_MICRO_BATCH = COLLECTIVE_OPS | SHARDING_OPS

# Nine digits are more than any pipeline has of anything, and int() refuses thousands of them.
_TEXT = re.compile(r"(\d{1,9})([A-Z]+(?:_[A-Z]+)*)(\d{0,9})", re.ASCII)
_OPS: dict[str, AnyOp] = {op.value: op for op in Op}


class Action(NamedTuple):
    """One thing one rank does; prints as ``3F0``, ``4RECV_B1``, ``0BCAST_T``.

    Args:
        stage: Global stage, from 0; 0 for the preprocess block, which belongs in front of stage 0.
        op: What is done.
        micro_batch: Micro-batch, from 0; None for ops that belong to no micro-batch.
    """

    stage: int
    op: AnyOp
    micro_batch: int | None = None

    def __str__(self) -> str:
        return f"{self.stage}{self.op.value}{'' if self.micro_batch is None else self.micro_batch}"

    def __repr__(self) -> str:
        return f"Action({self})"

    @classmethod
    def parse(cls, text: str) -> "Action":
        """Read an action from its text form.

        Args:
            text: For example ``"3F0"``.

        Raises:
            PlanFormatError: The text isn't ``<stage><OP><micro_batch>`` or the op is unknown.
        """
        match = _TEXT.fullmatch(text.strip()) if isinstance(text, str) else None
        if match is None:
            raise PlanFormatError(f"an action is <stage><OP><micro_batch>, for example 3F0 (got {text!r})")
        stage, name, micro_batch = match.groups()
        op = _OPS.get(name)
        if op is None:
            raise PlanFormatError(
                f"unknown op {name} in action {text!r} (known: {', '.join(_OPS)}; add your own with declare_op)"
            )
        if isinstance(op, Op) and (op in WITHOUT_MICRO_BATCH) == bool(micro_batch):
            rule = "takes no" if micro_batch else "needs a"
            raise PlanFormatError(f"{name} {rule} micro-batch (got {text!r})")
        return cls(int(stage), op, int(micro_batch) if micro_batch else None)


Order = tuple[Action, ...]
Orders = tuple[Order, ...]

_PARTNER_OP = {
    Op.SEND_F: Op.RECV_F,
    Op.RECV_F: Op.SEND_F,
    Op.SEND_B: Op.RECV_B,
    Op.RECV_B: Op.SEND_B,
    Op.SEND_TF: Op.RECV_TF,
    Op.RECV_TF: Op.SEND_TF,
    Op.SEND_TX: Op.RECV_TX,
    Op.RECV_TX: Op.SEND_TX,
    Op.SEND_TB: Op.RECV_TB,
    Op.RECV_TB: Op.SEND_TB,
}
_PARTNER_STAGE = {Op.SEND_F: 1, Op.RECV_F: -1, Op.SEND_B: -1, Op.RECV_B: 1}


def partner(action: Action) -> Action:
    """Return the receive that belongs to a send, or the send that belongs to a receive.

    ``3SEND_F1`` and ``4RECV_F1`` are partners, so are ``4SEND_B1`` and ``3RECV_B1``, ``0SEND_TF2`` and ``0RECV_TF2``.
    """
    assert isinstance(action.op, Op)
    return Action(action.stage + _PARTNER_STAGE.get(action.op, 0), _PARTNER_OP[action.op], action.micro_batch)


def declare_op(name: str, *, after: tuple[Op, ...] = (), before: tuple[Op, ...] = ()) -> CustomOp:
    """Add an Op of your own, so that plans that hold it can be read, verified and run.

    The verifier lets its actions through wherever they keep the declared order; the engine runs the handler given to
    ``engine.register``. Declaring the same op again is allowed if nothing differs.

    Args:
        name: Text form: capital letters, parts joined by ``_``.
        after: Ops that must come earlier on the same rank, for the same stage and micro-batch.
        before: Ops that must come later on the same rank, for the same stage and micro-batch.

    Returns:
        The op, to be used in :class:`Action`.

    Raises:
        ValueError: The name isn't of that form, is built in, or was declared otherwise before.
    """
    if not re.fullmatch(r"[A-Z]+(_[A-Z]+)*", name):
        raise ValueError(f"an op's name is capital letters, parts joined by _ (got {name!r})")
    op = CustomOp(name, tuple(Op(item) for item in after), tuple(Op(item) for item in before))
    known = _OPS.setdefault(name, op)
    if known != op:
        raise ValueError(f"op {name} is {'built in' if isinstance(known, Op) else f'declared already as {known!r}'}")
    return op
