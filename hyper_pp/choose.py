"""From what a user passes as ``schedule`` to the plan of a job."""

import hashlib
import os
from collections.abc import Mapping
from typing import Any

from hyper_pp import plan_files
from hyper_pp.plan import Plan
from hyper_pp.protocols import Transport
from hyper_pp.schedules import SCHEDULES, find_schedule
from hyper_pp.shape import MappedShape, PipelineShape

ScheduleChoice = str | Plan | os.PathLike[str]


def open_schedule(
    schedule: ScheduleChoice, *, num_ranks: int, num_chunks: int, num_micro_batches: int
) -> tuple[PipelineShape, str | Plan]:
    """Look up what a user passed, and read it if it is a file.

    Args:
        schedule: A schedule's name, a plan, or a plan file.
        num_ranks: P of the job.
        num_chunks: V of the job.
        num_micro_batches: M of the job.

    Returns:
        Where the job's stages live; the schedule's name, or the plan.

    Raises:
        ValueError: The schedule is unknown or takes another V, or a plan is for another shape.
        PlanFormatError: The file isn't a plan.
        OSError: The file can't be read.
    """
    plan, source = schedule, "the plan"
    if not isinstance(plan, Plan):
        name = os.fspath(plan)
        if name in SCHEDULES or not (os.path.exists(name) or name.lower().endswith((".json", ".csv"))):
            entry = find_schedule(name)
            if entry.num_chunks not in (None, num_chunks):
                raise ValueError(f"{entry.name} takes num_chunks={entry.num_chunks} (got {num_chunks})")
            return PipelineShape(num_ranks, num_chunks, num_micro_batches, entry.placement), name
        plan, source = plan_files.load(name, any_placement=True), name
    shape = plan.shape
    found = (shape.num_ranks, shape.num_chunks, shape.num_micro_batches)
    # With a map, ranks hold different numbers of stages; those of this rank are checked when they are known.
    chunks = shape.num_chunks if isinstance(shape, MappedShape) else num_chunks
    if found != (num_ranks, chunks, num_micro_batches):
        raise ValueError(
            f"{source} is for P={found[0]} V={found[1]} M={found[2]}, "
            f"the job has P={num_ranks} V={num_chunks} M={num_micro_batches}"
        )
    return shape, plan


def choose_plan(
    schedule: ScheduleChoice,
    *,
    num_ranks: int,
    num_chunks: int,
    num_micro_batches: int,
    block_layers: int | None = 0,
    frozen: bool = True,
    explicit_backward: bool = False,
    transpose_options: Mapping[str, Any] | None = None,
) -> Plan:
    """Return the plan a job runs.

    Args:
        schedule: A schedule's name, a plan, or a plan file.
        num_ranks: P of the job.
        num_chunks: V of the job.
        num_micro_batches: M of the job.
        block_layers: T, the first layers that form the preprocess block; None if the block is a module of its own.
        frozen: The block has nothing to train.
        explicit_backward: The framework's own default for a schedule that takes the option.
        transpose_options: Keys of the JSON form's ``transpose`` object; they go before the two defaults above.

    Returns:
        A lowered plan of the job's shape.

    Raises:
        ValueError: The schedule or an option is unknown, a file or plan is for another shape or block, or a block was
            given to a schedule that has none.
        PlanFormatError: The file isn't a plan.
        OSError: The file can't be read.
    """
    options = dict(transpose_options or {})
    _, chosen = open_schedule(
        schedule, num_ranks=num_ranks, num_chunks=num_chunks, num_micro_batches=num_micro_batches
    )
    if isinstance(chosen, Plan):
        return _checked(chosen, block_layers, options)
    name, entry = chosen, find_schedule(chosen)
    has_block = "num_layers" in entry.options
    if not has_block and block_layers != 0:
        what = "a preprocess cell" if block_layers is None else f"num_transpose_layers={block_layers}"
        able = ", ".join(name for name, other in SCHEDULES.items() if "num_layers" in other.options)
        raise ValueError(f"schedule {name} has no preprocess block, but got {what}: use one that has ({able})")
    if has_block:
        if options.setdefault("num_layers", block_layers) != block_layers:
            raise ValueError(
                f"transpose_options: num_layers is {options['num_layers']}, but the block has {block_layers} layers"
            )
        if block_layers == 0:
            options.setdefault("frozen", True)
        elif "frozen" not in options and "frozen" in entry.options:
            options["frozen"] = frozen
        if "explicit_backward" in entry.options:
            options.setdefault("explicit_backward", explicit_backward)
    return Plan.build(name, num_ranks, num_chunks, num_micro_batches, **options)


def check_same_plan(plan: Plan, transport: Transport) -> None:
    """Check that all ranks are about to run the same plan; otherwise they would wait for each other for ever.

    Args:
        plan: This rank's plan.
        transport: Connects the ranks; all of them call this.

    Raises:
        ValueError: Another rank has another plan, for example another version of a plan file.
    """
    own = plan.schedule, plan.num_actions, hashlib.sha256(repr(plan).encode()).hexdigest()[:12]
    plans = transport.all_gather_object(own)
    for rank, other in enumerate(plans):
        if other != plans[0]:
            first, this = ("{} of {} actions, hash {}".format(*found) for found in (plans[0], other))
            raise ValueError(f"all ranks need the same plan (rank 0: {first}; rank {rank}: {this})")


def _checked(plan: Plan, block_layers: int | None, options: Mapping[str, Any]) -> Plan:
    if options:
        raise ValueError(f"transpose_options are for building a schedule; the plan is built (got {dict(options)})")
    transpose = plan.transpose
    if transpose is None and block_layers != 0:
        raise ValueError("the plan has no preprocess block, but the job has one")
    if transpose is not None and transpose.num_layers is not None and transpose.num_layers != block_layers:
        raise ValueError(
            f"the plan has a preprocess block of {transpose.num_layers} layers, the job's has "
            f"{'a cell of its own' if block_layers is None else block_layers}"
        )
    return plan.lowered()
