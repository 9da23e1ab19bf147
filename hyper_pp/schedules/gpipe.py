"""F-then-B, known as GPipe."""

from hyper_pp.actions import Action, Op, Orders
from hyper_pp.shape import PipelineShape


def gpipe_orders(shape: PipelineShape) -> tuple[Orders, None]:
    """Return F-then-B orders: every forward in micro-batch order, then every backward in micro-batch order.

    P=2, V=1, M=3::

        rank 0   0F0 0F1 0F2  .   .   .  0B0 0B1 0B2
        rank 1    .  1F0 1F1 1F2 1B0 1B1 1B2  .   .

    Several chunks run one after another, backwards in reverse chunk order.

    Source: Huang et al., GPipe (2019), section 2.3.
    """
    micro_batches = range(shape.num_micro_batches)
    orders = []
    for rank in range(shape.num_ranks):
        stages = shape.stages_of(rank)
        forwards = [Action(stage, Op.F, m) for stage in stages for m in micro_batches]
        backwards = [Action(stage, Op.B, m) for stage in reversed(stages) for m in micro_batches]
        orders.append(tuple(forwards + backwards))
    return tuple(orders), None
