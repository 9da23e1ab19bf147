"""Search for the shortest step: templates and slight changes of the best, all improved by simulation."""

import math
from collections.abc import Iterator, Sequence

from hyper_pp.actions import Op
from hyper_pp.schedules.block_step import BlockStep, Sequences
from hyper_pp.schedules.block_templates import peak_of_interleaved, spread_sequences
from hyper_pp.schedules.list_scheduling import JobShop, Schedule, improve, made_consistent
from hyper_pp.shape import PipelineShape

# Operations placed, a million or two of which take a second: by templates, by these and shakes, by all.
_TEMPLATE_BUDGET, _SHAKE_BUDGET, _BUDGET = 250_000, 400_000, 500_000
_MOST_ROUNDS = 8
_UNPLANNED_LATENCY = 0.05  # in forwards of a stage

# In periods, the time a rank computes for one micro-batch; the most promising first.
_DELAYS = (1.0, 2.0, 0.5, 0.0, 8.0, 1000.0)
_LEADS = (0.0, 8.0, 1.0, 32.0)
_SHAKES = (0.3,) * 28 + (0.1, 1.0, 2.0, 0.3) * 40


def search(step: BlockStep, less_memory: bool) -> Sequences:
    """Return the best sequences found of a step that holds no more stage inputs than ``interleaved``.

    A template ranks the body's operations by when they would run in ``interleaved``, a block's forward some lead before
    stage 0 takes its output, and a block's backward some delay after stage 0 has made its gradient. With little lead or
    delay the block rather holds up the body than waits; with much of it, it only fills gaps. Templates differ too in
    how many micro-batches may be in the body at a time: more of them keep later ranks busy while one works on the
    block. What remains of the budget goes into schedules whose priorities are the best schedule's start times, shaken a
    little. In the end, fewer micro-batches are let into the body if that takes no longer: less memory for nothing.
    Of steps that take as long, the best is that which suffers least where messages are slower than was planned for.

    Args:
        step: What there is to schedule.
        less_memory: The limit is that of ``interleaved`` with ``less_memory``.
    """
    found = _Search(step, less_memory)
    found.templates()
    found.shakes()
    found.narrow()
    return found.sequences


class _Search:
    def __init__(self, step: BlockStep, less_memory: bool) -> None:
        self.step = step
        self.durations = step.whole_durations()
        self.nominal = step.run(spread_sequences(step, less_memory), self.durations)
        body = self.durations.chain[1 : step.last_backward + 1]
        self.period = sum(body) / step.shape.num_ranks
        self.most_inputs = peak_of_interleaved(step.shape, less_memory)
        self.bound = int(step.bound(self.durations))
        self.placed = 0
        self.shops: dict[int, JobShop] = {}
        self.best: Schedule | None = None
        self.window = 0  # of the best
        self.sequences: Sequences = ()
        # Of two steps of one length, the better is the one that unplanned latency makes less longer.
        forwards = self.durations.chain[1 : step.shape.num_stages + 1]
        latency = self.durations.comm + _UNPLANNED_LATENCY * sum(forwards) / len(forwards)
        self.late = self.durations._replace(comm=latency)
        self.late_end = math.inf

    @property
    def at_bound(self) -> bool:
        return self.best is not None and self.best.span <= self.bound

    def templates(self) -> None:
        for delay in _DELAYS:
            for lead in _LEADS:
                priority = self._priority(round(lead * self.period), round(delay * self.period))
                for window in windows(self.step.shape, self.most_inputs):
                    if self.best is not None and (self.at_bound or self.placed > _TEMPLATE_BUDGET):
                        return
                    self._try(priority, window)

    def shakes(self) -> None:
        assert self.best is not None
        numbers = _numbers()
        for shake in _SHAKES:
            if self.at_bound or self.placed > _SHAKE_BUDGET:
                return
            reach = max(1, round(shake * self.period))
            shaken = [start + next(numbers) % reach for start in self.best.starts]
            self._try(shaken, self.window, takes_equal=True)

    def narrow(self) -> None:
        """Take the smallest window that costs nothing, not even where messages are a little late."""
        assert self.best is not None
        num_ranks = self.step.shape.num_ranks
        promising = self._priority(0, round(self.period))
        for eighths in range(8):
            window = min(num_ranks, self.window) + (self.window - num_ranks) * eighths // 8
            if window >= self.window or self.placed > _BUDGET:
                return
            for priority in (self.best.starts, promising):
                self._try(priority, window, takes_equal=True)
                if self.window == window:
                    return

    def _try(self, priority: Sequence[int], window: int, takes_equal: bool = False) -> None:
        """Schedule by a priority, and keep the result if it is better than the best; or as good, if that is taken."""
        if window not in self.shops:
            self.shops[window] = self.step.job_shop(window, self.durations)
        shop = self.shops[window]
        rounds = min(_MOST_ROUNDS, max(1, (_BUDGET - self.placed) // (2 * shop.size)))
        found, passes = improve(shop, made_consistent(shop, priority), rounds, self.bound)
        self.placed += passes * self.step.size
        if self.best is not None and found.span > self.best.span:
            return
        sequences = self.step.sequences_by(found.starts, found.ends)
        if self.step.peak(sequences, Op.F, Op.B) > self.most_inputs:
            return
        late = self.step.run(sequences, self.late).end
        if self.best is None or found.span < self.best.span or late < self.late_end + takes_equal:
            self.best, self.window, self.sequences, self.late_end = found, window, sequences, late

    def _priority(self, lead: int, delay: int) -> list[int]:
        step = self.step
        priority = [int(start) for start in self.nominal.starts]
        for first in range(0, step.size, step.length):
            priority[first] = priority[first + 1] - lead
            if step.trains:
                priority[first + step.length - 1] = priority[first + step.last_backward] + delay
        return priority


def windows(shape: PipelineShape, most_inputs: int) -> list[int]:
    """Return how many micro-batches templates let into the body at a time.

    V micro-batches' inputs each on every rank is what a window can come to, but hardly ever does: the first window is
    wider than that allows for certain, and its schedules are counted. The second always keeps to the limit, the last
    is what a pipeline without bubbles needs.
    """
    num_ranks = shape.num_ranks
    certain = most_inputs // shape.num_chunks
    candidates = (2 * num_ranks - 1, certain, (certain + num_ranks) // 2)
    allowed = [min(window, shape.num_micro_batches) for window in candidates if window <= most_inputs]
    return list(dict.fromkeys(allowed))


def _numbers() -> Iterator[int]:
    """Yield numbers in no apparent order, the same everywhere: Park and Miller's minimal standard generator."""
    state = 1
    while True:
        state = state * 48271 % 0x7FFFFFFF
        yield state
