"""Plain orders of a step with a preprocess block: what better ones are compared with, and where a search starts."""

from hyper_pp.actions import Orders
from hyper_pp.costs import Costs
from hyper_pp.schedules.block_orders import orders_of
from hyper_pp.schedules.block_step import BlockStep, Sequences
from hyper_pp.schedules.interleaved import interleaved_orders, split_rounds
from hyper_pp.shape import PipelineShape
from hyper_pp.transpose import Transpose


def inline_sequences(step: BlockStep, less_memory: bool = False) -> Sequences:
    """Return ``interleaved`` with the block as part of stage 0: ``TF`` right before ``0F``, ``TB`` right after ``0B``.

    Args:
        step: A step whose owners are all rank 0.
        less_memory: As for interleaved 1F1B.
    """
    first, *others = _body(step, less_memory)
    with_block: list[int] = []
    for op in first:
        k = op % step.length
        before = [op - 1] if k == 1 else []
        after = [op + 1] if k == step.last_backward and step.trains else []
        with_block += [*before, op, *after]
    return [with_block, *others]


def spread_sequences(step: BlockStep, less_memory: bool = False) -> Sequences:
    """Return ``interleaved`` between all forwards of the block, before it, and all its backwards, after it."""
    forwards = range(0, step.size, step.length)
    backwards = range(step.length - 1, step.size, step.length) if step.trains else ()
    sequences = []
    for rank, body in enumerate(_body(step, less_memory)):
        before, after = ([op for op in ops if step.ranks[op] == rank] for ops in (forwards, backwards))
        sequences.append([*before, *body, *after])
    return sequences


def _body(step: BlockStep, less_memory: bool) -> list[list[int]]:
    orders, _ = interleaved_orders(step.shape, less_memory=less_memory)
    return [[step.number_of(action) for action in order] for order in orders]


def peak_of_interleaved(shape: PipelineShape, less_memory: bool = False) -> int:
    """Return the most stage inputs that a rank of ``interleaved`` holds at a time, which is rank 0."""
    per_rank = 1 if less_memory else 2
    warmup = (shape.num_chunks - 1) * len(split_rounds(shape)[0]) + per_rank * (shape.num_ranks - 1)
    return min(warmup + 1, shape.num_chunks * shape.num_micro_batches)


def spread_orders(
    shape: PipelineShape, *, num_layers: int | None = None, less_memory: bool = False, costs: Costs | None = None
) -> tuple[Orders, Transpose]:
    """Return the spread-owner order: owners run the block's forwards before the body and its backwards after it.

    P=2, V=1, M=3 (communication and collectives left out)::

        rank 0   TF0 TF2 0F0 0F1  .  0B0 0F2 0B1  .  0B2 TB0 TB2
        rank 1   TF1  .   .  1F0 1B0 1F1 1B1 1F2 1B2  .  TB1

    All of the block's graphs live at once, and every rank waits for the block at both ends.

    Args:
        shape: Any P, V and M.
        num_layers: T, the layers the block holds.
        less_memory: As for interleaved 1F1B.
        costs: Durations that decide where the block's transfers stand among the other actions.
    """
    owners = tuple(m % shape.num_ranks for m in range(shape.num_micro_batches))
    transpose = Transpose(owners, num_layers=num_layers, frozen=num_layers == 0, backward="owner")
    step = BlockStep(shape, transpose, Costs() if costs is None else costs)
    return orders_of(step, step.run(spread_sequences(step, less_memory), step.durations)), transpose
