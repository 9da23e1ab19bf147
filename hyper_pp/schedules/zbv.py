"""Zero bubble on V placement: each rank holds a stage on the way down and one on the way back."""

from hyper_pp.actions import Action, Op, Order, Orders
from hyper_pp.shape import PipelineShape


def zbv_orders(shape: PipelineShape) -> tuple[Orders, None]:
    """Return ZB-V orders: forwards as early as the pipeline allows, W in the gaps, the same peak memory on all ranks.

    P=2, M=3 (stages 0 and 3 on rank 0, 1 and 2 on rank 1)::

        rank 0   0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2
        rank 1    .  1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2

    The pattern needs 2P−1 micro-batches to be whole. With fewer, it is laid out for that many, and what is of
    micro-batches that don't exist is left out.

    Args:
        shape: P and M with V=2 in V placement.

    Source: Qi et al., Pipeline Parallelism with Controllable Memory (2024), schedule V-ZB.
    """
    return tuple(_order(shape, rank) for rank in range(shape.num_ranks)), None


def _order(shape: PipelineShape, rank: int) -> Order:
    num_ranks, num_micro_batches = shape.num_ranks, shape.num_micro_batches
    num_laid_out = max(num_micro_batches, 2 * num_ranks - 1)
    down, up = shape.stages_of(rank)
    next_of: dict[tuple[int, Op], int] = {}
    order: list[Action] = []

    def add(stage: int, *ops: Op) -> None:
        for op in ops:
            m = next_of.get((stage, op), 0)
            next_of[stage, op] = m + 1
            if m < num_micro_batches:
                order.append(Action(stage, op, m))

    def count(stage: int, op: Op) -> int:
        return next_of.get((stage, op), 0)

    # Warmup. Micro-batch 0 passes P−1−r ranks below and comes back: by then this rank can have run that many more, and
    # as long as the way back takes, each forward upwards lets one more in.
    for _ in range(2 * (num_ranks - rank) - 1):
        add(down, Op.F)
    for _ in range(rank):
        add(up, Op.F)
        add(down, Op.F)
    for _ in range(num_ranks - rank):
        add(up, Op.F, Op.I, Op.W)
    # Steady: one micro-batch in, one stage of another back, W right behind.
    while count(up, Op.F) < num_laid_out:
        if count(down, Op.F) < num_laid_out:
            add(down, Op.F)
        add(down, Op.I, Op.W)
        add(up, Op.F, Op.I, Op.W)
    # Cooldown: ranks above wait for input gradients, so W stays back until those are through.
    for _ in range(rank):
        add(down, Op.I)
        add(up, Op.I)
    for _ in range(num_ranks - rank):
        add(down, Op.I, Op.W)
    for stage in (up, down):
        while count(stage, Op.W) < num_laid_out:
            add(stage, Op.W)
    return tuple(order)
