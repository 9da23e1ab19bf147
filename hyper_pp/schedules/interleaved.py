"""Interleaved 1F1B for any number of micro-batches."""

from collections.abc import Sequence
from itertools import pairwise

from hyper_pp.actions import Action, Op, Order, Orders
from hyper_pp.shape import PipelineShape


def interleaved_orders(shape: PipelineShape, *, less_memory: bool = False) -> tuple[Orders, None]:
    """Return interleaved 1F1B orders.

    P=2, V=2, M=2 (stages 0 and 2 on rank 0, 1 and 3 on rank 1)::

        rank 0   0F0 0F1 2F0 2F1  .  2B0  .  2B1 0B0  .  0B1
        rank 1    .  1F0 1F1 3F0 3B0 3F1 3B1 1B0  .  1B1  .

    Args:
        shape: Any P, V and M.
        less_memory: Warm up with (V−1)·n₀ + (P−1−r) forwards instead of (V−1)·n₀ + 2(P−1−r), n₀ the size of the first
            round: fewer live micro-batches, more bubble.

    Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters (2021), section 2.2;
    rounds of uneven size are ours.
    """
    rounds = split_rounds(shape)
    warmup_step = 1 if less_memory else 2
    orders = []
    for rank in range(shape.num_ranks):
        stages = shape.stages_of(rank)
        forwards = [Action(stage, Op.F, m) for stage, m in walk_rounds(rounds, stages)]
        backwards = [Action(stage, Op.B, m) for stage, m in walk_rounds(rounds, stages[::-1])]
        warmup = (shape.num_chunks - 1) * len(rounds[0]) + warmup_step * (shape.num_ranks - 1 - rank)
        orders.append(warmup_steady_cooldown(forwards, backwards, min(warmup, len(forwards))))
    return tuple(orders), None


def split_rounds(shape: PipelineShape) -> list[list[int]]:
    """Return the micro-batches of each of the R = max(1, ⌊M/P⌋) rounds.

    The larger rounds come first. The other way round, warmup, which is counted by the first round, would be too short
    for a later one, and the orders would deadlock.
    """
    num_rounds = max(1, shape.num_micro_batches // shape.num_ranks)
    size, extra = divmod(shape.num_micro_batches, num_rounds)
    ends = [number * size + min(number, extra) for number in range(num_rounds + 1)]
    return [list(range(first, end)) for first, end in pairwise(ends)]


def walk_rounds(rounds: Sequence[Sequence[int]], stages: Sequence[int]) -> list[tuple[int, int]]:
    """Return (stage, micro-batch) pairs: round by round, in it stage by stage, in it micro-batch by micro-batch."""
    return [(stage, m) for micro_batches in rounds for stage in stages for m in micro_batches]


def warmup_steady_cooldown(forwards: Sequence[Action], backwards: Sequence[Action], warmup: int) -> Order:
    """Return ``warmup`` forwards, then F,B pairs while forwards last, then the rest of the backwards."""
    order = list(forwards[:warmup])
    steady = forwards[warmup:]
    for forward, backward in zip(steady, backwards):
        order += (forward, backward)
    order += backwards[len(steady) :]
    return tuple(order)
