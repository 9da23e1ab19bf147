"""Who owns which micro-batch of the preprocess block: what a rank reads when each reads only its own."""

import math
from collections.abc import Sequence
from typing import Union

from hyper_pp.plan import Plan
from hyper_pp.schedules.mpipe import mpipe_owners
from hyper_pp.schedules.transpose import owners_of
from hyper_pp.shape import PipelineShape, check_count

OwnersChoice = Union[str, Sequence[int], Plan]


def owned_micro_batches(
    num_ranks: int, num_micro_batches: int, rank: int, owners: OwnersChoice = "round_robin"
) -> tuple[int, ...]:
    """Return the micro-batches whose inputs a rank passes with ``sharded_inputs=True``, ascending.

    Where the plan is at hand, give it as ``owners``: the schedule ``transpose`` may have chosen to keep everything on
    rank 0.

    Args:
        num_ranks: P.
        num_micro_batches: M.
        rank: This rank in the pipeline, from 0 to P−1.
        owners: ``"round_robin"``: micro-batch m belongs to rank m mod P. ``"mpipe"``: rank 0 owns 0 and all from
            min(P, M) on, any other rank the one of its own number. ``"inline"``: all belong to rank 0. A sequence: the
            rank of each micro-batch. A plan: as it says; without a preprocess block, rank 0 owns all.

    Returns:
        Micro-batches in the order in which their samples are joined; empty where the rank owns none.

    Raises:
        TypeError: A count or a rank isn't an int.
        ValueError: The rank or an owner is outside the pipeline, or ``owners`` is for another shape.
    """
    shape = PipelineShape(num_ranks, 1, num_micro_batches)
    if check_count("rank", rank, minimum=0) >= num_ranks:
        raise ValueError(f"rank must be below num_ranks (got rank {rank} of {num_ranks} ranks)")
    return tuple(m for m, owner in enumerate(_owner_of_each(shape, owners)) if owner == rank)


def _owner_of_each(shape: PipelineShape, owners: OwnersChoice) -> tuple[int, ...]:
    if isinstance(owners, Plan):
        found = owners.shape
        if (found.num_ranks, found.num_micro_batches) != (shape.num_ranks, shape.num_micro_batches):
            raise ValueError(
                f"the plan is for P={found.num_ranks} M={found.num_micro_batches} "
                f"(asked for P={shape.num_ranks} M={shape.num_micro_batches})"
            )
        return (0,) * found.num_micro_batches if owners.transpose is None else owners.transpose.owners
    if owners == "mpipe":
        return mpipe_owners(shape)
    if isinstance(owners, str) and owners not in ("round_robin", "inline"):
        raise ValueError(
            f"owners must be round_robin, mpipe, inline, the rank of each micro-batch or a plan (got {owners!r})"
        )
    return owners_of(shape, owners)


def balanced_owners(costs: Sequence[float], num_ranks: int) -> tuple[int, ...]:
    """Return owners that share the micro-batches' costs out evenly.

    The largest cost comes first, each goes to the rank with the least so far; ties go to the lower micro-batch and the
    lower rank. So equal costs give round robin, and every rank computes the same.

    Args:
        costs: What the preprocess block has to do for each micro-batch, for example its mean number of image patches.
        num_ranks: P.

    Returns:
        The rank of each micro-batch, for the option ``owners`` of the schedule ``transpose``. The largest sum of a rank
        is at most 4/3 − 1/(3P) of the least possible.

    Raises:
        TypeError: A cost isn't a number, or ``num_ranks`` isn't an int.
        ValueError: There are no costs, one is negative, NaN or infinite, or ``num_ranks`` is below 1.

    Source:
        R. L. Graham, "Bounds on multiprocessing timing anomalies", 1969: longest processing time first.
    """
    check_count("num_ranks", num_ranks)
    if not len(costs):
        raise ValueError("costs must hold one number per micro-batch (got none)")
    for m, cost in enumerate(costs):
        if isinstance(cost, (str, bool)) or not hasattr(cost, "__float__"):
            raise TypeError(f"costs must be numbers (got {cost!r} for micro-batch {m})")
        if not math.isfinite(cost) or cost < 0:
            raise ValueError(f"costs must be finite numbers of at least 0 (got {cost} for micro-batch {m})")
    loads = [0.0] * num_ranks
    counts = [0] * num_ranks  # breaks ties, so that micro-batches without cost are shared out as well
    owners = [0] * len(costs)
    for m in sorted(range(len(costs)), key=lambda m: (-costs[m], m)):
        rank = min(range(num_ranks), key=lambda rank: (loads[rank], counts[rank], rank))
        owners[m] = rank
        loads[rank] += costs[m]
        counts[rank] += 1
    return tuple(owners)
