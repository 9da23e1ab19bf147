"""The schedules of ``torch.distributed.pipelining``, under its names and signatures, run by our engine."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.pipelining import schedules as torch_schedules
from torch.distributed.pipelining.microbatch import TensorChunkSpec
from torch.distributed.pipelining.stage import _PipelineStageBase

from hyper_pp import plan_files
from hyper_pp.actions import Op
from hyper_pp.plan import Plan
from hyper_pp.torch_npu.pipeline_order import OrderFormat, order_of, plan_of, refuse_compiled, write_order
from hyper_pp.torch_npu.schedule_base import PipelineSchedule

# What orders are written, printed and checked with in torch is as good for ours. It is looked up when asked for, since
# torch says that its names may change.
_FROM_TORCH = (
    "_Action", "_ComputationType", "F", "B", "I", "W", "FORWARD", "FULL_BACKWARD", "BACKWARD_INPUT",
    "BACKWARD_WEIGHT", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD",
    "OVERLAP_F_B", "_add_reduce_grad", "_add_send_recv", "_add_unshard_reshard", "_dump_chrometrace",
    "_format_pipeline_order", "_merge_bw", "_simulate_comms_compute", "_validate_schedule",
)

# Our PipelineStage goes in as well as a stage that torch's build_stage made, whose base class is in the signatures.


class PipelineScheduleSingle(PipelineSchedule):
    """Base of the schedules with one stage per rank; see :class:`PipelineSchedule` for the arguments."""

    _plan_name = ""

    def __init__(
        self,
        stage: _PipelineStageBase,
        n_microbatches: int,
        loss_fn: Callable | None = None,
        args_chunk_spec: tuple[TensorChunkSpec, ...] | None = None,
        kwargs_chunk_spec: dict[str, TensorChunkSpec] | None = None,
        output_merge_spec: dict[str, Any] | tuple[Any] | None = None,
        scale_grads: bool = True,
    ):
        super().__init__(
            [stage],
            n_microbatches,
            loss_fn,
            lambda p, v, m: Plan.build(self._plan_name, p, v, m),
            args_chunk_spec=args_chunk_spec,
            kwargs_chunk_spec=kwargs_chunk_spec,
            output_merge_spec=output_merge_spec,
            scale_grads=scale_grads,
        )


class ScheduleGPipe(PipelineScheduleSingle):
    """All forwards, then all backwards."""

    _plan_name = "gpipe"


class Schedule1F1B(PipelineScheduleSingle):
    """One forward, one backward in turn."""

    _plan_name = "1f1b"


class _ScheduleForwardOnly(PipelineScheduleSingle):
    """Forwards only, also in ``step``."""

    _plan_name = "gpipe"

    def _run(self, args: Any, kwargs: Any, target: Any, losses: Any, *rest: Any) -> Any:
        *rest, _ = rest
        return super()._run(args, kwargs, target, losses, *rest, False)


class PipelineScheduleMulti(PipelineSchedule):
    """Base of the schedules with any number of stages per rank; see :class:`PipelineSchedule` for the arguments.

    A schedule of one's own derives from it and sets ``self.pipeline_order`` at the end of its ``__init__``.
    """

    _plan_name = ""

    def __init__(
        self,
        stages: list[_PipelineStageBase],
        n_microbatches: int,
        loss_fn: Callable | None = None,
        args_chunk_spec: tuple[TensorChunkSpec, ...] | None = None,
        kwargs_chunk_spec: dict[str, TensorChunkSpec] | None = None,
        output_merge_spec: dict[str, Any] | tuple[Any] | None = None,
        scale_grads: bool = True,
        backward_requires_autograd: bool = True,
        defer_pp_recv: bool = False,
    ):
        # The last steers torch's own runtime. Here a receive stands where the verified plan has it.
        super().__init__(
            stages,
            n_microbatches,
            loss_fn,
            self._make_plan,
            args_chunk_spec=args_chunk_spec,
            kwargs_chunk_spec=kwargs_chunk_spec,
            output_merge_spec=output_merge_spec,
            scale_grads=scale_grads,
        )
        self.needs_grad_mode = backward_requires_autograd

    def _make_plan(self, num_ranks: int, num_chunks: int, num_micro_batches: int) -> Plan | None:
        if not self._plan_name:
            return None
        return Plan.build(self._plan_name, num_ranks, num_chunks, num_micro_batches)

    def _load_csv(self, filename: str, format: OrderFormat = "compute_only") -> None:
        """Take the order of a CSV file that torch, or ``hyper-pp build``, wrote.

        Args:
            filename: Path of the file.
            format: ``"compute_only"`` refuses a file with sends and receives, and adds them.

        Raises:
            ValueError: The order isn't for these ranks, stages and micro-batches, or not of this format.
            ScheduleError: The order doesn't hold.
            OSError: The file can't be read.
        """
        self._take_order(plan_files.load(filename, is_csv=True, any_placement=True), format)

    def _dump_csv(self, filename: str, format: OrderFormat = "compute_only") -> None:
        """Write the order to a CSV file as torch does."""
        write_order(filename, order_of(self.plan, format))


class _PipelineScheduleRuntime(PipelineScheduleMulti):
    """Runs the order it is given, from an attribute or a file; see :class:`PipelineSchedule` for the arguments.

    A schedule of one's own derives from it, or one is made and :meth:`_load_csv` called. Other classes than torch's are
    behind the name, so what only steers torch's runtime, as custom functions, isn't there.
    """

    @property
    def pipeline_order_with_comms(self) -> Mapping[int, Sequence[Any]]:
        """The stages' actions of every rank with their sends and receives; set like :attr:`pipeline_order`."""
        return order_of(self.plan, "compute_comms")

    @pipeline_order_with_comms.setter
    def pipeline_order_with_comms(self, order: Mapping[int, Sequence[Any]]) -> None:
        self.pipeline_order = order

    def _prepare_schedule_with_comms(
        self, actions: Mapping[int, Sequence[Any]], format: OrderFormat = "compute_only"
    ) -> None:
        """Take an order; the form ``"compute_only"`` refuses sends and receives, and adds them."""
        self._take_order(plan_of(actions, self.stages[0].group_size), format)

    def _dump_csv(self, filename: str, format: OrderFormat = "compute_comms") -> None:
        """Write the order to a CSV file as torch does."""
        super()._dump_csv(filename, format)


