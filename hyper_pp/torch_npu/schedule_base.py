"""What all schedules have in common: ``step`` and ``eval`` on top of the engine."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.profiler import record_function

from hyper_pp.actions import Action, Op, partner
from hyper_pp.choose import check_same_plan
from hyper_pp.engine import PipelineEngine
from hyper_pp.errors import PipelineError, ShapeError
from hyper_pp.microbatch import weights_of
from hyper_pp.plan import Plan
from hyper_pp.protocols import Value
from hyper_pp.shape import check_count
from hyper_pp.step import StepInputs, StepResult
from hyper_pp.torch_npu.data_parallel import GradientSync
from hyper_pp.torch_npu.errors import MetadataError
from hyper_pp.torch_npu.keep import earlier_gradients_set_aside, state_kept
from hyper_pp.torch_npu.keywords import keywords_by_stage
from hyper_pp.torch_npu.pipeline_order import (
    OrderFormat,
    check_order,
    check_placement,
    order_of,
    plan_of,
    refuse_compiled,
    without_sharding,
)
from hyper_pp.torch_npu.splitting import BatchCutter, input_fault, merge_outputs
from hyper_pp.torch_npu.stage import TorchStage
from hyper_pp.torch_npu.tensors import TorchTensors
from hyper_pp.torch_npu.traced import module_of
from hyper_pp.torch_npu.transport import TorchTransport
from hyper_pp.tree import flatten
from hyper_pp.verify import verify

PlanMaker = Callable[[int, int, int], Plan | None]  # num_ranks, num_chunks, num_micro_batches


class PipelineSchedule:
    """Runs one rank's stages through a plan, a whole batch at a time.

    Args:
        stages: This rank's stages.
        n_microbatches: M.
        loss_fn: Called with (output, target) of a micro-batch; None runs forwards only.
        make_plan: Makes the plan from P, V and M; None where a subclass sets :attr:`pipeline_order`.
        args_chunk_spec: How positional arguments are split; None: along dimension 0.
        kwargs_chunk_spec: How keyword arguments are split, by keyword.
        output_merge_spec: How outputs are joined; None: along dimension 0.
        scale_grads: True: gradients are those of the mean over the batch, micro-batches weighted by their size. False:
            they are summed, for a loss that sums.
        preprocess: Module of the preprocess block, for plans that have one.

    Raises:
        ValueError: Stages, plan and group don't fit together.
        ScheduleError: The plan doesn't hold.
    """

    def __init__(
        self,
        stages: Sequence[Any],
        n_microbatches: int,
        loss_fn: Callable[..., torch.Tensor] | None,
        make_plan: PlanMaker,
        *,
        args_chunk_spec: Any = None,
        kwargs_chunk_spec: Any = None,
        output_merge_spec: Any = None,
        scale_grads: bool = True,
        preprocess: nn.Module | None = None,
    ) -> None:
        check_count("n_microbatches", n_microbatches)
        if not stages:
            raise ValueError("a rank needs at least one stage (got none)")
        first = stages[0]
        self.stages = list(stages)
        for stage in self.stages:
            stage.has_backward = loss_fn is not None
        self._plan: Plan | None = None
        plan = make_plan(first.group_size, len(stages), n_microbatches)
        if plan is not None:
            self._take_plan(plan)
        self._n_microbatches = n_microbatches
        self._loss_fn = loss_fn
        self._output_merge_spec = output_merge_spec
        self._chunk_specs = (args_chunk_spec, kwargs_chunk_spec)
        self._preprocess = preprocess
        self._engine: PipelineEngine | None = None
        self._input_dtypes: list[torch.dtype] | None = None
        self.scale_grads = scale_grads
        self.needs_grad_mode = True
        self.weight_fn: Callable[[Any], Any] | None = None
        self.dynamic_shapes = False
        self.overlap_p2p = True
        self.profile = False

    @property
    def plan(self) -> Plan:
        """What every rank does in a step, lowered and verified."""
        if self._plan is None:
            raise RuntimeError(f"{type(self).__name__} has no order: set self.pipeline_order in its __init__")
        return self._plan

    def _take_plan(self, plan: Plan) -> None:
        check_placement(self.stages, plan)
        plan = without_sharding(plan).lowered()
        if any(action.op is Op.I for order in plan.orders for action in order):
            refuse_compiled(self.stages)
        verify(plan)
        self._plan = plan

    def configure(
        self,
        *,
        dynamic_shapes: bool | None = None,
        weight_fn: Callable[[Any], Any] | None = None,
        overlap_p2p: bool | None = None,
        profile: bool | None = None,
    ) -> "PipelineSchedule":
        """Set what ``torch.distributed.pipelining`` has no argument for, before the first step; the same on every rank.

        Args:
            dynamic_shapes: Shapes and plain values that cross stages may change at every micro-batch.
            weight_fn: Target of a micro-batch → its weight in the mean, for example its valid tokens.
            overlap_p2p: False waits at each transfer instead of at the first use of what arrives.
            profile: Run each action in a ``torch.profiler`` range named by its text form, for example ``3F0``.

        Returns:
            The schedule.

        Raises:
            RuntimeError: The first step has run already.
        """
        if self._engine is not None:
            raise RuntimeError("configure must be called before the first step")
        self.weight_fn = self.weight_fn if weight_fn is None else weight_fn
        for name, value in (("dynamic_shapes", dynamic_shapes), ("overlap_p2p", overlap_p2p), ("profile", profile)):
            if value is not None:
                setattr(self, name, value)
        return self

    # -- steps -----------------------------------------------------------------------------------------------------

    # The annotations of both are torch's, so that inspect.signature gives the same.
    def step(
        self,
        *args,
        target=None,
        losses: list | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
        **kwargs,
    ):
        """Run one training step on a whole batch; without a loss function, the forwards only.

        Args:
            *args: Inputs of the model, of the whole batch; used on the first stage's rank.
            target: Whole batch's target, used on the last stage's rank.
            losses: Filled with the unweighted loss of every micro-batch, in order, on the last stage's rank.
            return_outputs: Keep and return the outputs, also in the last stage's ``output_chunks`` until the next step;
                False saves their memory.
            loss_kwargs: Further keywords of the loss function.
            **kwargs: Keywords of this rank's stages, split like inputs; each stage gets those it takes.

        Returns:
            The joined outputs on the last stage's rank, elsewhere None. ``.grad`` is added to, never rescaled.

        Raises:
            ValueError: The arguments don't fit the batch or the stages; nothing was sent. Where what enters or leaves a
                stage has another shape or element type than before, it is torch's ``PipeliningMetadataError`` too.
            RuntimeError: Gradients are switched off by ``torch.no_grad()`` or ``torch.inference_mode()``.
            PipelineError: An action failed; parameters and gradients are as they were.
        """
        training = self._loss_fn is not None
        if training and self.needs_grad_mode and not torch.is_grad_enabled():
            raise RuntimeError("step() computes gradients (got called under no_grad or inference_mode): call eval()")
        return self._run(args, kwargs, target, losses, return_outputs, loss_kwargs, training)

    def eval(self, *args, target=None, losses: list | None = None, **kwargs):
        """Run the forwards only; no gradient, graph or changed buffer is left behind.

        Args:
            *args: As for :meth:`step`.
            target: As for :meth:`step`; without it no loss is computed.
            losses: As for :meth:`step`.
            **kwargs: As for :meth:`step`.

        Returns:
            The joined outputs on the last stage's rank, elsewhere None.
        """
        return self._run(args, kwargs, target, losses, True, None, None)

    def _run(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        target: Any,
        losses: list[Any] | None,
        return_outputs: bool,
        loss_kwargs: dict[str, Any] | None,
        training: bool | None,
    ) -> Any:
        """Run a training step, the forwards of one (False), or an evaluation (None)."""
        engine = self.engine
        if self._last_stage is not None:
            self._last_stage.output_chunks = []
        inputs, stage_kwargs = self._cut_inputs(args, kwargs)
        targets, weights = self._cut_target(target, bool(training))
        keep = return_outputs and engine.has_last_stage
        step = StepInputs(inputs, targets, weights, bool(training), keep, stage_kwargs, loss_kwargs or {})
        self._transport.start_step(self._peers)
        self._before_run()
        if training:
            for sync, num_backwards in self._gradient_syncs:
                sync.expect(num_backwards)
            with earlier_gradients_set_aside(engine.all_stages()):
                result = self._run_engine(step)
        elif training is None:
            with state_kept([*(stage.submod for stage in self.stages), self._preprocess]):
                result = self._run_engine(step)
        else:
            result = self._run_engine(step)
        return self._deliver(result, losses)

    def _run_engine(self, step: StepInputs) -> StepResult:
        try:
            return self.engine.run(step)
        except PipelineError as error:
            if not isinstance(error.__cause__, ShapeError):
                raise
            self._transport.take_back_step(self._peers)
            raise MetadataError(str(error)) from error.__cause__

    def _before_run(self) -> None:
        """For schedules that have more to do; all ranks call it."""

    def _deliver(self, result: StepResult, losses: list[Any] | None) -> Any:
        if losses is not None and result.losses:
            losses.clear()
            losses.extend(result.losses[m].detach() for m in range(self._n_microbatches))
        if not result.outputs:
            return None
        outputs = [result.outputs[m] for m in range(self._n_microbatches)]
        if self._last_stage is not None:
            self._last_stage.output_chunks = outputs
        return merge_outputs(outputs, self._output_merge_spec, self._tensors)

    # -- a whole batch's arguments, by micro-batch -------------------------------------------------------------------

    def _cut_inputs(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Mapping[int, tuple[Any, Any]], Mapping[tuple[int, int], Mapping[str, Value]]]:
        needed = self._input_micro_batches
        if not needed and not kwargs:
            return {}, {}
        cut = self._cutter.cut(args if needed else (), kwargs)
        stage_kwargs = keywords_by_stage(self._modules, [chunk for _, chunk in cut], self._own_keywords)
        first = self.stages[self._first_position] if self._first_position is not None else None
        if first is not None and self._preprocess is None:
            self._check_inputs(cut[0][0], getattr(first, "input_args", None))
        inputs = {}
        for m in needed:
            own = cut[m][1] if self._own_keywords else stage_kwargs.get((0, m), {})
            inputs[m] = cut[m][0], own
        return inputs, stage_kwargs

    def _check_inputs(self, given: tuple[Value, ...], declared: Sequence[torch.Tensor] | None) -> None:
        """Refuse inputs of stage 0 that aren't as declared, or not of the element types of the first step."""
        fault = input_fault("input", given, declared)
        if fault is not None:
            raise MetadataError(f"stage 0 gets other inputs than declared: {fault}")
        dtypes = [leaf.dtype for leaf in flatten(given, self._tensors.is_tensor)[0]]
        if self._input_dtypes is None or self.dynamic_shapes:
            self._input_dtypes = dtypes
        elif dtypes != self._input_dtypes:
            raise MetadataError(
                f"stage 0 gets inputs of {dtypes}, before of {self._input_dtypes}: call configure(dynamic_shapes=True) "
                "before the first step if they change"
            )

    @property
    def _own_keywords(self) -> bool:
        """Whether keywords go to the preprocess block, or travel with the data, instead of to the stages."""
        return self.plan.transpose is not None

    def _cut_target(self, target: Any, training: bool) -> tuple[Mapping[int, Any], Sequence[float]]:
        if not self.engine.has_last_stage:
            return {}, ()
        if target is None or self._loss_fn is None:
            if training:
                raise ValueError("the rank of the last stage needs a target: step(target=...) (got None)")
            return {}, ()
        targets, sizes = self._cutter.cut_target(target)
        if self.scale_grads:
            weights = weights_of(sizes, targets, self.weight_fn, self._tensors)
        else:
            weights = [1.0] * self._n_microbatches
        return dict(enumerate(targets)), weights

    # -- set-up ----------------------------------------------------------------------------------------------------

    @property
    def engine(self) -> PipelineEngine:
        """The engine that runs this rank; made, and connected to the other ranks, at first use."""
        if self._engine is None:
            self._engine = self._make_engine()
        return self._engine

    def _make_engine(self) -> PipelineEngine:
        first = self.stages[0]
        device = torch.device(first.device)
        self._tensors = TorchTensors(device)
        self._transport = TorchTransport(first.group, device)
        rank = self._transport.rank
        check_same_plan(self.plan, self._transport)
        self._modules = {stage.stage_index: module_of(stage) for stage in self.stages}
        stages = {
            stage.stage_index: TorchStage(self._modules[stage.stage_index], getattr(stage, "dw_builder", None))
            for stage in self.stages
        }
        last = self.plan.shape.num_stages - 1
        self._last_stage = next((stage for stage in self.stages if stage.stage_index == last), None)
        engine = PipelineEngine(
            self.plan,
            rank,
            stages,
            self._transport,
            self._tensors,
            loss=TorchStage(self._loss_fn) if self._loss_fn is not None and last in stages else None,
            preprocess=None if self._preprocess is None else TorchStage(self._preprocess),
            overlap_p2p=self.overlap_p2p,
            dynamic_shapes=self.dynamic_shapes,
            seed=self._agree_on_seed(),
            named_range=record_function if self.profile else None,
        )
        self._cutter = BatchCutter(self._tensors, self._n_microbatches, *self._chunk_specs)
        self._input_micro_batches = engine.input_micro_batches
        indices = [stage.stage_index for stage in self.stages]
        self._first_position = indices.index(0) if 0 in indices else None
        self._peers = sorted(_peers_of(engine, rank))
        self._gradient_syncs = _backwards_of(engine, rank)
        self._transport.connect(self._peers)
        return engine

    def _agree_on_seed(self) -> int:
        """Return the base of the preprocess block's random numbers, the same on every rank."""
        if self._preprocess is None:
            return 0
        return int(self._transport.all_gather_object(torch.initial_seed() % 2**31)[0])

    @property
    def stage_index_to_group_rank(self) -> dict[int, int]:
        """The rank of every stage."""
        return {index: self.plan.shape.rank_of(index) for index in range(self.plan.shape.num_stages)}

    @property
    def pipeline_order(self) -> Mapping[int, Sequence[Any]]:
        """The compute actions of every rank, as ``torch.distributed.pipelining`` writes them.

        Where it is set, before the first step, its orders take the place of the schedule's own, and its stages may live
        on any ranks; see :func:`hyper_pp.torch_npu.pipeline_order.plan_of`.
        """
        return order_of(self.plan)

    @pipeline_order.setter
    def pipeline_order(self, order: Mapping[int, Sequence[Any]]) -> None:
        self._take_order(plan_of(order, self.stages[0].group_size))

    def _take_order(self, plan: Plan, format: OrderFormat = "compute_comms") -> None:
        if self._engine is not None:
            raise RuntimeError("pipeline_order must be set before the first step")
        check_order(plan, self.stages, self._n_microbatches, format)
        self._take_plan(plan)


def _backwards_of(engine: PipelineEngine, rank: int) -> list[tuple[GradientSync, int]]:
    """Return what steers the all-reduces of this rank's stages and block, with the backwards of each in a step."""
    count = engine.plan.shape.num_micro_batches
    found = [(stage.gradient_sync, count) for stage in engine.body.stages.values()]
    if engine.preprocess is not None and engine.preprocess.stage is not None:
        own = sum([action.op is Op.TB for action in engine.plan.orders[rank]])
        if rank == 0 and engine.preprocess_trainable:
            own += sum([engine.dependencies.is_connected(m) for m in range(count)])
        found.append((engine.preprocess.stage.gradient_sync, own))
    return [(stage, number) for stage, number in found if stage is not None]


def _peers_of(engine: PipelineEngine, rank: int) -> set[int]:
    """Return the ranks that this one exchanges messages with."""
    peers = set()
    for action in engine.plan.orders[rank]:
        other = _other_side(action)
        home = None if other is None else engine.dependencies.rank_of(other)
        if home is not None:
            peers.add(home)
    return peers


def _other_side(action: Action) -> Action | None:
    try:
        return partner(action)
    except (KeyError, AssertionError):  # computes, or is a collective
        return None
