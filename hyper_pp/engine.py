"""The engine: runs one rank's order of a plan against stages and a transport.

It knows no framework and no schedule. Who does what, in which order, and what can be let go when, is in the plan.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

from hyper_pp.actions import Action, AnyOp, CustomOp, Op, Order, declare_op
from hyper_pp.body import BodyRunner
from hyper_pp.boundary import Boundaries
from hyper_pp.dependencies import Dependencies
from hyper_pp.errors import PipelineError, ShapeError
from hyper_pp.passes import receives_earlier
from hyper_pp.plan import Plan
from hyper_pp.preprocess import PreprocessRunner
from hyper_pp.protocols import Stage, Tensors, Transport
from hyper_pp.step import StepInputs, StepResult
from hyper_pp.verify import verify

Handler = Callable[[Action], None]

EVALUATION_OPS = frozenset({Op.F, Op.SEND_F, Op.RECV_F, Op.BCAST_T, Op.TF, Op.SEND_TF, Op.RECV_TF})
_NOTHING = StepInputs({}, {}, ())


class PipelineEngine:
    """Runs one rank's part of a plan, once per step.

    Args:
        plan: Verified here; lowered if it holds compute actions only.
        rank: This rank in the pipeline.
        stages: This rank's stages by global stage.
        transport: Connects the ranks of the pipeline.
        tensors: The framework's tensor operations.
        loss: Takes (output, target) and returns a scalar; needed on the rank of the last stage.
        preprocess: The preprocess block; needed where the plan has one, unless it spreads data only.
        overlap_p2p: False: wait at each transfer. True: wait at the first use of what arrives.
        dynamic_shapes: Shapes and plain values that cross stages may change at every micro-batch.
        seed: Base of the random numbers of the preprocess block; the same on every rank.
        named_range: Makes a profiler range; each action runs in one named by its text form.

    Raises:
        ScheduleError: The plan doesn't hold.
        ValueError: Plan, rank, stages and transport don't fit together.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        stages: Mapping[int, Stage],
        transport: Transport,
        tensors: Tensors,
        *,
        loss: Stage | None = None,
        preprocess: Stage | None = None,
        overlap_p2p: bool = False,
        dynamic_shapes: bool = False,
        seed: int = 0,
        named_range: Callable[[str], AbstractContextManager[Any]] | None = None,
    ) -> None:
        plan = plan.lowered()
        verify(plan)
        shape = plan.shape
        if transport.num_ranks != shape.num_ranks:
            raise ValueError(f"the plan is for {shape.num_ranks} ranks, the pipeline has {transport.num_ranks}")
        if sorted(stages) != sorted(shape.stages_of(rank)):
            raise ValueError(f"rank {rank} holds stages {sorted(shape.stages_of(rank))} (got {sorted(stages)})")
        if preprocess is not None and plan.transpose is None:
            raise ValueError(f"schedule {plan.schedule} has no preprocess block, but one was given")
        self.plan = plan
        self.rank = rank
        self.tensors = tensors
        self.transport = transport
        self.dependencies = Dependencies(shape, plan.transpose, plan.orders)
        self.overlap_p2p = overlap_p2p
        self.num_steps = 0
        self.timeline: list[tuple[Action, float, float]] | None = None
        self._named_range = named_range
        order = plan.orders[rank]
        self._orders = {True: order, False: tuple(action for action in order if action.op in EVALUATION_OPS)}
        # Once shapes are agreed, receives may stand earlier where the transport gains by it.
        self._may_settle = overlap_p2p and not dynamic_shapes
        self._settled_orders: dict[bool, Order] = {}
        self._programs: dict[bool, list[tuple[Handler, Action]]] = {}
        self._boundaries = Boundaries(transport, tensors, dynamic_shapes=dynamic_shapes, overlap=overlap_p2p)
        self.preprocess: PreprocessRunner | None = None
        if plan.transpose is not None:
            self.preprocess = PreprocessRunner(plan, rank, preprocess, seed, tensors, transport, self._boundaries)
        self.body = BodyRunner(shape, stages, loss, self.preprocess, tensors, self._boundaries)
        self._handlers: dict[AnyOp, Handler] = {
            **self.body.handlers(),
            **(self.preprocess.handlers() if self.preprocess is not None else {}),
        }
        for action in order:
            if action.op not in self._handlers and not isinstance(action.op, CustomOp):
                raise ValueError(f"rank {rank}: the engine can't run {action.op} (action {action}) of this plan")
        self._begin(_NOTHING)

    # -- what users see ------------------------------------------------------------------------------------------

    @property
    def num_transposed(self) -> int:
        """NT, the micro-batches whose block forward the plan spreads over the ranks; 0 without a preprocess block."""
        return 0 if self.plan.transpose is None else self.dependencies.num_transposed

    @property
    def preprocess_trainable(self) -> bool:
        """Whether the plan trains its preprocess block."""
        return self.plan.transpose is not None and not self.plan.transpose.frozen

    @property
    def input_micro_batches(self) -> tuple[int, ...]:
        """Micro-batches whose inputs this rank must pass to :meth:`run`, ascending."""
        first = set()
        for action in self._orders[True]:
            starts = action.op is Op.F and action.stage == 0 and not self.dependencies.needs(action)
            if action.micro_batch is not None and (action.op is Op.TF or starts):
                first.add(action.micro_batch)
        return tuple(sorted(first))

    @property
    def has_last_stage(self) -> bool:
        """Whether this rank computes the loss."""
        return self.plan.shape.num_stages - 1 in self.body.stages

    def all_stages(self) -> list[Stage]:
        """Return everything with parameters on this rank: the preprocess block, the stages in order, the loss."""
        block = None if self.preprocess is None else self.preprocess.stage
        stages = [self.body.stages[index] for index in sorted(self.body.stages)]
        return [stage for stage in (block, *stages, self.body.loss) if stage is not None]

    def register(
        self, op: AnyOp | str, handler: Handler, *, after: Sequence[Op] = (), before: Sequence[Op] = ()
    ) -> CustomOp:
        """Give an added Op its handler.

        Args:
            op: Declared with ``declare_op``, or its name, which is declared here with ``after`` and ``before``.
            handler: Called with the action where it stands in the order; training steps only.
            after: Ops of the same stage and micro-batch that come earlier.
            before: Ops of the same stage and micro-batch that come later.

        Returns:
            The op.

        Raises:
            ValueError: The op is built in.
        """
        if isinstance(op, str) and not isinstance(op, Op):
            op = declare_op(op, after=tuple(after), before=tuple(before))
        if not isinstance(op, CustomOp):
            raise ValueError(f"op {op} is built in; only added ops can be registered")
        self._handlers[op] = handler
        self._programs.clear()
        return op

    def run(self, step: StepInputs) -> StepResult:
        """Run this rank's order once.

        Args:
            step: Inputs, targets and weights of this step's micro-batches.

        Returns:
            Losses and outputs, on the rank of the last stage.

        Raises:
            PipelineError: An action failed; the text names rank, action, position and step. Parameters are untouched,
                gradients are as they were before, and every other rank is told to end with this cause; unless the
                cause is a ShapeError and nothing has been exchanged in this step.
        """
        training = step.training
        program = self._programs.get(training) or self._make_program(training)
        result = self._begin(step)
        before = [(stage, stage.gradients()) for stage in self.all_stages()] if training else []
        action: Action | None = None
        try:
            if self._named_range is None and self.timeline is None:
                for handler, action in program:  # the error below tells how far it came
                    handler(action)
            else:
                for handler, action in program:
                    self._perform_traced(handler, action)
            self._boundaries.finish()
        except BaseException as error:
            for stage, gradients in before:
                stage.set_gradients(gradients)
            self._fail(error, action, training)
        finally:
            self._begin(_NOTHING)
        if self._may_settle and training not in self._settled_orders:
            self._settle(training)
        if training:
            self.num_steps += 1
        return result

    def _settle(self, training: bool) -> None:
        """Let receives stand as early, and as many sends be under way, as the transport says for what it has seen."""
        lookahead = self.transport.lookahead
        self._settled_orders[training] = receives_earlier(self._orders[training], lookahead)
        self._boundaries.max_sends = max(self._boundaries.max_sends, lookahead)
        self._programs.pop(training, None)

    def _make_program(self, training: bool) -> list[tuple[Handler, Action]]:
        """Look every action's handler up, once for all steps."""
        order = self._settled_orders.get(training, self._orders[training])
        for action in order:
            if action.op not in self._handlers:
                raise ValueError(f"no handler for {action.op} (action {action}): call engine.register first")
        self._programs[training] = [(self._handlers[action.op], action) for action in order]
        return self._programs[training]

    # -- running -------------------------------------------------------------------------------------------------

    def _begin(self, step: StepInputs) -> StepResult:
        """Start with empty buffers, since nothing of an earlier step may stay; return what the step will fill."""
        result = StepResult()
        self._boundaries.begin(training=step.training)
        self.body.begin(step, result)
        if self.preprocess is not None:
            self.preprocess.begin(step, self.num_steps)
        return result

    def _fail(self, error: BaseException, action: Action | None, training: bool) -> NoReturn:
        kind = "step" if training else "evaluation after step"
        cause = str(error)
        if not isinstance(error, (ValueError, RuntimeError, TypeError)) or not cause:
            cause = f"{type(error).__name__}: {cause}"
        order = self._orders[training]
        position = 0 if action is None else order.index(action) + 1
        place = f"action {position} of {len(order)}, {kind} {self.num_steps}"
        text = f"rank {self.rank}: {action or 'no action'} ({place}) failed: {cause}"
        # Another shape that is found before anything was exchanged is an argument's fault like any other: the step can
        # be called again with the right one, and a script that lets the error through ends the other ranks by itself.
        untouched = self.plan.transpose is None and not self._boundaries.exchanged
        if not (untouched and isinstance(error, ShapeError)):
            self.transport.abort(text)
        if isinstance(error, Exception):
            raise PipelineError(text) from error
        raise error

    def _perform_traced(self, handler: Handler, action: Action) -> None:
        start = time.perf_counter()
        with self._named_range(str(action)) if self._named_range is not None else nullcontext():
            handler(action)
        if self.timeline is not None:
            self.timeline.append((action, start, time.perf_counter()))