class ScheduleInterleaved1F1B(_PipelineScheduleRuntime):
    """1F1B over several stages per rank, for any number of micro-batches."""

    _plan_name = "interleaved"


class ScheduleLoopedBFS(_PipelineScheduleRuntime):
    """Stage after stage: all forwards of one, then of the next; backwards in exactly the reverse order.

    Source: Lamy-Poirier, Breadth-First Pipeline Parallelism (2022), section 4.
    """

    _plan_name = "gpipe"

    def __init__(
        self,
        stages: list[_PipelineStageBase],
        n_microbatches: int,
        loss_fn: Callable | torch.nn.modules.loss._Loss | None = None,
        output_merge_spec: dict[str, Any] | tuple[Any] | None = None,
        scale_grads: bool = True,
        backward_requires_autograd: bool = True,
        defer_pp_recv: bool = False,
    ):
        super().__init__(
            stages,
            n_microbatches,
            loss_fn,
            output_merge_spec=output_merge_spec,
            scale_grads=scale_grads,
            backward_requires_autograd=backward_requires_autograd,
        )

    def _make_plan(self, num_ranks: int, num_chunks: int, num_micro_batches: int) -> Plan:
        plan = Plan.build(self._plan_name, num_ranks, num_chunks, num_micro_batches, compute_only=True)
        orders = []
        for order in plan.orders:
            forwards = tuple(action for action in order if action.op is Op.F)
            orders.append(forwards + tuple(action._replace(op=Op.B) for action in reversed(forwards)))
        return Plan("looped_bfs", plan.shape, tuple(orders), compute_only=True)


class _ZeroBubble(_PipelineScheduleRuntime):
    """Base of the schedules that split the backward."""

    def _make_plan(self, num_ranks: int, num_chunks: int, num_micro_batches: int) -> Plan | None:
        refuse_compiled(self.stages)
        return super()._make_plan(num_ranks, num_chunks, num_micro_batches)


class ScheduleInterleavedZeroBubble(_ZeroBubble):
    """Interleaved 1F1B with the backward in two halves, the weights' filling the bubbles."""

    _plan_name = "interleaved_zb"


class ScheduleZBVZeroBubble(_ZeroBubble):
    """Zero bubble on the V placement: rank r holds stages r and 2P−1−r."""

    _plan_name = "zbv"


class ScheduleDualPipeV:
    """Not supported: DualPipeV runs a forward and a backward of different micro-batches as one fused action.

    Raises:
        NotImplementedError: Always.
    """

    def __init__(
        self,
        stages: list[_PipelineStageBase],
        n_microbatches: int,
        loss_fn: Callable | None = None,
        args_chunk_spec: tuple[TensorChunkSpec, ...] | None = None,
        kwargs_chunk_spec: dict[str, TensorChunkSpec] | None = None,
        output_merge_spec: dict[str, Any] | tuple[Any] | None = None,
        scale_grads: bool = True,
        backward_requires_autograd: bool = True,
        defer_pp_recv: bool = False,
    ):
        raise NotImplementedError(
            "ScheduleDualPipeV is not supported: it fuses a forward and a backward into one action; "
            "use ScheduleZBVZeroBubble, which has the same placement"
        )


_PipelineSchedule = PipelineSchedule  # torch's name of it


def __getattr__(name: str) -> Any:
    if name in _FROM_TORCH:
        return getattr(torch_schedules, name)
    raise AttributeError(f"module {__name__} has no attribute {name}")


_BY_NAME: dict[str, type] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved1f1b": ScheduleInterleaved1F1B,
    "loopedbfs": ScheduleLoopedBFS,
    "interleavedzerobubble": ScheduleInterleavedZeroBubble,
    "zbvzerobubble": ScheduleZBVZeroBubble,
    "dualpipev": ScheduleDualPipeV,
    "pipelineschedulesingle": PipelineScheduleSingle,
    "pipelineschedulemulti": PipelineScheduleMulti,
    # The names of our plans.
    "interleaved": ScheduleInterleaved1F1B,
    "interleaved_zb": ScheduleInterleavedZeroBubble,
    "zbv": ScheduleZBVZeroBubble,
}


def get_schedule_class(schedule_name: str):
    """Return the schedule class of a name.

    Args:
        schedule_name: Torch's names (``"1F1B"``, ``"Interleaved1F1B"``, …) or those of our plans; case is ignored.

    Raises:
        ValueError: There is none.
    """
    found = _BY_NAME.get(schedule_name.lower().removeprefix("schedule"))
    if found is None:
        raise ValueError(f"unknown schedule {schedule_name!r} (known: {', '.join(_BY_NAME)})")
    return found
