"""Schedule chains of operations on machines: list scheduling with gap insertion, improved forwards and backwards.

A training step with a preprocess block is a job shop. A micro-batch is a job, a chain of operations: the block's
forward on its owner, the forwards of the stages, their backwards, the block's backward on the owner. A rank is a
machine that does one operation at a time. Limits on memory are further precedences between jobs.

*Serial list scheduling* takes the operations by priority and puts each into the earliest gap of its machine that is
long enough: so operations of low priority, such as a block's backward, fill idle time without delaying what came before
them. *Forward-backward improvement* does the same from the end of the schedule, by latest ends, which moves every
operation as late as it can be; then again from the start, by those times. Where all operations take time, neither
direction makes the schedule longer, and what was idle in the middle is gathered where it can be used.

Source: Kolisch (1996) for the serial scheme, Li and Willis (1992) and Valls, Ballestín and Quintanilla (2005) for
forward-backward improvement.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

_ENDLESS = 1 << 100


@dataclass(frozen=True)
class JobShop:
    """Chains of equal length, job after job: operation k of job j has the number j·length + k.

    Times are ints, so that what fits exactly is seen to fit.

    Args:
        length: Operations of a job.
        num_machines: Machines.
        machine: Of each operation.
        duration: Of each operation.
        lag: Of each operation, the least time between the end of the one before it in its job and its start.
        wait_for: For each operation, one of an earlier job that must have ended before it starts; -1 for none.
        holds_up: The other direction of the same: the operation of a later job that waits for it; -1 for none.
        follows: For each operation, one of an earlier job on the same machine that must come before it; -1 for none.
        is_followed: The other direction of that.
    """

    length: int
    num_machines: int
    machine: Sequence[int]
    duration: Sequence[int]
    lag: Sequence[int]
    wait_for: Sequence[int]
    holds_up: Sequence[int]
    follows: Sequence[int]
    is_followed: Sequence[int]

    @property
    def size(self) -> int:
        """Number of operations."""
        return len(self.machine)


@dataclass(frozen=True)
class Schedule:
    """Starts and ends of all operations, and the end of the last; seen from the end, if it was made from there."""

    starts: Sequence[int]
    ends: Sequence[int]
    span: int


def forwards(shop: JobShop, priority: Sequence[int]) -> Schedule:
    """Put every operation, smallest priority first, into the earliest gap that is long enough.

    Args:
        shop: What there is to schedule.
        priority: Of each operation; not smaller than those of operations that must come before it.
    """
    # Sorting is stable and numbers rise along every precedence: equal priorities keep an order that is possible.
    order = sorted(range(shop.size), key=priority.__getitem__)
    return _place(shop, order, (shop.wait_for, shop.follows), first=0, step=-1)


def backwards(shop: JobShop, ends: Sequence[int]) -> Schedule:
    """Put every operation, largest end first, into the latest gap that is long enough.

    Returns:
        Times counted from the end of the schedule, backwards: an operation "starts" where it ends.
    """
    order = sorted(range(shop.size - 1, -1, -1), key=ends.__getitem__, reverse=True)
    return _place(shop, order, (shop.holds_up, shop.is_followed), first=shop.length - 1, step=1)


def _place(
    shop: JobShop, order: Sequence[int], other_jobs: tuple[Sequence[int], Sequence[int]], first: int, step: int
) -> Schedule:
    waits, follows = other_jobs
    length, machine, duration, lag = shop.length, shop.machine, shop.duration, shop.lag
    starts, ends = [0] * shop.size, [0] * shop.size
    # Each machine's gaps: where they begin and where they end, ascending.
    gap_begins = [[0] for _ in range(shop.num_machines)]
    gap_ends = [[_ENDLESS] for _ in range(shop.num_machines)]
    lag_step = 1 if step > 0 else 0  # the lag towards the operation that was placed before belongs to the later of both
    for op in order:
        earliest = 0 if op % length == first else ends[op + step] + lag[op + lag_step]
        other = waits[op]
        if other >= 0 and ends[other] > earliest:
            earliest = ends[other]
        other = follows[op]
        if other >= 0 and ends[other] > earliest:
            earliest = ends[other]
        needed = duration[op]
        begins, stops = gap_begins[machine[op]], gap_ends[machine[op]]
        gap = bisect_left(stops, earliest + needed)
        while True:
            begin, stop = begins[gap], stops[gap]
            start = begin if begin > earliest else earliest
            end = start + needed
            if end <= stop:
                break
            gap += 1
        starts[op], ends[op] = start, end
        if start > begin:
            if end < stop:
                begins.insert(gap + 1, end)
                stops.insert(gap, start)
            else:
                stops[gap] = start
        elif end < stop:
            begins[gap] = end
        else:
            del begins[gap], stops[gap]
    return Schedule(starts, ends, max(ends))


def improve(shop: JobShop, priority: Sequence[int], most_rounds: int, bound: int = 0) -> tuple[Schedule, int]:
    """Schedule by priority, then improve backwards and forwards while that makes the schedule shorter.

    Args:
        shop: What there is to schedule.
        priority: As for :func:`forwards`.
        most_rounds: Most backward-forward rounds.
        bound: No schedule is shorter: with one of that length the search ends.

    Returns:
        The shortest schedule met, and how many passes over all operations that took.
    """
    best = current = forwards(shop, priority)
    passes, without_gain = 1, 0
    for _ in range(most_rounds):
        if best.span <= bound or without_gain == 2:
            break
        late = backwards(shop, current.ends)
        current = forwards(shop, [-end for end in late.ends])
        passes += 2
        without_gain = 0 if current.span < best.span else without_gain + 1
        if current.span < best.span:
            best = current
    return best, passes


def made_consistent(shop: JobShop, priority: Sequence[int]) -> list[int]:
    """Return priorities of which none is larger than that of an operation that must come later."""
    result = list(priority)
    for op in range(shop.size - 1, -1, -1):
        if op % shop.length < shop.length - 1:
            result[op] = min(result[op], result[op + 1])
        for other in (shop.holds_up[op], shop.is_followed[op]):
            if other >= 0:
                result[op] = min(result[op], result[other])
    return result
