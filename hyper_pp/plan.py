"""Plan: the immutable product of building a schedule, with its file forms."""

import os
from dataclasses import dataclass, replace
from typing import Any, Union

from hyper_pp.actions import BODY_P2P_OPS, PREPROCESS_OPS, Orders
from hyper_pp.costs import Costs
from hyper_pp.passes import insert_communication
from hyper_pp.schedules import build_orders, find_schedule
from hyper_pp.shape import PipelineShape
from hyper_pp.transpose import Transpose


@dataclass(frozen=True)
class Plan:
    """What every rank does in one training step.

    Args:
        schedule: Name of the schedule that built it; any text for orders from elsewhere.
        shape: Ranks, chunks, micro-batches, placement.
        orders: One tuple of actions per rank.
        compute_only: The body's sends and receives are left out.
        transpose: What there is to know of the preprocess block; None without one.

    Raises:
        ValueError: There is not one order per rank, an action is outside the shape, an action of the preprocess block
            comes without ``transpose``, or ``transpose`` names owners outside the shape.
    """

    schedule: str
    shape: PipelineShape
    orders: Orders
    compute_only: bool = False
    transpose: Transpose | None = None

    def __post_init__(self) -> None:
        shape, transpose = self.shape, self.transpose
        if len(self.orders) != shape.num_ranks:
            raise ValueError(f"a plan holds one order per rank (ranks: {shape.num_ranks}, orders: {len(self.orders)})")
        if transpose is not None:
            if len(transpose.owners) != shape.num_micro_batches:
                raise ValueError(
                    "transpose: owners holds one rank per micro-batch "
                    f"(micro-batches: {shape.num_micro_batches}, owners: {len(transpose.owners)})"
                )
            if max(transpose.owners) >= shape.num_ranks:
                raise ValueError(f"transpose: owners are ranks below {shape.num_ranks} (got {max(transpose.owners)})")
        num_stages, num_micro_batches = shape.num_stages, shape.num_micro_batches
        for order in self.orders:
            for action in order:
                stage, op, micro_batch = action
                if stage >= num_stages or (micro_batch is not None and micro_batch >= num_micro_batches):
                    raise ValueError(f"action {action} is outside the plan's shape ({shape})")
                if op in PREPROCESS_OPS and (transpose is None or stage != 0):
                    fault = "the plan has no transpose" if transpose is None else "the block belongs to stage 0"
                    raise ValueError(f"action {action} is of the preprocess block, but {fault}")
        if self.compute_only and any(action.op in BODY_P2P_OPS for order in self.orders for action in order):
            raise ValueError("a compute-only plan holds no SEND_F, RECV_F, SEND_B or RECV_B")

    @classmethod
    def build(
        cls,
        schedule: str,
        num_ranks: int,
        num_chunks: int | None = None,
        num_micro_batches: int = 1,
        *,
        compute_only: bool = False,
        **options: Any,
    ) -> "Plan":
        """Build a schedule.

        Args:
            schedule: A name of ``hyper-pp schedules``.
            num_ranks: P.
            num_chunks: V; by default the schedule's own number, else 1.
            num_micro_batches: M.
            compute_only: Leave out the body's sends and receives.
            **options: The schedule's own, see ``hyper_pp.schedules``.

        Returns:
            The plan; the same arguments give the same plan everywhere.

        Raises:
            ValueError: The schedule is unknown or doesn't take this shape or option.
            TypeError: A count isn't an int.
        """
        entry = find_schedule(schedule)
        if num_chunks is None:
            num_chunks = entry.num_chunks or 1
        elif entry.num_chunks not in (None, num_chunks):
            raise ValueError(f"{schedule} takes num_chunks={entry.num_chunks} (got {num_chunks})")
        shape = PipelineShape(num_ranks, num_chunks, num_micro_batches, entry.placement)
        orders, transpose = build_orders(schedule, shape, options)
        plan = cls(schedule, shape, orders, compute_only=True, transpose=transpose)
        return plan if compute_only else plan.lowered(options.get("costs"))

    def lowered(self, costs: Costs | None = None) -> "Plan":
        """Return the plan with the body's sends and receives; itself if it has them.

        Args:
            costs: Durations that decide which of two transfers of a rank comes first; by default nominal ones.

        Raises:
            ScheduleError: The compute orders wait for each other.
        """
        if not self.compute_only:
            return self
        orders = insert_communication(self.orders, self.shape, self.transpose, costs)
        return replace(self, orders=orders, compute_only=False)

    def with_orders(self, orders: Orders) -> "Plan":
        """Return the plan with other orders, for passes and experiments."""
        return replace(self, orders=orders)

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Write the plan to a file, as JSON, or as PyTorch's CSV if the name ends in ``.csv``."""
        from hyper_pp import plan_files

        plan_files.save(self, path)

    @classmethod
    def load(cls, path: Union[str, "os.PathLike[str]"]) -> "Plan":
        """Read a plan from a JSON or CSV file, told apart by the name's end (``.csv``, else JSON).

        Raises:
            PlanFormatError: The file isn't a plan; the text names file and fault.
            OSError: The file can't be read.
        """
        from hyper_pp import plan_files

        return plan_files.load(path)

    def to_json(self) -> str:
        """Return the plan's JSON form."""
        from hyper_pp import plan_files

        return plan_files.to_json(self)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Read a plan's JSON form.

        Raises:
            PlanFormatError: The text isn't a plan.
        """
        from hyper_pp import plan_files

        return plan_files.from_json(text)

    @property
    def num_actions(self) -> int:
        """Actions of all ranks together."""
        return sum(map(len, self.orders))
