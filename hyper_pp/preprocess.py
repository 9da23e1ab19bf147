"""The engine's half for the preprocess block: its forward on the owner, its backward on rank 0 or on the owner."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hyper_pp.actions import Action, AnyOp, Op
from hyper_pp.boundary import Boundaries, Delivery
from hyper_pp.dependencies import Dependencies
from hyper_pp.plan import Plan
from hyper_pp.protocols import Pending, Stage, Tape, Tensor, Tensors, TensorSpec, Transport, Value
from hyper_pp.step import StepInputs
from hyper_pp.tree import flatten

Inputs = tuple[tuple[Value, ...], Mapping[str, Value]]


@dataclass
class _Output:
    """A block output that waits for its gradient."""

    specs: list[TensorSpec | None]  # of the tensors whose gradients come back from stage 0


class PreprocessRunner:
    """Handles the ``*T*`` actions of one rank.

    A block of layers (or a tower) turns a micro-batch's inputs into stage 0's inputs. Without a block (data only) the
    inputs themselves are what travels, keywords included.

    Args:
        plan: Has a preprocess block.
        rank: This rank in the pipeline.
        stage: The block; None if only data is spread.
        seed: Base of the block's random numbers, the same on every rank, so that a recompute on another rank draws the
            same dropout.
        tensors: The framework's tensor operations.
        transport: Broadcasts the block's parameters and sums its gradients.
        boundaries: Sends and receives.

    Raises:
        ValueError: The plan's block has layers or parameters, but there is no ``stage``; or the other way round.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        stage: Stage | None,
        seed: int,
        tensors: Tensors,
        transport: Transport,
        boundaries: Boundaries,
    ) -> None:
        transpose = plan.transpose
        assert transpose is not None
        if (stage is None) != (transpose.num_layers == 0):
            raise ValueError(
                "the plan spreads data only (num_layers 0), but a preprocess block was given"
                if stage is not None
                else f"the plan has a preprocess block (num_layers {transpose.num_layers}), but none was given"
            )
        if stage is not None and transpose.frozen and stage.trainable():
            raise ValueError(
                "the plan's preprocess block is frozen, but the block has trainable parameters: "
                "set requires_grad=False on them, or build the plan with frozen=False"
            )
        self.stage = stage
        self._transpose = transpose
        self._trainable = not transpose.frozen
        self._rank = rank
        self._num_micro_batches = plan.shape.num_micro_batches
        self._seed = seed
        self._tensors = tensors
        self._transport = transport
        self._boundaries = boundaries
        self._dependencies = Dependencies(plan.shape, transpose, plan.orders)
        self._sent: list[Tensor] | None = None  # on rank 0: the parameters as the replicas have them

    def begin(self, step: StepInputs, number: int) -> None:
        """Start the step of that number with empty buffers."""
        self._step = step
        self._step_number = number
        self._outputs: dict[int, Delivery] = {}  # on rank 0, for stage 0
        self._outgoing: dict[int, tuple[Value, tuple[bool, ...]]] = {}
        self._shipped_inputs: dict[int, Delivery] = {}
        self._waiting: dict[int, _Output] = {}
        self._tapes: dict[int, Tape] = {}
        self._gradients: dict[int, list[Tensor] | Pending] = {}

    def handlers(self) -> dict[AnyOp, Callable[[Action], None]]:
        """Return the handler of every op of the block."""
        return {
            Op.BCAST_T: self._broadcast,
            Op.TF: self._forward,
            Op.SEND_TF: self._send_output,
            Op.RECV_TF: self._recv_output,
            Op.SEND_TX: self._send_input,
            Op.RECV_TX: self._recv_input,
            Op.TB: self._backward,
            Op.SEND_TB: self._send_gradients,
            Op.RECV_TB: self._recv_gradients,
            Op.REDUCE_T: self._reduce,
        }

    # -- what stage 0 asks for -------------------------------------------------------------------------------------

    def take_output(self, m: int) -> tuple[tuple[Value, ...], Mapping[str, Value], Sequence[bool]]:
        """Return stage 0's inputs for a micro-batch, and which of their tensors need a gradient."""
        if self._dependencies.runs_in_forward(m):
            value, needs_grad = self._run_unrecorded(self._step.inputs[m])
        else:
            value, needs_grad = self._outputs.pop(m).get()
        if self.stage is None:
            args, kwargs = value
            return args, kwargs, [False] * self._count(args)
        args = value if type(value) is tuple else (value,)
        if self._step.training and any(needs_grad):
            tensors = self._tensors
            leaves, _ = flatten(args, tensors.is_tensor)
            self._waiting[m] = _Output([tensors.spec(leaf) if use else None for leaf, use in zip(leaves, needs_grad)])
        return args, {}, needs_grad

    def accept_gradients(self, m: int, grads: list[Tensor]) -> None:
        """Take the gradients of stage 0's inputs; where the block stayed connected, run its backward at once."""
        if not self._trainable:
            return
        if m in self._tapes and self._dependencies.is_connected(m):
            self._run_backward(m, self._tapes.pop(m), grads)
        else:
            self._gradients[m] = grads

    # -- forward ---------------------------------------------------------------------------------------------------

    def _forward(self, action: Action) -> None:
        m = action.micro_batch
        assert m is not None
        inputs = self._step.inputs[m]
        keeps_tape = self._step.training and self._trainable and self._keeps_tape(m)
        if keeps_tape:
            assert self.stage is not None
            args, kwargs = inputs
            value, tape = self.stage.forward(
                args, kwargs, needs_grad=[False] * self._count(args), record=True, seed=self._seed_of(m)
            )
            assert tape is not None
            self._tapes[m] = tape
            needs_grad: tuple[bool, ...] = tape.requires_grad
        else:
            value, needs_grad = self._run_unrecorded(inputs, self._seed_of(m), keep_buffers=self._rank != 0)
        if self._dependencies.owner_of(m) == 0:
            self._outputs[m] = Delivery(value, needs_grad)
        else:
            self._outgoing[m] = value, needs_grad

    def _keeps_tape(self, m: int) -> bool:
        """Tell whether the owner's forward is recorded for the backward, rather than run again then."""
        if self._transpose.backward == "owner":
            return not self._transpose.recompute
        return self._dependencies.is_connected(m)

    def _run_unrecorded(
        self, inputs: Inputs, seed: int | None = None, keep_buffers: bool = False
    ) -> tuple[Value, tuple[bool, ...]]:
        if self.stage is None:
            return inputs, (False,) * self._count(inputs)
        args, kwargs = inputs
        value, _ = self.stage.forward(
            args, kwargs, needs_grad=[False] * self._count(args), record=False, seed=seed, keep_buffers=keep_buffers
        )
        tensors = self._tensors
        leaves, _ = flatten(value, tensors.is_tensor)
        wanted = self._step.training and self._trainable
        # Without a graph there is no telling which outputs depend on parameters: any float one may.
        return value, tuple(wanted and tensors.is_floating(leaf) for leaf in leaves)

    # -- backward --------------------------------------------------------------------------------------------------

    def _backward(self, action: Action) -> None:
        m = action.micro_batch
        assert m is not None
        arrived = self._gradients.pop(m)
        grads = arrived if isinstance(arrived, list) else arrived.wait()
        tape = self._tapes.pop(m, None)
        self._run_backward(m, self._recompute(m) if tape is None else tape, grads)

    def _recompute(self, m: int) -> Tape:
        """Run the block's forward again, recorded, drawing the same random numbers and counting in no buffer."""
        assert self.stage is not None
        if m in self._shipped_inputs:
            (args, kwargs), _ = self._shipped_inputs.pop(m).get()
        else:
            args, kwargs = self._step.inputs[m]
        _, tape = self.stage.forward(
            args,
            kwargs,
            needs_grad=[False] * self._count(args),
            record=True,
            seed=self._seed_of(m),
            keep_buffers=True,
        )
        assert tape is not None
        return tape

    def _run_backward(self, m: int, tape: Tape, grads: Sequence[Tensor]) -> None:
        assert self.stage is not None
        given = iter(grads)
        specs = self._waiting.pop(m).specs
        aligned = [None if spec is None else next(given) for spec in specs]
        usable = [grad if use else None for grad, use in zip(aligned, tape.requires_grad)]
        self.stage.backward(tape, usable)

    # -- transfers -------------------------------------------------------------------------------------------------

    def _broadcast(self, action: Action) -> None:
        """Bring the replicas up to date, where rank 0's parameters changed since the last time.

        Values are compared, not version counters: optimizers write past those. It takes a copy on rank 0, and one
        element that tells the others.
        """
        assert self.stage is not None
        tensors, transport, parameters = self._tensors, self._transport, self.stage.parameters()
        if not parameters or transport.num_ranks == 1:
            return
        known = self._sent is not None and len(self._sent) == len(parameters)
        changed = self._rank == 0 and not (known and tensors.same(parameters, self._sent or ()))
        flag = tensors.full(tensors.spec(parameters[0])._replace(shape=(1,)), float(changed))
        transport.broadcast([flag], 0)
        if tensors.number(flag) == 0:
            return
        transport.broadcast(parameters, 0)
        if self._rank == 0:
            self._sent = [tensors.copy(parameter) for parameter in parameters]

    def _send_output(self, action: Action) -> None:
        assert action.micro_batch is not None
        value, requires_grad = self._outgoing.pop(action.micro_batch)
        if self._transpose.backward == "owner" and any(requires_grad):
            tensors = self._tensors
            leaves, _ = flatten(value, tensors.is_tensor)
            self._waiting[action.micro_batch] = _Output(
                [tensors.spec(leaf) if use else None for leaf, use in zip(leaves, requires_grad)]
            )
        self._boundaries.send(action, self._boundaries.pack(value, requires_grad), 0)

    def _recv_output(self, action: Action) -> None:
        assert action.micro_batch is not None
        owner = self._dependencies.owner_of(action.micro_batch)
        self._outputs[action.micro_batch] = self._boundaries.recv(action, owner)

    def _send_input(self, action: Action) -> None:
        assert action.micro_batch is not None
        inputs = self._step.inputs[action.micro_batch]
        self._boundaries.send(action, self._boundaries.pack(inputs, ()), 0)

    def _recv_input(self, action: Action) -> None:
        assert action.micro_batch is not None
        owner = self._dependencies.owner_of(action.micro_batch)
        self._shipped_inputs[action.micro_batch] = self._boundaries.recv(action, owner)

    def _send_gradients(self, action: Action) -> None:
        m = action.micro_batch
        assert m is not None
        self._waiting.pop(m, None)
        grads = self._gradients.pop(m)
        assert isinstance(grads, list)
        self._boundaries.send_gradients(grads, self._dependencies.owner_of(m))

    def _recv_gradients(self, action: Action) -> None:
        m = action.micro_batch
        assert m is not None
        specs = self._waiting[m].specs if m in self._waiting else []
        self._gradients[m] = self._boundaries.recv_gradients([spec for spec in specs if spec is not None], 0, action)

    def _reduce(self, action: Action) -> None:
        """Sum the block's gradients onto rank 0, which alone keeps what earlier steps accumulated."""
        stage, tensors = self.stage, self._tensors
        assert stage is not None
        found = stage.gradients()
        specs = [tensors.spec(parameter) for parameter in stage.parameters()]
        if not specs:
            return
        # How many ranks have a gradient of each parameter: what none has stays None, as in one process.
        counter = specs[0]._replace(shape=(1,))
        if any(grad is None for grad in found):
            count = tensors.concat([tensors.full(counter, float(grad is not None)) for grad in found], 0)
        else:
            count = tensors.full(counter._replace(shape=(len(found),)), 1.0)
        grads = [tensors.full(spec, 0.0) if grad is None else grad for spec, grad in zip(specs, found)]
        *summed, count = self._transport.reduce([*grads, count], 0)
        if self._rank != 0:
            stage.set_gradients([None] * len(specs))
            return
        stage.set_gradients(
            [
                None if grad is None and tensors.number(tensors.narrow(count, 0, index, 1)) == 0 else total
                for index, (grad, total) in enumerate(zip(found, summed))
            ]
        )

    # -- small helpers ---------------------------------------------------------------------------------------------

    def _seed_of(self, m: int) -> int | None:
        """Return the seed of the block's random numbers for a micro-batch of this step."""
        if not self._trainable:
            return None
        return (self._seed + self._step_number * self._num_micro_batches + m) % 2**31

    def _count(self, value: Value) -> int:
        return len(flatten(value, self._tensors.is_tensor)[0])
