"""Orders as ``torch.distributed.pipelining`` writes them, beside our plans."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch.distributed.pipelining.schedules import _Action

from hyper_pp.actions import Op
from hyper_pp.errors import PlanFormatError
from hyper_pp.plan import Plan
from hyper_pp.plan_files import from_csv

_BODY = frozenset({Op.F, Op.B, Op.I, Op.W})


def order_of(plan: Plan) -> dict[int, list[_Action]]:
    """Return the stages' compute actions of every rank."""
    return {
        rank: [_Action.from_str(str(action)) for action in order if action.op in _BODY]
        for rank, order in enumerate(plan.orders)
    }


def plan_of(order: Mapping[int, Sequence[Any]], stages: Sequence[Any], num_micro_batches: int) -> Plan:
    """Return the plan of an order that somebody wrote down.

    Args:
        order: Rank → its actions in order, with or without sends and receives; None is a bubble and is skipped.
        stages: This rank's stages.
        num_micro_batches: M.

    Raises:
        ValueError: The order isn't for these ranks, stages and micro-batches, or places stages neither in a loop nor in
            a V with equally many on every rank.
    """
    num_ranks, num_stages = stages[0].group_size, stages[0].num_stages
    if sorted(order) != list(range(num_ranks)):
        raise ValueError(f"pipeline_order has a row for each of {num_ranks} ranks (got rows {sorted(order)})")
    rows = [",".join("" if action is None else str(action) for action in order[rank]) for rank in range(num_ranks)]
    try:
        plan = from_csv("\n".join(rows))
    except PlanFormatError as error:
        raise ValueError(f"pipeline_order can't be run: {error}") from error
    found = plan.shape.num_ranks, plan.shape.num_stages, plan.shape.num_micro_batches
    if found != (num_ranks, num_stages, num_micro_batches):
        raise ValueError(
            "pipeline_order is for {} ranks, {} stages and {} micro-batches, ".format(*found)
            + f"the schedule for {num_ranks}, {num_stages} and {num_micro_batches}"
        )
    return plan


def check_placement(stages: Sequence[Any], plan: Plan) -> None:
    """Refuse stages that live elsewhere than the plan has them."""
    shape = plan.shape
    wanted = {index: shape.rank_of(index) for index in range(shape.num_stages)}
    for stage in stages:
        given = getattr(stage, "stage_index_to_group_rank", None)
        # A stage's own default is the loop; only a map that somebody put there, or held stages, can contradict.
        loop = {index: index % shape.num_ranks for index in range(shape.num_stages)}
        if given is not None and given != wanted and given != loop:
            raise ValueError(
                f"schedule {plan.schedule} places stages in the form of a {shape.placement} ({wanted}), but "
                f"stage_index_to_group_rank is {given}"
            )
    held = [getattr(stage, "stage_index", None) for stage in stages]
    rank = getattr(stages[0], "group_rank", None)
    if None not in held and rank is not None and sorted(held) != sorted(shape.stages_of(rank)):
        raise ValueError(
            f"schedule {plan.schedule} has stages {sorted(shape.stages_of(rank))} on rank {rank} "
            f"(placement {shape.placement}), but got stages {sorted(held)}"
        )
