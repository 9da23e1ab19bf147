"""A lower bound on the step time that holds for every order of the same actions on the same ranks."""

import heapq
from collections.abc import Mapping, Sequence

from hyper_pp.actions import Action, Op
from hyper_pp.dependencies import Need


def lower_bound(
    actions: Sequence[tuple[Action, int | None, Sequence[Need]]],
    durations: Mapping[Action, float],
    num_ranks: int,
    comm: float,
) -> float:
    """Return the maximum over ranks of Jackson's preemptive one-machine bound.

    Args:
        actions: Every compute action and collective, each after all that it needs: action, its rank (None for a
            collective, which occupies no rank) and its needs.
        durations: Of the same actions.
        num_ranks: P.
        comm: Latency of a message between two ranks.

    Returns:
        The bound, in the unit of the durations.

    Source: Jackson (1955); Carlier, The one-machine sequencing problem (1982): with a head (the longest path that must
    run before) and a tail (the longest that must run after) for each job, no order without preemption is faster than
    the preemptive order by largest tail.
    """
    heads: dict[Action, float] = {}
    for action, _, needs in actions:
        head = 0.0
        for producer, carrier in needs:
            ready = heads[producer] + durations[producer] + (comm if carrier else 0.0)
            head = max(head, ready)
        heads[action] = head
    reduction = max((durations[action] for action, _, _ in actions if action.op is Op.REDUCE_T), default=0.0)
    # The sum of the block's gradients needs every one of its backwards, on whatever rank.
    tails = {action: reduction if action.op is Op.TB else 0.0 for action, _, _ in actions}
    for action, _, needs in reversed(actions):
        behind = durations[action] + tails[action]
        for producer, carrier in needs:
            tails[producer] = max(tails[producer], behind + (comm if carrier else 0.0))
    jobs: list[list[tuple[float, float, float]]] = [[] for _ in range(num_ranks)]
    for action, rank, _ in actions:
        if rank is not None:
            jobs[rank].append((heads[action], durations[action], tails[action]))
    return max(map(one_machine_bound, jobs), default=0.0)


def one_machine_bound(jobs: Sequence[tuple[float, float, float]]) -> float:
    """Return the length of Jackson's preemptive schedule of jobs on one machine.

    Args:
        jobs: (head, duration, tail) of each job: it can't start before its head and delivers its tail after its end.
    """
    releases = sorted(jobs)
    waiting: list[tuple[float, float]] = []  # minus the tail, and what is left to run
    time = longest = 0.0
    released = 0
    while waiting or released < len(releases):
        if not waiting:
            time = max(time, releases[released][0])
        while released < len(releases) and releases[released][0] <= time:
            _, duration, tail = releases[released]
            heapq.heappush(waiting, (-tail, duration))
            released += 1
        minus_tail, left = heapq.heappop(waiting)
        interruption = releases[released][0] if released < len(releases) else None
        if interruption is not None and time + left > interruption:
            heapq.heappush(waiting, (minus_tail, left - (interruption - time)))
            time = interruption
        else:
            time += left
            longest = max(longest, time - minus_tail)
    return longest
