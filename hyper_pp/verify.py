"""Prove that a plan does a whole training step, in an order that can't go wrong or hang; or say where it does."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from hyper_pp.actions import (
    BODY_P2P_OPS,
    RECV_OPS,
    SEND_OPS,
    SHARDING_OPS,
    WITHOUT_MICRO_BATCH,
    Action,
    AnyOp,
    CustomOp,
    Op,
    partner,
)
from hyper_pp.dependencies import Dependencies
from hyper_pp.errors import ScheduleError
from hyper_pp.grid import excerpt
from hyper_pp.plan import Plan
from hyper_pp.rendezvous import run_rendezvous, run_two_queues

_TABLED_OPS = frozenset(Op) - WITHOUT_MICRO_BATCH


@dataclass(frozen=True)
class Verification:
    """What :func:`verify` found out of a plan that holds.

    Args:
        num_actions: Actions of the lowered plan, all ranks together.
        peak_activations: For each rank, the most stage inputs live at a time (from F to the end of B or W).
    """

    num_actions: int
    peak_activations: tuple[int, ...]


def verify(plan: Plan, *, max_activations: int | Sequence[int] | None = None) -> Verification:
    """Prove a plan, or raise.

    Every required action is there exactly once and on the right rank; every action comes after what it needs; every
    send has exactly one receive; and executing the orders can't deadlock where each rank does one action at a time and
    transfers and collectives complete only when all partners have arrived. A compute-only plan is lowered first.

    Args:
        plan: Of any schedule, or from a file.
        max_activations: Most live stage inputs allowed on a rank, one number or one per rank; None for no limit.

    Returns:
        Numbers of the proved plan.

    Raises:
        ScheduleError: A rule is broken; the error holds a one-line reason and the rank × step grid around the fault.
    """
    _refuse_hopeless(plan)
    if plan.compute_only:
        compute_checks = _Checks(plan)
        compute_checks.presence()
        compute_checks.order()  # lowering would say of a misplaced action only that everybody waits
        plan = plan.lowered()
    checks = _Checks(plan)
    checks.presence()
    checks.order()
    checks.sharding()
    checks.deadlock()
    peaks = tuple(map(peak_activations, plan.orders))
    if max_activations is not None:
        checks.memory(peaks, max_activations)
    return Verification(plan.num_actions, peaks)


def peak_activations(order: Sequence[Action]) -> int:
    """Return the most stage inputs that are live at a time in one rank's order."""
    live = peak = 0
    for _, op, _ in order:
        if op is Op.F:
            live += 1
            if live > peak:
                peak = live
        elif op is Op.B or op is Op.W:
            live -= 1
    return peak


