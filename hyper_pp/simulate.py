"""Price a plan: when every action runs if ranks keep to their orders, and how close that is to the best possible."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hyper_pp.actions import COLLECTIVE_OPS, COMPUTE_OPS, Action, Op, Order
from hyper_pp.bound import lower_bound
from hyper_pp.costs import Costs, Prices
from hyper_pp.dependencies import Dependencies, Need
from hyper_pp.errors import ScheduleError
from hyper_pp.grid import excerpt
from hyper_pp.plan import Plan
from hyper_pp.verify import peak_activations


class TimedAction(NamedTuple):
    """An action with its start and end."""

    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """When every action ran, by simulation or by measurement.

    Args:
        ranks: For each rank its compute actions, in order.
        collectives: What all ranks did together, beside their compute.
    """

    ranks: tuple[tuple[TimedAction, ...], ...]
    collectives: tuple[TimedAction, ...] = ()

    @property
    def end(self) -> float:
        """End of the last action or collective."""
        ends = [row[-1].end for row in self.ranks if row]
        return max(ends + [collective.end for collective in self.collectives], default=0.0)


@dataclass(frozen=True)
class Simulation:
    """What :func:`simulate` found out of a plan; times are in the unit of the costs.

    Args:
        plan: The plan that was simulated.
        costs: What its actions cost.
        timeline: When each action ran.
        step_time: End of the last action or collective.
        busy: For each rank, the time it computes.
        useful: Work of all ranks together that is no repetition of earlier work.
        lower_bound: No order of the same actions on the same ranks takes less.
        peak_activations: For each rank, the most stage inputs live at a time.
        peak_preprocess: For each rank, the most graphs of the preprocess block live at a time.
    """

    plan: Plan
    costs: Costs
    timeline: Timeline
    step_time: float
    busy: tuple[float, ...]
    useful: float
    lower_bound: float
    peak_activations: tuple[int, ...]
    peak_preprocess: tuple[int, ...]

    @property
    def idle(self) -> tuple[float, ...]:
        """For each rank, the time it doesn't compute."""
        return tuple(max(0.0, self.step_time - busy) for busy in self.busy)

    @property
    def bubble_ratio(self) -> float:
        """The share of all ranks' time that is idle."""
        return _ratio(math.fsum(self.idle), len(self.busy) * self.step_time, otherwise=0.0)

    @property
    def ideal(self) -> float:
        """Step time if the useful work were spread evenly over the ranks, without any bubble."""
        return self.useful / len(self.busy)

    @property
    def efficiency(self) -> float:
        """Ideal over step time: what bubbles, imbalance and repeated work leave."""
        return _ratio(self.ideal, self.step_time)

    @property
    def ratio(self) -> float:
        """Step time over the lower bound."""
        return _ratio(self.step_time, self.lower_bound)

    def to_json(self) -> dict[str, Any]:
        """Return the numbers, as ``hyper-pp simulate --format json`` prints them."""
        ranks = zip(self.busy, self.idle, self.peak_activations, self.peak_preprocess)
        return {
            "schedule": self.plan.schedule,
            "step_time": self.step_time,
            "ideal": self.ideal,
            "efficiency": self.efficiency,
            "lower_bound": self.lower_bound,
            "ratio": self.ratio,
            "bubble_ratio": self.bubble_ratio,
            "ranks": [
                {"busy": busy, "idle": idle, "peak_activations": activations, "peak_preprocess": preprocess}
                for busy, idle, activations, preprocess in ranks
            ],
        }


def simulate(plan: Plan, costs: Costs | None = None) -> Simulation:
    """Run a plan on given costs.

    A rank does its compute actions in its order, each as soon as the rank is free and what the action needs is there.
    A message to another rank arrives ``comm`` after its producer's end and never queues or occupies a rank, so that
    lowered and compute-only plans take the same time. A collective starts when the last rank has done the compute
    before it, and occupies no rank.

    Args:
        plan: Of any schedule; ``verify`` tells whether it can run at all.
        costs: Durations, by default F=1, B=2, I=1, W=1, TF=1, TB=2, and nothing for communication.

    Returns:
        Step time, timeline, and what there is to compare them with.

    Raises:
        ScheduleError: The orders wait for each other.
        ValueError: Costs per stage are for another number of stages, or sum to more than a float can hold.
    """
    costs = Costs() if costs is None else costs
    dependencies = Dependencies(plan.shape, plan.transpose, plan.orders)
    run = _Run(plan, costs, dependencies)
    timeline = run.timeline()
    step_time = timeline.end
    if not math.isfinite(step_time * len(timeline.ranks)):
        raise ValueError("the costs are so large that their sum is infinite; use a larger unit of time")
    busy = tuple(math.fsum(run.durations[action] for action, _, _ in row) for row in timeline.ranks)
    useful = math.fsum(busy) - math.fsum(run.prices.repeated(item.action) for row in timeline.ranks for item in row)
    bound = lower_bound(run.done, run.durations, plan.shape.num_ranks, costs.comm)
    return Simulation(
        plan=plan,
        costs=costs,
        timeline=timeline,
        step_time=step_time,
        busy=busy,
        useful=useful,
        # Both add up the same durations, in different orders: where they meet, rounding must not put one above.
        lower_bound=step_time if math.isclose(bound, step_time, rel_tol=1e-9) else bound,
        peak_activations=tuple(map(peak_activations, plan.orders)),
        peak_preprocess=tuple(_peak_preprocess(order, dependencies) for order in plan.orders),
    )


