"""Orders as ``torch.distributed.pipelining`` writes them, beside our plans."""

import csv
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import nn
from torch._dynamo import OptimizedModule
from torch.distributed.pipelining.schedules import _Action

from hyper_pp.actions import BODY_P2P_OPS, SHARDING_OPS, Op
from hyper_pp.errors import PlanFormatError
from hyper_pp.plan import Plan
from hyper_pp.plan_files import from_csv
from hyper_pp.shape import MappedShape

OrderFormat = Literal["compute_only", "compute_comms"]

_BODY = frozenset({Op.F, Op.B, Op.I, Op.W})


def order_of(plan: Plan, format: OrderFormat = "compute_only") -> dict[int, list[_Action]]:
    """Return every rank's actions of the stages; in the form ``"compute_comms"`` with their sends and receives."""
    _check_format(format)
    ops = _BODY if format == "compute_only" else _BODY | BODY_P2P_OPS
    return {
        rank: [_Action.from_str(str(action)) for action in order if action.op in ops]
        for rank, order in enumerate(plan.orders)
    }


def plan_of(order: Mapping[int, Sequence[Any]], num_ranks: int) -> Plan:
    """Return the plan of an order that somebody wrote down.

    Args:
        order: Rank → its actions in order; None is a bubble and is skipped. Without any send and receive, they are
            added.
        num_ranks: P.

    Raises:
        ValueError: The order isn't for these ranks, an action can't be read, or a stage is on two ranks or on none.
    """
    if sorted(order) != list(range(num_ranks)):
        raise ValueError(f"pipeline_order has a row for each of {num_ranks} ranks (got rows {sorted(order)})")
    rows = [",".join("" if action is None else str(action) for action in order[rank]) for rank in range(num_ranks)]
    try:
        return from_csv("\n".join(rows), any_placement=True)
    except PlanFormatError as error:
        raise ValueError(f"pipeline_order can't be run: {error}") from error


def check_order(
    plan: Plan, stages: Sequence[Any], num_micro_batches: int, format: OrderFormat = "compute_comms"
) -> None:
    """Refuse an order that isn't for a schedule.

    Args:
        plan: The order.
        stages: This rank's stages.
        num_micro_batches: M.
        format: ``"compute_only"`` refuses sends and receives.

    Raises:
        ValueError: It isn't for these ranks, stages and micro-batches, or not of this format.
    """
    _check_format(format)
    num_ranks, num_stages = stages[0].group_size, stages[0].num_stages
    found = plan.shape.num_ranks, plan.shape.num_stages, plan.shape.num_micro_batches
    if found != (num_ranks, num_stages, num_micro_batches):
        raise ValueError(
            "pipeline_order is for {} ranks, {} stages and {} micro-batches, ".format(*found)
            + f"the schedule for {num_ranks}, {num_stages} and {num_micro_batches}"
        )
    if format == "compute_only" and not plan.compute_only:
        transfer = next(action for actions in plan.orders for action in actions if action.op in BODY_P2P_OPS)
        raise ValueError(f"compute_only has no sends and receives (got {transfer}): say format='compute_comms'")


def write_order(path: "str | os.PathLike[str]", order: Mapping[int, Sequence[Any]]) -> None:
    """Write an order to a CSV file, one row per rank."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(order[rank] for rank in sorted(order))


def _check_format(format: str) -> None:
    """Refuse other forms of an order than torch's two."""
    if format not in ("compute_only", "compute_comms"):
        raise ValueError(f"format must be compute_only or compute_comms (got {format!r})")


def without_sharding(plan: Plan) -> Plan:
    """Return the plan without the actions that ``fully_shard`` and ``DistributedDataParallel`` do unasked here."""
    if not any(action.op in SHARDING_OPS for order in plan.orders for action in order):
        return plan
    return plan.with_orders(
        tuple(tuple(action for action in order if action.op not in SHARDING_OPS) for order in plan.orders)
    )


def check_placement(stages: Sequence[Any], plan: Plan) -> None:
    """Refuse stages that aren't those of the plan, or live elsewhere."""
    shape, num_stages = plan.shape, stages[0].num_stages
    if num_stages != shape.num_stages:
        raise ValueError(
            f"the stages of all ranks must make up the pipeline: schedule {plan.schedule} has {shape.num_stages} "
            f"({shape}), but num_stages is {num_stages}"
        )
    form = "map" if isinstance(shape, MappedShape) else shape.placement
    wanted = {index: shape.rank_of(index) for index in range(shape.num_stages)}
    for stage in stages:
        given = getattr(stage, "stage_index_to_group_rank", None)
        # A stage's own default is the loop; only a map that somebody put there, or held stages, can contradict.
        loop = {index: index % shape.num_ranks for index in range(shape.num_stages)}
        if given is not None and given != wanted and given != loop:
            raise ValueError(
                f"schedule {plan.schedule} has placement {form} ({wanted}), but stage_index_to_group_rank is {given}"
            )
    held = [getattr(stage, "stage_index", None) for stage in stages]
    rank = getattr(stages[0], "group_rank", None)
    if None not in held and rank is not None and sorted(held) != sorted(shape.stages_of(rank)):
        raise ValueError(
            f"schedule {plan.schedule} has stages {sorted(shape.stages_of(rank))} on rank {rank} "
            f"(placement {form}), but got stages {sorted(held)}"
        )


def refuse_compiled(stages: Sequence[Any]) -> None:
    """Refuse compiled modules where the backward is split: all of one is a single node, so both halves would run it."""
    for stage in stages:
        submod = getattr(stage, "submod", None)  # a stage may be a stand-in that only shows an order
        for name, module in submod.named_modules() if isinstance(submod, nn.Module) else ():
            if isinstance(module, OptimizedModule):
                raise RuntimeError(
                    "a schedule that splits the backward can't have a module under torch.compile "
                    f"(got {name or 'the whole'} of stage {stage.stage_index}): leave it uncompiled, or take a "
                    "schedule with a whole backward, such as ScheduleInterleaved1F1B"
                )
