"""What every action needs, and on which rank it belongs: the one place that knows the rules of a training step."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from hyper_pp.actions import COLLECTIVE_OPS, PREPROCESS_OPS, Action, AnyOp, CustomOp, Op, Orders
from hyper_pp.shape import PipelineShape
from hyper_pp.transpose import Transpose


class Need(NamedTuple):
    """One thing an action needs.

    Args:
        producer: The compute action or collective whose result it is, on whatever rank.
        carrier: The receive that brings the result to this rank; None where the producer ran on this rank.
    """

    producer: Action
    carrier: Action | None = None

    @property
    def local(self) -> Action:
        """What must come earlier in this rank's own order."""
        return self.carrier or self.producer


class Dependencies:
    """Needs and homes of the actions of one plan.

    Args:
        shape: Of the plan.
        transpose: What the plan says of its preprocess block, if it has one.
        orders: Of the plan; they decide which backwards are split and which forwards of the block exist.
    """

    def __init__(self, shape: PipelineShape, transpose: Transpose | None, orders: Orders) -> None:
        self.shape = shape
        self.transpose = transpose
        self.split: set[tuple[int, int | None]] = set()
        self.separate_forward: set[int | None] = set()  # micro-batches whose block forward is an action of its own
        self.separate_backward: set[int | None] = set()
        self.ops: set[AnyOp] = set()  # every op that occurs
        for order in orders:
            for stage, op, micro_batch in order:
                self.ops.add(op)
                if op is Op.I:
                    self.split.add((stage, micro_batch))
                elif op is Op.TF:
                    self.separate_forward.add(micro_batch)
                elif op is Op.TB:
                    self.separate_backward.add(micro_batch)
        self.broadcasts = Op.BCAST_T in self.ops
        self._rank_of_stage = [shape.rank_of(stage) for stage in range(shape.num_stages)]
        self._needs: dict[Op, Callable[[int, int], list[Need]]] = {
            Op.F: self._needs_of_forward,
            Op.B: self._needs_of_backward,
            Op.I: self._needs_of_backward,
            Op.W: lambda s, m: [Need(Action(s, Op.I, m))],
            Op.SEND_F: lambda s, m: [Need(Action(s, Op.F, m))],
            Op.SEND_B: lambda s, m: [Need(self.backward_of(s, m))],
            Op.TF: lambda s, m: [Need(Action(0, Op.BCAST_T))] if self.broadcasts else [],
            Op.SEND_TF: lambda s, m: [Need(Action(0, Op.TF, m))],
            Op.SEND_TB: lambda s, m: [Need(self.backward_of(0, m))],
            Op.TB: self._needs_of_preprocess_backward,
        }

    @property
    def num_transposed(self) -> int:
        """NT = min(P, M): the micro-batches that published MPipe spreads over the ranks."""
        return min(self.shape.num_ranks, self.shape.num_micro_batches)

    def owner_of(self, micro_batch: int) -> int:
        """Return the rank that runs the preprocess block's forward on ``micro_batch``."""
        assert self.transpose is not None
        return self.transpose.owners[micro_batch]

    def backward_of(self, stage: int, micro_batch: int) -> Action:
        """Return the action that yields the gradient of the stage's input: B, or I where the backward is split."""
        op = Op.I if (stage, micro_batch) in self.split else Op.B
        return Action(stage, op, micro_batch)

    def is_connected(self, micro_batch: int) -> bool:
        """Tell whether autograd carries the block's backward for ``micro_batch`` inside the backward of stage 0."""
        transpose = self.transpose
        return (
            transpose is not None
            and not transpose.frozen
            and transpose.backward == "central"
            and micro_batch not in self.separate_backward
        )

    def runs_in_forward(self, micro_batch: int) -> bool:
        """Tell whether ``0F m`` runs the block itself: a frozen block on rank 0 without a ``TF`` of its own."""
        return self.transpose is not None and self.transpose.frozen and micro_batch not in self.separate_forward

    def rank_of(self, action: Action) -> int | None:
        """Return the rank that ``action`` belongs to; None for a collective, which belongs to all."""
        stage, op, micro_batch = action
        if op not in PREPROCESS_OPS:
            return self._rank_of_stage[stage]
        if op in COLLECTIVE_OPS:
            return None
        if op in (Op.TF, Op.SEND_TF, Op.SEND_TX, Op.RECV_TB):
            assert micro_batch is not None
            return self.owner_of(micro_batch)
        if op is Op.TB:
            assert micro_batch is not None and self.transpose is not None
            return self.owner_of(micro_batch) if self.transpose.backward == "owner" else 0
        return 0

    def needs(self, action: Action) -> list[Need]:
        """Return what ``action`` needs; nothing for receives, which need their partner, and for ops without a rule."""
        if isinstance(action.op, CustomOp) or action.op not in self._needs:
            return []
        assert action.micro_batch is not None
        return self._needs[action.op](action.stage, action.micro_batch)

    def _needs_of_forward(self, stage: int, m: int) -> list[Need]:
        if stage > 0:
            producer = Action(stage - 1, Op.F, m)
            remote = self._rank_of_stage[stage - 1] != self._rank_of_stage[stage]
            return [Need(producer, Action(stage, Op.RECV_F, m) if remote else None)]
        if self.transpose is None or self.runs_in_forward(m):
            return []
        return [Need(Action(0, Op.TF, m), Action(0, Op.RECV_TF, m) if self.owner_of(m) != 0 else None)]

    def _needs_of_backward(self, stage: int, m: int) -> list[Need]:
        needs = [Need(Action(stage, Op.F, m))]
        if stage + 1 < self.shape.num_stages:
            remote = self._rank_of_stage[stage + 1] != self._rank_of_stage[stage]
            carrier = Action(stage, Op.RECV_B, m) if remote else None
            needs.append(Need(self.backward_of(stage + 1, m), carrier))
        return needs

    def _needs_of_preprocess_backward(self, stage: int, m: int) -> list[Need]:
        assert self.transpose is not None
        owner = self.owner_of(m)
        gradient = self.backward_of(0, m)
        if self.transpose.backward == "owner":
            return [Need(Action(0, Op.TF, m)), Need(gradient, Action(0, Op.RECV_TB, m) if owner != 0 else None)]
        needs = [Need(gradient)]
        if owner != 0:
            needs.append(Need(Action(0, Op.TF, m), Action(0, Op.RECV_TX, m)))
        return needs

    def required(self) -> Iterator[Action]:
        """Yield every action a lowered plan must hold exactly once, collectives once per rank aside.

        Where a plan may choose (B, or I and W) the choice it made is followed.
        """
        for stage, rank in enumerate(self._rank_of_stage):
            sends = stage + 1 < self.shape.num_stages and self._rank_of_stage[stage + 1] != rank
            receives = stage > 0 and self._rank_of_stage[stage - 1] != rank
            for m in range(self.shape.num_micro_batches):
                yield Action(stage, Op.F, m)
                yield self.backward_of(stage, m)
                if (stage, m) in self.split:
                    yield Action(stage, Op.W, m)
                if sends:
                    yield Action(stage, Op.SEND_F, m)
                    yield Action(stage, Op.RECV_B, m)
                if receives:
                    yield Action(stage, Op.RECV_F, m)
                    yield Action(stage, Op.SEND_B, m)
        if self.transpose is not None:
            for m in range(self.shape.num_micro_batches):
                yield from self._required_of_block(m, self.transpose)

    def _required_of_block(self, m: int, transpose: Transpose) -> Iterator[Action]:
        owner = transpose.owners[m]
        inline = owner == 0 and m >= self.num_transposed
        if not (inline and self.runs_in_forward(m)):
            yield Action(0, Op.TF, m)
        travels = []
        if owner != 0:
            travels += [Op.SEND_TF, Op.RECV_TF]
        if not transpose.frozen:
            if transpose.backward == "owner" or transpose.explicit_backward or not inline:
                yield Action(0, Op.TB, m)
            if owner != 0:
                travels += [Op.SEND_TX, Op.RECV_TX] if transpose.backward == "central" else [Op.SEND_TB, Op.RECV_TB]
        for op in travels:
            yield Action(0, op, m)

    def required_collectives(self, schedule: str) -> tuple[Op, ...]:
        """Return the collectives that every rank must hold exactly once."""
        transpose = self.transpose
        if transpose is None or transpose.frozen:
            return ()
        collectives = (Op.BCAST_T, Op.REDUCE_T) if transpose.backward == "owner" else (Op.BCAST_T,)
        if schedule == "mpipe" or any(transpose.owners):
            return collectives
        # Rank 0 owns everything, so nothing needs to travel. Orders from a file, whose schedule isn't known, may still
        # be published MPipe's, which always broadcasts.
        return tuple(op for op in collectives if op in self.ops)
