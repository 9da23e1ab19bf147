"""A training step whose preprocess block is spread over the ranks, as chains of operations.

Micro-batch m is the chain ``TF m, 0F m, 1F m, ..., 1B m, 0B m, TB m``. ``TF`` runs on the owner, ``TB`` on the owner
or, with a central backward, on rank 0; a frozen block has no ``TB``. Operation k of micro-batch m has the number
m·length + k. Nothing but these chains and the sequence in which each rank works orders a step.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from hyper_pp.actions import Action, Op
from hyper_pp.costs import Costs
from hyper_pp.schedules.list_scheduling import JobShop
from hyper_pp.shape import PipelineShape
from hyper_pp.transpose import Transpose

Sequences = Sequence[Sequence[int]]  # for each rank, the numbers of its operations in the order they run

_RESOLUTION = 1_000_000  # what the largest cost is in whole numbers


class Durations(NamedTuple):
    """What a step costs, in one unit.

    Args:
        chain: Of each operation of a chain.
        comm: Latency of a message between two ranks.
        collective: Of BCAST_T and REDUCE_T.
    """

    chain: Sequence[float]
    comm: float
    collective: float


class Times(NamedTuple):
    """When the operations run if each rank keeps to its sequence, and when the step ends, collectives included."""

    starts: Sequence[float]
    ends: Sequence[float]
    end: float


class BlockStep:
    """The operations of one step, where they run and what they cost.

    Args:
        shape: Of the pipeline.
        transpose: Owners of the micro-batches, and how the backward of the block runs.
        costs: Of the operations.
    """

    def __init__(self, shape: PipelineShape, transpose: Transpose, costs: Costs) -> None:
        self.shape = shape
        self.transpose = transpose
        forward, backward = (costs.of_stages(op, shape.num_stages) for op in (Op.F, Op.B))
        stages = range(shape.num_stages)
        self.kinds = [(Op.TF, 0), *((Op.F, stage) for stage in stages), *((Op.B, stage) for stage in reversed(stages))]
        chain = [costs.TF, *forward, *reversed(backward)]
        body = [shape.rank_of(stage) for _, stage in self.kinds[1:]]
        self.last_backward = len(body)  # position of 0B in a chain
        if self.trains:
            self.kinds.append((Op.TB, 0))
            repeats = transpose.backward == "central" or transpose.recompute
            chain.append(costs.TF + costs.TB if repeats else costs.TB)
        self.length = len(self.kinds)
        self.durations = Durations(chain, costs.comm, costs.collective)
        self.ranks: list[int] = []
        for owner in transpose.owners:
            self.ranks += [owner, *body]
            if self.trains:
                self.ranks.append(owner if transpose.backward == "owner" else 0)
        self.num_of = {kind: k for k, kind in enumerate(self.kinds)}

    @property
    def trains(self) -> bool:
        """Whether there is a TB."""
        return not self.transpose.frozen

    @property
    def has_collectives(self) -> bool:
        """Whether parameters and gradients of the block travel."""
        return self.trains and any(self.transpose.owners)

    @property
    def size(self) -> int:
        """Number of operations."""
        return len(self.ranks)

    def whole_durations(self) -> Durations:
        """Return the durations as whole numbers, a millionth of the largest to the unit.

        What fits a gap exactly must be seen to fit, which sums of fractions would hide.
        """
        exact = (*self.durations.chain, self.durations.comm)
        unit = max(exact) / _RESOLUTION or 1.0
        *chain, comm = (round(value / unit) for value in exact)
        return Durations(chain, comm, 0)

    def job_shop(self, window: int, durations: Durations) -> JobShop:
        """Return the step as a job shop in which at most ``window`` micro-batches are between ``0F`` and ``0B``.

        ``max_live`` of the plan holds too: an owner starts a ``TF`` only when few enough of its own wait for ``TB``.
        And what a rank does of one kind for one stage, it does in the order of the micro-batches: so that buffers are
        updated and gradients added up as one process would.

        Args:
            window: At least 1; every rank holds at most V times as many stage inputs.
            durations: In whole numbers.
        """
        length, ranks, comm = self.length, self.ranks, int(durations.comm)
        lag = [comm if op % length and ranks[op] != ranks[op - 1] else 0 for op in range(self.size)]
        waits = [
            ((m - window) * length + self.last_backward, m * length + 1)
            for m in range(window, self.shape.num_micro_batches)
        ]
        follows = [(op - length, op) for op in range(length, self.size) if 1 <= op % length <= self.last_backward]
        for rank, owned in enumerate(self.owned()):
            if self.max_live is not None:
                for before, after in zip(owned, owned[self.max_live :]):
                    waits.append((before * length + length - 1, after * length))
            for k in (0, *range(self.last_backward + 1, length)):
                own = [op for op in range(k, self.size, length) if ranks[op] == rank]
                follows += pairwise(own)
        chain = [int(duration) for duration in durations.chain]
        return JobShop(
            length,
            self.shape.num_ranks,
            ranks,
            chain * self.shape.num_micro_batches,
            lag,
            *self._both_ways(waits),
            *self._both_ways(follows),
        )

    def _both_ways(self, links: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
        """Return for each operation what comes before it in a link, and what comes after it; -1 for nothing."""
        before, after = [-1] * self.size, [-1] * self.size
        for earlier, later in links:
            before[later], after[earlier] = earlier, later
        return before, after

    @property
    def max_live(self) -> int | None:
        """The limit on micro-batches of the block between TF and TB on a rank; None where nothing has to wait."""
        return self.transpose.max_live if self.trains and self.transpose.backward == "owner" else None

    def owned(self) -> list[list[int]]:
        """Return each rank's micro-batches."""
        owned: list[list[int]] = [[] for _ in range(self.shape.num_ranks)]
        for m, owner in enumerate(self.transpose.owners):
            owned[owner].append(m)
        return owned

    def bound(self, durations: Durations) -> float:
        """Return a step time that no sequences beat.

        A rank has its own work to do. And its stages can't start before a first micro-batch has come to them, nor can
        the step end before the last has gone through all that is behind them.
        """
        chain, length = durations.chain, self.length
        body = range(1, self.last_backward + 1)
        work = [0.0] * self.shape.num_ranks
        for op, rank in enumerate(self.ranks):
            work[rank] += chain[op % length]
        # What it takes to come to each operation of a chain; messages of the block aside, which may not be needed.
        heads = [0.0, chain[0]]
        for k in body:
            hop = durations.comm if k in body[1:] and self.ranks[k] != self.ranks[k - 1] else 0.0
            heads[k] += hop
            heads.append(heads[k] + chain[k])
        longest = max(work)
        for rank in range(self.shape.num_ranks):
            own = [k for k in body if self.ranks[k] == rank]
            stages = self.shape.num_micro_batches * sum(chain[k] for k in own)
            behind = heads[-1] - heads[own[-1]] - chain[own[-1]] + sum(chain[self.last_backward + 1 :])
            longest = max(longest, heads[own[0]] + stages + behind)
        return longest

    def run(self, sequences: Sequences, durations: Durations) -> Times:
        """Return when everything runs if each rank does its operations in the given sequence, as soon as it can.

        Args:
            sequences: All operations, each on its rank, in sequences that don't wait for each other.
            durations: In any unit.
        """
        length, ranks, size = self.length, self.ranks, self.size
        chain, comm, collective = durations
        collective = collective if self.has_collectives else 0.0
        starts, ends = [0.0] * size, [-1.0] * size
        free = [0.0] * len(sequences)
        position = [0] * len(sequences)
        waiting: dict[int, int] = {}
        ready = list(range(len(sequences)))
        while ready:
            rank = ready.pop()
            sequence, at, time = sequences[rank], position[rank], free[rank]
            while at < len(sequence):
                op = sequence[at]
                k = op % length
                if k == 0:
                    arrival = collective
                elif ends[op - 1] >= 0:
                    arrival = ends[op - 1] + comm if ranks[op - 1] != rank else ends[op - 1]
                else:
                    waiting[op - 1] = rank
                    break
                starts[op] = time = max(time, arrival)
                ends[op] = time = time + chain[k]
                if op in waiting:
                    ready.append(waiting.pop(op))
                at += 1
            position[rank], free[rank] = at, time
        assert all(at == len(sequence) for at, sequence in zip(position, sequences))
        return Times(starts, ends, max(free) + collective)

    def sequences_by(self, starts: Sequence[float], ends: Sequence[float]) -> list[list[int]]:
        """Return each rank's sequence of operations with these times, which may end at their start."""
        sequences: list[list[int]] = [[] for _ in range(self.shape.num_ranks)]
        for op in self.by_time(starts, ends):
            sequences[self.ranks[op]].append(op)
        return sequences

    def by_time(self, starts: Sequence[float], ends: Sequence[float]) -> list[int]:
        """Return one sequence of all operations that contradicts no need, even where some take no time.

        What is needed starts earlier, or ends at once and so stands in front, or has the smaller number.
        """
        return sorted(range(self.size), key=lambda op: (starts[op], ends[op]))

    def peak(self, sequences: Sequences, opened_by: Op, closed_by: Op) -> int:
        """Return the most micro-batches that a rank has between two kinds of operation at a time, over all ranks."""
        peak = 0
        change = [(kind is opened_by) - (kind is closed_by) for kind, _ in self.kinds]
        for sequence in sequences:
            live = 0
            for op in sequence:
                live += change[op % self.length]
                peak = max(peak, live)
        return peak

    def number_of(self, action: Action) -> int:
        """Return the number of a compute action."""
        assert action.micro_batch is not None and isinstance(action.op, Op)
        return action.micro_batch * self.length + self.num_of[action.op, action.stage]
