"""Schedules: pure functions from a shape and options to compute-only orders, and the table that names them.

A schedule module knows nothing of communication inside the body, costs or frameworks. ``build_orders`` is the one way
in; a plan adds the rest.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hyper_pp.actions import Orders
from hyper_pp.schedules.gpipe import gpipe_orders
from hyper_pp.schedules.interleaved import interleaved_orders
from hyper_pp.schedules.interleaved_zb import interleaved_zb_orders
from hyper_pp.schedules.mpipe import mpipe_orders
from hyper_pp.schedules.one_f_one_b import one_f_one_b_orders
from hyper_pp.schedules.transpose import transpose_orders
from hyper_pp.schedules.zbv import zbv_orders
from hyper_pp.shape import PipelineShape, Placement
from hyper_pp.transpose import Transpose

Builder = Callable[..., tuple[Orders, Transpose | None]]


@dataclass(frozen=True)
class Schedule:
    """One entry of the table of schedules.

    Args:
        name: As users write it.
        summary: One line for ``hyper-pp schedules``.
        build: ``build(shape, **options) -> (orders, transpose or None)``.
        options: Options that ``build`` takes.
        placement: Where stages live.
        num_chunks: The only chunk count it takes; None for any.
    """

    name: str
    summary: str
    build: Builder
    options: tuple[str, ...] = ()
    placement: Placement = "loop"
    num_chunks: int | None = None


SCHEDULES: Mapping[str, Schedule] = {
    schedule.name: schedule
    for schedule in (
        Schedule("gpipe", "F-then-B: all forwards, then all backwards", gpipe_orders),
        Schedule("1f1b", "one forward, one backward in turn; one chunk per rank", one_f_one_b_orders, num_chunks=1),
        Schedule(
            "interleaved",
            "1F1B over several chunks per rank, for any number of micro-batches",
            interleaved_orders,
            ("less_memory",),
        ),
        Schedule(
            "interleaved_zb",
            "interleaved with the backward split in I and W, W held back on later ranks",
            interleaved_zb_orders,
        ),
        Schedule(
            "zbv",
            "zero bubble on V placement, two chunks per rank, the backward split in I and W",
            zbv_orders,
            placement="v",
            num_chunks=2,
        ),
        Schedule(
            "mpipe",
            "interleaved, with the first min(P, M) micro-batches of the preprocess block spread over the ranks",
            mpipe_orders,
            ("num_layers", "frozen", "backward", "explicit_backward", "less_memory"),
        ),
        Schedule(
            "transpose",
            "all micro-batches of the preprocess block spread over the ranks, in the time that these would idle",
            transpose_orders,
            ("num_layers", "frozen", "backward", "recompute", "max_live", "owners", "less_memory", "costs"),
        ),
    )
}


def find_schedule(name: str) -> Schedule:
    """Return the schedule of that name.

    Raises:
        ValueError: There is none.
    """
    if name not in SCHEDULES:
        raise ValueError(f"unknown schedule {name!r} (known: {', '.join(SCHEDULES)})")
    return SCHEDULES[name]


def build_orders(name: str, shape: PipelineShape, options: Mapping[str, Any]) -> tuple[Orders, Transpose | None]:
    """Build a schedule's compute-only orders.

    Args:
        name: A key of ``SCHEDULES``.
        shape: Ranks, chunks, micro-batches, placement.
        options: The schedule's own options, by name.

    Returns:
        One order per rank, and what the plan says of its preprocess block, if it has one.

    Raises:
        ValueError: The schedule doesn't take this shape, or one of the options.
    """
    schedule = find_schedule(name)
    if schedule.num_chunks not in (None, shape.num_chunks):
        raise ValueError(f"{name} takes num_chunks={schedule.num_chunks} (got {shape.num_chunks})")
    if schedule.placement != shape.placement:
        raise ValueError(f"{name} takes placement={schedule.placement} (got {shape.placement})")
    for option in options:
        if option not in schedule.options:
            takes = ", ".join(schedule.options) or "none"
            raise ValueError(f"{name} has no option {option} (it takes: {takes})")
    return schedule.build(shape, **options)
