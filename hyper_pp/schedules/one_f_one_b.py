"""1F1B, known from PipeDream-Flush."""

from hyper_pp.actions import Action, Op, Orders
from hyper_pp.schedules.interleaved import warmup_steady_cooldown
from hyper_pp.shape import PipelineShape


def one_f_one_b_orders(shape: PipelineShape) -> tuple[Orders, None]:
    """Return 1F1B orders: a rank warms up with as many forwards as there are ranks from it to the end.

    P=2, M=3::

        rank 0   0F0 0F1  .  0B0 0F2 0B1  .  0B2
        rank 1    .  1F0 1B0 1F1 1B1 1F2 1B2  .

    At most P−r micro-batches are live on rank r.

    Source: Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training (2021), section 3.
    """
    micro_batches = range(shape.num_micro_batches)
    orders = []
    for rank in range(shape.num_ranks):
        forwards = [Action(rank, Op.F, m) for m in micro_batches]
        backwards = [Action(rank, Op.B, m) for m in micro_batches]
        # A steady pair is F,B: with one warmup forward less than are live, each pair's F raises the count to P−r.
        warmup = min(shape.num_ranks - rank - 1, shape.num_micro_batches)
        orders.append(warmup_steady_cooldown(forwards, backwards, warmup))
    return tuple(orders), None
