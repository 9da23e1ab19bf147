"""The engine's half for the body: forwards, backwards and transfers of this rank's stages, and the loss."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hyper_pp.actions import Action, AnyOp, Op
from hyper_pp.boundary import Boundaries, Delivery, Packed
from hyper_pp.preprocess import PreprocessRunner
from hyper_pp.protocols import Pending, Stage, Tape, Tensor, Tensors, TensorSpec, Value
from hyper_pp.shape import PipelineShape
from hyper_pp.step import StepInputs, StepResult
from hyper_pp.tree import flatten

StageKey = tuple[int, int]  # stage, micro-batch


@dataclass
class Forwarded:
    """What a stage's forward leaves for its backward."""

    stage: Stage  # runs the backward: the loss function where its graph continues the last stage's
    tape: Tape
    needs_grad: Sequence[bool]  # for each tensor of the input: its gradient travels on
    output_specs: tuple[TensorSpec, ...]  # requires_grad: its gradient comes back


class BodyRunner:
    """Handles the actions of one rank's stages.

    Args:
        shape: Of the plan.
        stages: This rank's stages by global stage.
        loss: Takes (output, target) and returns a scalar; None where the last stage isn't.
        preprocess: Where stage 0's inputs come from and their gradients go; None in a plan without a preprocess block.
        tensors: The framework's tensor operations.
        boundaries: Sends and receives.
    """

    def __init__(
        self,
        shape: PipelineShape,
        stages: Mapping[int, Stage],
        loss: Stage | None,
        preprocess: PreprocessRunner | None,
        tensors: Tensors,
        boundaries: Boundaries,
    ) -> None:
        self.stages = dict(stages)
        self.loss = loss
        self._preprocess = preprocess
        self._tensors = tensors
        self._boundaries = boundaries
        self._last_stage = shape.num_stages - 1
        self._rank_of = shape.rank_of

    def begin(self, step: StepInputs, result: StepResult) -> None:
        """Start a step with empty buffers; each is freed by the action that last needs it."""
        self._step = step
        self._result = result
        self._inputs: dict[StageKey, Delivery] = {}
        self._outgoing: dict[StageKey, Packed] = {}
        self._forwarded: dict[StageKey, Forwarded] = {}
        self._output_grads: dict[StageKey, list[Tensor] | Pending] = {}
        self._input_grads: dict[StageKey, list[Tensor]] = {}
        self._weight_grads: dict[tuple[TensorSpec, float], Tensor] = {}  # the losses' gradients; mostly one for all

    def handlers(self) -> dict[AnyOp, Callable[[Action], None]]:
        """Return the handler of every op of the body."""
        return {
            Op.F: self._forward,
            Op.B: self._backward,
            Op.I: self._backward_input,
            Op.W: self._backward_weight,
            Op.SEND_F: self._send_forward,
            Op.RECV_F: self._recv_forward,
            Op.SEND_B: self._send_backward,
            Op.RECV_B: self._recv_backward,
        }

    # -- forward -------------------------------------------------------------------------------------------------

    def _forward(self, action: Action) -> None:
        stage, m = action.stage, action.micro_batch
        assert m is not None
        args, kwargs, needs_grad = self._take_inputs(stage, m)
        training = self._step.training
        output, tape = self.stages[stage].forward(args, kwargs, needs_grad=needs_grad, record=training)
        packed = self._boundaries.pack(output, tape.requires_grad if tape is not None else ())
        if tape is not None:
            self._forwarded[stage, m] = Forwarded(self.stages[stage], tape, needs_grad, packed.header.specs)
        if stage == self._last_stage:
            self._finish_forward(m, output)
        elif self._is_local(stage + 1):
            self._inputs[stage + 1, m] = Delivery(output, [spec.requires_grad for spec in packed.header.specs])
        else:
            self._outgoing[stage, m] = packed

    def _take_inputs(self, stage: int, m: int) -> tuple[tuple[Value, ...], Mapping[str, Value], Sequence[bool]]:
        if stage > 0:
            value, needs_grad = self._inputs.pop((stage, m)).get()
            return as_args(value), self._step.stage_kwargs.get((stage, m), {}), needs_grad
        if self._preprocess is not None:
            return self._preprocess.take_output(m)
        args, kwargs = self._step.inputs[m]
        return args, kwargs, self._all_false(args)

    def _finish_forward(self, m: int, output: Value) -> None:
        """Compute the micro-batch's loss, and keep what is wanted of the output."""
        step = self._step
        if step.keep_outputs:
            self._result.outputs[m] = output
        if self.loss is None or (m not in step.targets and not step.training):
            return
        args = output, step.targets[m]
        # The loss of a micro-batch without valid tokens may be NaN: of weight 0 nothing is differentiated.
        forwarded = self._forwarded.get((self._last_stage, m)) if step.training and step.weights[m] != 0 else None
        below = None if forwarded is None else forwarded.tape
        loss, tape = self.loss.forward(
            args, step.loss_kwargs, needs_grad=self._all_false(args), record=below is not None, continues=below
        )
        if not self._tensors.is_tensor(loss) or self._tensors.spec(loss).shape != ():
            what = f"shape {list(self._tensors.spec(loss).shape)}" if self._tensors.is_tensor(loss) else repr(loss)
            raise ValueError(
                f"the loss must be a scalar tensor of shape () (got {what}): reduce it in the loss function"
            )
        self._result.losses[m] = loss
        if forwarded is not None and tape is not None:
            forwarded.stage, forwarded.tape = self.loss, tape

    # -- backward ------------------------------------------------------------------------------------------------

    def _backward(self, action: Action) -> None:
        stage, m, forwarded, grads = self._take_output_grads(action)
        self._pass_input_grads(stage, m, forwarded, forwarded.stage.backward(forwarded.tape, grads))

    def _backward_input(self, action: Action) -> None:
        stage, m, forwarded, grads = self._take_output_grads(action)
        self._forwarded[stage, m] = forwarded
        self._pass_input_grads(stage, m, forwarded, forwarded.stage.backward_input(forwarded.tape, grads))

    def _backward_weight(self, action: Action) -> None:
        assert action.micro_batch is not None
        forwarded = self._forwarded.pop((action.stage, action.micro_batch))
        forwarded.stage.backward_weight(forwarded.tape)

    def _take_output_grads(self, action: Action) -> tuple[int, int, Forwarded, list[Tensor | None]]:
        """Return the gradients that a stage's backward starts from, aligned with the tensors of its output."""
        stage, m = action.stage, action.micro_batch
        assert m is not None
        forwarded = self._forwarded.pop((stage, m))
        if stage == self._last_stage:
            return stage, m, forwarded, self._loss_grads(m, forwarded)
        arrived = self._output_grads.pop((stage, m))
        grads = iter(arrived if isinstance(arrived, list) else arrived.wait())
        return stage, m, forwarded, [next(grads) if spec.requires_grad else None for spec in forwarded.output_specs]

    def _loss_grads(self, m: int, forwarded: Forwarded) -> list[Tensor | None]:
        """Return the last stage's output gradients: the loss's weight, or zeros where the loss doesn't count."""
        weight = self._step.weights[m]
        if forwarded.stage is not self.loss:
            return [self._tensors.full(spec, 0.0) if spec.requires_grad else None for spec in forwarded.output_specs]
        key = self._tensors.spec(self._result.losses[m]), weight
        if key not in self._weight_grads:
            self._weight_grads[key] = self._tensors.full(*key)
        return [self._weight_grads[key]]

    def _pass_input_grads(self, stage: int, m: int, forwarded: Forwarded, grads: Sequence[Tensor | None]) -> None:
        wanted = [grad for grad, need in zip(grads, forwarded.needs_grad) if need and grad is not None]
        if stage == 0:
            if self._preprocess is not None:
                self._preprocess.accept_gradients(m, wanted)
        elif self._is_local(stage - 1):
            self._output_grads[stage - 1, m] = wanted
        else:
            self._input_grads[stage, m] = wanted

    # -- transfers -----------------------------------------------------------------------------------------------

    def _send_forward(self, action: Action) -> None:
        assert action.micro_batch is not None
        packed = self._outgoing.pop((action.stage, action.micro_batch))
        self._boundaries.send(action, packed, self._rank_of(action.stage + 1))

    def _recv_forward(self, action: Action) -> None:
        assert action.micro_batch is not None
        peer = self._rank_of(action.stage - 1)
        self._inputs[action.stage, action.micro_batch] = self._boundaries.recv(action, peer)

    def _send_backward(self, action: Action) -> None:
        assert action.micro_batch is not None
        grads = self._input_grads.pop((action.stage, action.micro_batch))
        self._boundaries.send_gradients(grads, self._rank_of(action.stage - 1))

    def _recv_backward(self, action: Action) -> None:
        assert action.micro_batch is not None
        key = action.stage, action.micro_batch
        forwarded = self._forwarded.get(key)  # not there yet if the receive is posted early; then it comes as last step
        specs = None if forwarded is None else [spec for spec in forwarded.output_specs if spec.requires_grad]
        self._output_grads[key] = self._boundaries.recv_gradients(specs, self._rank_of(action.stage + 1), action)

    # -- small helpers -------------------------------------------------------------------------------------------

    def _is_local(self, stage: int) -> bool:
        return stage in self.stages

    def _all_false(self, value: Value) -> tuple[bool, ...]:
        return (False,) * len(flatten(value, self._tensors.is_tensor)[0])


def as_args(value: Value) -> tuple[Value, ...]:
    """Return a stage's output as the next stage's positional inputs: a tuple is spread, anything else is one input."""
    return value if type(value) is tuple else (value,)