class _Run:
    """One walk through the orders, rank by rank as far as each can go."""

    def __init__(self, plan: Plan, costs: Costs, dependencies: Dependencies) -> None:
        self.orders = plan.orders
        self.costs = costs
        self.dependencies = dependencies
        self.prices = Prices(costs, dependencies)
        self.durations: dict[Action, float] = {}
        self.done: list[tuple[Action, int | None, Sequence[Need]]] = []  # in an order that no need contradicts
        self.ends: dict[Action, float] = {}
        self.free = [0.0] * len(plan.orders)  # when each rank has done its compute so far
        self.waiting: dict[Action, list[int]] = {}
        self.ready = deque(range(len(plan.orders)))
        self.arrivals: dict[Action, list[float]] = {}
        self.collectives: list[TimedAction] = []

    def timeline(self) -> Timeline:
        rows: list[list[TimedAction]] = [[] for _ in self.orders]
        position = [0] * len(self.orders)
        while self.ready:
            rank = self.ready.popleft()
            order = self.orders[rank]
            while position[rank] < len(order):
                action = order[position[rank]]
                if action.op in COLLECTIVE_OPS:
                    self._arrive(action, rank)
                elif action.op in COMPUTE_OPS:
                    needs = self.dependencies.needs(action)
                    start = self._start(needs, rank)
                    if start is None:
                        break
                    self._finish(action, rank, start, needs)
                    rows[rank].append(TimedAction(action, start, self.free[rank]))
                position[rank] += 1
        if any(at < len(order) for at, order in zip(position, self.orders)):
            self._report(position)
        return Timeline(tuple(map(tuple, rows)), tuple(self.collectives))

    def _start(self, needs: Sequence[Need], rank: int) -> float | None:
        """Return when the rank can start what needs these, or leave word for the first that isn't done."""
        start = self.free[rank]
        for producer, carrier in needs:
            end = self.ends.get(producer)
            if end is None:
                self.waiting.setdefault(producer, []).append(rank)
                return None
            start = max(start, end + self.costs.comm if carrier else end)
        return start

    def _finish(self, action: Action, rank: int, start: float, needs: Sequence[Need]) -> None:
        duration = self.durations[action] = self.prices.duration(action)
        self.free[rank] = self.ends[action] = start + duration
        self.done.append((action, rank, needs))
        self.ready.extend(self.waiting.pop(action, ()))

    def _arrive(self, action: Action, rank: int) -> None:
        arrivals = self.arrivals.setdefault(action, [])
        arrivals.append(self.free[rank])
        if len(arrivals) < len(self.orders):
            return
        start = max(arrivals)
        self.durations[action] = self.costs.collective
        self.ends[action] = start + self.costs.collective
        self.collectives.append(TimedAction(action, start, self.ends[action]))
        self.done.append((action, None, ()))
        self.ready.extend(self.waiting.pop(action, ()))

    def _report(self, position: Sequence[int]) -> None:
        waits = ", ".join(
            f"rank {rank} at {order[at]}"
            for rank, (at, order) in enumerate(zip(position, self.orders))
            if at < len(order)
        )
        raise ScheduleError(f"the orders wait for each other: {waits}", excerpt(self.orders, position))


def _peak_preprocess(order: Order, dependencies: Dependencies) -> int:
    """Return the most graphs of the preprocess block that one rank's order holds at a time.

    A graph lives from its forward to its backward. Where the backward recomputes, the graph lives only while that runs.
    """
    transpose = dependencies.transpose
    if transpose is None or transpose.frozen:
        return 0
    by_owner = transpose.backward == "owner" and not transpose.recompute
    live = peak = 0
    for action in order:
        stage, op, m = action
        if m is None or stage != 0:
            continue
        kept = by_owner or dependencies.is_connected(m)
        if op is Op.TF and kept:
            live += 1
            peak = max(peak, live)
        elif op is Op.TB and not kept:
            peak = max(peak, live + 1)
        elif (op is Op.TB and by_owner) or (kept and not by_owner and action == dependencies.backward_of(0, m)):
            live -= 1
    return peak


def _ratio(part: float, whole: float, otherwise: float = 1.0) -> float:
    """Return part / whole; a step in which nothing takes any time has neither bubble nor loss."""
    return part / whole if whole > 0 else otherwise