class _Checks:
    """The rules, one method each, over a plan whose steps are looked up once."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.dependencies = Dependencies(plan.shape, plan.transpose, plan.orders)
        # Where each action stands in its rank's order. Ops that belong to a micro-batch get a flat table of their own,
        # -1 for absent: on long orders that is far less memory to walk than a dictionary of actions.
        absent = array("l", [-1]) * (plan.shape.num_stages * plan.shape.num_micro_batches)
        self.steps: dict[AnyOp, array[int]] = {op: absent[:] for op in self.dependencies.ops if op in _TABLED_OPS}
        self.absent = absent
        self.others: list[dict[Action, int]] = [{} for _ in plan.orders]  # the last step of everything else

    def fail(self, reason: str, rank: int | None = None, step: int = 0) -> NoReturn:
        marks: list[int | None] = [None] * len(self.plan.orders)
        if rank is not None:
            marks[rank] = step
        raise ScheduleError(reason, excerpt(self.plan.orders, marks))

    def step_of(self, action: Action) -> int:
        """Return where an action of a micro-batch stands in its rank's order, -1 if nowhere."""
        stage, op, m = action
        assert m is not None
        return self.steps.get(op, self.absent)[stage * self.plan.shape.num_micro_batches + m]

    def presence(self) -> None:
        """Every required action exactly once and on the right rank, and nothing else."""
        rank_of, num_micro_batches = self.dependencies.rank_of, self.plan.shape.num_micro_batches
        for rank, order in enumerate(self.plan.orders):
            others = self.others[rank]
            for step, action in enumerate(order):
                home = rank_of(action)
                if home != rank and home is not None:
                    self.fail(f"{action} is on rank {rank}, but belongs on rank {home}", rank, step)
                stage, op, m = action
                if op in _TABLED_OPS:
                    assert m is not None
                    table, slot = self.steps[op], stage * num_micro_batches + m
                    first = table[slot]
                    table[slot] = step
                else:
                    first = -1 if _may_repeat(action) else others.get(action, -1)
                    others[action] = step
                if first >= 0:
                    self.fail(f"{action} is twice in rank {rank}'s order (steps {first} and {step})", rank, step)
        self._nothing_missing()
        self._nothing_extra()

    def _required(self) -> Iterator[Action]:
        required = self.dependencies.required()
        if self.plan.compute_only:
            return (action for action in required if action.op not in BODY_P2P_OPS)
        return required

    def _nothing_missing(self) -> None:
        missing = [action for action in self._required() if self.step_of(action) < 0]
        if missing:
            self._report_missing(min(missing, key=lambda action: (action.micro_batch, action.stage, action.op.value)))
        for rank, others in enumerate(self.others):
            for op in self.dependencies.required_collectives(self.plan.schedule):
                if Action(0, op) not in others:
                    self.fail(f"0{op} is missing in rank {rank}'s order", rank)

    def _report_missing(self, action: Action) -> NoReturn:
        rank = self.dependencies.rank_of(action)
        assert rank is not None
        kind = f"{action} is missing in rank {rank}'s order"
        if action.op is Op.W:
            kind += f", which has its other half {Action(action.stage, Op.I, action.micro_batch)}"
        elif action.op in SEND_OPS or action.op in RECV_OPS:
            other = partner(action)
            if self.step_of(other) >= 0:
                kind += f": {other} on rank {self.dependencies.rank_of(other)} has no partner"
        # Point to where the same action of the micro-batch before it stands, since this one belongs somewhere behind.
        before = -1
        if action.micro_batch:
            previous = Action(action.stage, action.op, action.micro_batch - 1)
            if self.dependencies.rank_of(previous) == rank:
                before = self.step_of(previous)
        self.fail(kind, rank, before + 1)

    def _nothing_extra(self) -> None:
        # All that is required is there, so anything else is there too exactly if the numbers differ.
        collectives = self.dependencies.required_collectives(self.plan.schedule)
        optional = {
            op for op in self.dependencies.ops if op in SHARDING_OPS or op in collectives or isinstance(op, CustomOp)
        }
        num_held = self.plan.num_actions
        if optional:
            num_held -= sum(op in optional for order in self.plan.orders for _, op, _ in order)
        if num_held == sum(1 for _ in self._required()):
            return
        required = set(self._required())
        for rank, order in enumerate(self.plan.orders):
            for step, action in enumerate(order):
                if action not in required and action.op not in optional:
                    self.fail(f"{action} is in rank {rank}'s order, but nothing needs it", rank, step)

    def order(self) -> None:
        """Every action after what it needs on its own rank."""
        needs, steps = self.dependencies.needs, self.steps
        num_micro_batches = self.plan.shape.num_micro_batches
        for rank, order in enumerate(self.plan.orders):
            for step, action in enumerate(order):
                if isinstance(action.op, CustomOp):
                    self._order_of_custom(rank, step, action, action.op)
                for producer, carrier in needs(action):
                    # Presence was checked, so a need that isn't in this order is not a need of this plan.
                    stage, op, m = local = carrier or producer
                    if m is None:
                        late = self.others[rank].get(local, -1) >= step
                    else:
                        late = op in steps and steps[op][stage * num_micro_batches + m] >= step
                    if late:
                        self._report_order(action, local, rank, step)
                if action.op is Op.REDUCE_T:
                    last = next((other for other in order[step:] if other.op is Op.TB), None)
                    if last is not None:
                        self.fail(f"{action} comes before {last}, whose gradients it sums", rank, step)

    def _order_of_custom(self, rank: int, step: int, action: Action, op: CustomOp) -> None:
        if action.micro_batch is None:
            micro_batches: Sequence[int] = range(self.plan.shape.num_micro_batches)
        else:
            micro_batches = (action.micro_batch,)
        for other_op in op.after + op.before:
            if other_op in _TABLED_OPS:
                others = [Action(action.stage, other_op, m) for m in micro_batches]
                places = [(other, self.step_of(other)) for other in others]
            else:
                other = Action(action.stage, other_op)
                places = [(other, self.others[rank].get(other, -1))]
            for other, place in places:
                if place > step and other_op in op.after:
                    self.fail(f"{action} comes before {other}, but was declared to come after {other_op}", rank, step)
                if 0 <= place < step and other_op in op.before:
                    self.fail(f"{action} comes after {other}, but was declared to come before {other_op}", rank, step)

    def sharding(self) -> None:
        """A stage with UNSHARD computes only while unsharded; REDUCE_GRAD comes after its last backward."""
        if self.dependencies.ops.isdisjoint(SHARDING_OPS):
            return
        for rank, order in enumerate(self.plan.orders):
            managed = {stage for stage, op, _ in order if op is Op.UNSHARD}
            whole: set[int] = set()
            reduced: set[int] = set()
            for step, action in enumerate(order):
                stage, op, _ = action
                if op is Op.UNSHARD:
                    whole.add(stage)
                elif op is Op.RESHARD:
                    whole.discard(stage)
                elif op is Op.REDUCE_GRAD:
                    reduced.add(stage)
                elif op in (Op.F, Op.B, Op.I, Op.W):
                    if stage in managed and stage not in whole:
                        self.fail(f"{action} runs while stage {stage} is sharded: {stage}UNSHARD first", rank, step)
                    if stage in reduced and op is not Op.F:
                        self.fail(f"{action} comes after {stage}REDUCE_GRAD, which sums its gradients", rank, step)

    def deadlock(self) -> None:
        """The orders run through with blocking rendezvous."""
        stop = run_rendezvous(self.plan.orders, self.dependencies.rank_of)
        if stop is None:
            return
        waits = ", ".join(
            f"rank {rank} waits at {self.plan.orders[rank][step]}"
            for rank, step in enumerate(stop)
            if step < len(self.plan.orders[rank])
        )
        raise ScheduleError(f"{self._verdict()}: {waits}", excerpt(self.plan.orders, stop))

    def _report_order(self, action: Action, need: Action, rank: int, step: int) -> NoReturn:
        # A rank that does one action at a time never gets to what comes behind. Two queues may: a receive that stands
        # behind its use is no fault there. Transfers that cross, on the other hand, hang in both models.
        verdict = "" if self.plan.compute_only else f": {self._verdict()}"
        self.fail(f"{action} comes before {need}, which it needs{verdict}", rank, step)

    def _verdict(self) -> str:
        """Say of orders that fail with blocking rendezvous whether two queues per rank would run them."""
        if run_two_queues(self.plan.orders, self.dependencies) is None:
            return (
                "deadlock only under blocking rendezvous; with separate compute and communication queues it would run"
            )
        return "deadlock under blocking rendezvous, and with separate compute and communication queues too"

    def memory(self, peaks: Sequence[int], limit: int | Sequence[int]) -> None:
        """Live stage inputs within the limit."""
        limits = [limit] * len(peaks) if isinstance(limit, int) else list(limit)
        if len(limits) != len(peaks):
            raise ValueError(f"max_activations needs one number per rank (ranks: {len(peaks)}, got {len(limits)})")
        for rank, (peak, most) in enumerate(zip(peaks, limits)):
            if peak > most:
                step = _first_above(self.plan.orders[rank], most)
                self.fail(f"rank {rank} holds {peak} stage inputs at a time, the limit is {most}", rank, step)


def _refuse_hopeless(plan: Plan) -> None:
    """Refuse a file whose shape needs far more actions than it holds, before tables of that shape are made."""
    shape = plan.shape
    if plan.num_actions >= shape.num_stages * shape.num_micro_batches:
        return
    held = {action for order in plan.orders for action in order}
    wanted = (Action(s, Op.F, m) for m in range(shape.num_micro_batches) for s in range(shape.num_stages))
    missing = next(action for action in wanted if action not in held)
    needed = shape.num_stages * shape.num_micro_batches
    raise ScheduleError(
        f"{missing} is missing in rank {shape.rank_of(missing.stage)}'s order "
        f"({shape} needs {needed} forwards, the plan holds {plan.num_actions} actions)"
    )


def _may_repeat(action: Action) -> bool:
    return action.op in SHARDING_OPS or (isinstance(action.op, CustomOp) and action.micro_batch is None)


def _first_above(order: Sequence[Action], most: int) -> int:
    return next(step for step in range(len(order)) if peak_activations(order[: step + 1]) > most)
