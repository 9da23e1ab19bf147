"""Interleaved 1F1B with the backward split, so that weight gradients fill bubbles."""

from collections.abc import Sequence

from hyper_pp.actions import Action, Op, Order, Orders
from hyper_pp.schedules.interleaved import split_rounds, walk_rounds
from hyper_pp.shape import PipelineShape


def interleaved_zb_orders(shape: PipelineShape) -> tuple[Orders, None]:
    """Return interleaved orders with I and W in place of B, where rank r holds its weight gradients back by r steps.

    P=2, V=1, M=3::

        rank 0   0F0 0F1  .  0I0 0W0 0F2 0I1 0W1 0I2 0W2
        rank 1    .  1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2

    The later a rank stands in the pipeline, the more of its weight gradients wait: at first that lets input gradients
    travel on at once, and at the end what was held back fills the bubble of cooldown.

    Args:
        shape: Any P, V and M.

    Source: Qi et al., Zero Bubble Pipeline Parallelism (2023), schedule ZB-H1, carried over to interleaved chunks.
    """
    rounds = split_rounds(shape)
    orders = []
    for rank in range(shape.num_ranks):
        stages = shape.stages_of(rank)
        slots = walk_rounds(rounds, stages)
        warmup = min((shape.num_chunks - 1) * len(rounds[0]) + shape.num_ranks - 1 - rank, len(slots))
        orders.append(_order(slots, walk_rounds(rounds, stages[::-1]), warmup, held_back=rank))
    return tuple(orders), None


def _order(
    forwards: Sequence[tuple[int, int]], backwards: Sequence[tuple[int, int]], warmup: int, held_back: int
) -> Order:
    """Return warmup forwards, then F,I,W triples, the W of each being that of the I ``held_back`` triples before it."""
    order = [Action(stage, Op.F, m) for stage, m in forwards[:warmup]]
    for step, (stage, m) in enumerate(backwards):
        if warmup + step < len(forwards):
            next_stage, next_m = forwards[warmup + step]
            order.append(Action(next_stage, Op.F, next_m))
        order.append(Action(stage, Op.I, m))
        if step >= held_back:
            order.append(Action(backwards[step - held_back][0], Op.W, backwards[step - held_back][1]))
    first_left = max(0, len(backwards) - held_back)
    order += [Action(stage, Op.W, m) for stage, m in backwards[first_left:]]
    return tuple(order)
