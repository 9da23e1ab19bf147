"""Prove that a plan does a whole training step, in an order that can't go wrong or hang; or say where it does."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from hyper_pp.actions import (
    BODY_P2P_OPS,
    RECV_OPS,
    SEND_OPS,
    SHARDING_OPS,
    Action,
    CustomOp,
    Op,
    partner,
)
from hyper_pp.dependencies import Dependencies
from hyper_pp.errors import ScheduleError
from hyper_pp.grid import excerpt
from hyper_pp.plan import Plan
from hyper_pp.rendezvous import run_rendezvous, run_two_queues


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
    if plan.compute_only:
        _Checks(plan).presence()
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
    split = {(action.stage, action.micro_batch) for action in order if action.op is Op.I}
    live = peak = 0
    for stage, op, m in order:
        if op is Op.F:
            live += 1
            peak = max(peak, live)
        elif op is Op.W or (op is Op.B and (stage, m) not in split):
            live -= 1
    return peak


class _Checks:
    """The rules, one method each, over a plan whose positions are looked up once."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.dependencies = Dependencies(plan.shape, plan.transpose, plan.orders)
        self.positions: list[dict[Action, int]] = [{} for _ in plan.orders]

    def fail(self, reason: str, rank: int | None = None, step: int = 0) -> NoReturn:
        marks: list[int | None] = [None] * len(self.plan.orders)
        if rank is not None:
            marks[rank] = step
        raise ScheduleError(reason, excerpt(self.plan.orders, marks))

    def presence(self) -> None:
        """Every required action exactly once and on the right rank, and nothing else."""
        dependencies = self.dependencies
        for rank, order in enumerate(self.plan.orders):
            seen = self.positions[rank]
            for step, action in enumerate(order):
                home = dependencies.rank_of(action)
                if home is not None and home != rank:
                    self.fail(f"{action} is on rank {rank}, but belongs on rank {home}", rank, step)
                repeatable = action.op in SHARDING_OPS or (
                    isinstance(action.op, CustomOp) and action.micro_batch is None
                )
                if action in seen and not repeatable:
                    self.fail(f"{action} is twice in rank {rank}'s order (steps {seen[action]} and {step})", rank, step)
                seen[action] = step
        required = set(dependencies.required())
        if self.plan.compute_only:
            required = {action for action in required if action.op not in BODY_P2P_OPS}
        for action in sorted(required, key=lambda action: (action.micro_batch or 0, action.stage, action.op.value)):
            home = dependencies.rank_of(action)
            assert home is not None
            if action not in self.positions[home]:
                self._report_missing(action, home)
        collectives = dependencies.required_collectives(self.plan.schedule)
        for rank, seen in enumerate(self.positions):
            for op in collectives:
                if Action(0, op) not in seen:
                    self.fail(f"0{op} is missing in rank {rank}'s order", rank)
            for action, step in seen.items():
                optional = isinstance(action.op, CustomOp) or action.op in SHARDING_OPS or action.op in collectives
                if action not in required and not optional and not self._is_extra_forward(action):
                    self.fail(f"{action} is in rank {rank}'s order, but nothing needs it", rank, step)

    def _is_extra_forward(self, action: Action) -> bool:
        transpose = self.plan.transpose
        return action.op is Op.TF and transpose is not None and transpose.frozen

    def _report_missing(self, action: Action, rank: int) -> NoReturn:
        kind = f"{action} is missing in rank {rank}'s order"
        if action.op is Op.W:
            kind += f", which has its other half {Action(action.stage, Op.I, action.micro_batch)}"
        elif action.op in SEND_OPS or action.op in RECV_OPS:
            other = partner(action)
            home = self.dependencies.rank_of(other)
            if home is not None and other in self.positions[home]:
                kind += f": {other} on rank {home} has no partner"
        m = action.micro_batch or 0
        before = [step for (stage, op, n), step in self.positions[rank].items() if op is action.op and n == m - 1]
        self.fail(kind, rank, max(before, default=-1) + 1)

    def order(self) -> None:
        """Every action after what it needs on its own rank."""
        for rank, order in enumerate(self.plan.orders):
            positions = self.positions[rank]
            for step, action in enumerate(order):
                if isinstance(action.op, CustomOp):
                    self._order_of_custom(rank, step, action, action.op)
                for need in self.dependencies.needs(action):
                    # Presence was checked, so a need that isn't in this order is not a need of this plan.
                    if positions.get(need.local, -1) >= step:
                        self.fail(f"{action} comes before {need.local}, which it needs", rank, step)
                if action.op is Op.REDUCE_T:
                    late = next((other for other in order[step:] if other.op is Op.TB), None)
                    if late is not None:
                        self.fail(f"{action} comes before {late}, whose gradients it sums", rank, step)

    def _order_of_custom(self, rank: int, step: int, action: Action, op: CustomOp) -> None:
        for other, place in self.positions[rank].items():
            if other.stage != action.stage or (
                action.micro_batch is not None and other.micro_batch != action.micro_batch
            ):
                continue
            if other.op in op.after and place > step:
                self.fail(f"{action} comes before {other}, but was declared to come after {other.op}", rank, step)
            if other.op in op.before and place < step:
                self.fail(f"{action} comes after {other}, but was declared to come before {other.op}", rank, step)

    def sharding(self) -> None:
        """A stage with UNSHARD computes only while unsharded; REDUCE_GRAD comes after its last backward."""
        for rank, order in enumerate(self.plan.orders):
            managed = {action.stage for action in order if action.op is Op.UNSHARD}
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
        """The orders run through with blocking rendezvous, and what that implies, with two queues per rank."""
        stop = run_rendezvous(self.plan.orders, self.dependencies.rank_of)
        if stop is None:
            return
        relaxed = run_two_queues(self.plan.orders, self.dependencies)
        verdict = (
            "only under blocking rendezvous; with separate compute and communication queues it would run"
            if relaxed is None
            else "under blocking rendezvous, and with separate compute and communication queues too"
        )
        waits = ", ".join(
            f"rank {rank} waits at {self.plan.orders[rank][step]}"
            for rank, step in enumerate(stop)
            if step < len(self.plan.orders[rank])
        )
        raise ScheduleError(f"deadlock {verdict}: {waits}", excerpt(self.plan.orders, stop))

    def memory(self, peaks: Sequence[int], limit: int | Sequence[int]) -> None:
        """Live stage inputs within the limit."""
        limits = [limit] * len(peaks) if isinstance(limit, int) else list(limit)
        if len(limits) != len(peaks):
            raise ValueError(f"max_activations needs one number per rank (ranks: {len(peaks)}, got {len(limits)})")
        for rank, (peak, most) in enumerate(zip(peaks, limits)):
            if peak > most:
                step = _first_above(self.plan.orders[rank], most)
                self.fail(f"rank {rank} holds {peak} stage inputs at a time, the limit is {most}", rank, step)


def _first_above(order: Sequence[Action], most: int) -> int:
    return next(step for step in range(len(order)) if peak_activations(order[: step + 1]) > most)
