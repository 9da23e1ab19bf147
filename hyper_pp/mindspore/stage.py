"""One model chunk, preprocess block or loss function of MindSpore as a stage that the engine can run."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import mindspore
import numpy
from mindspore import Parameter, Tensor, nn

from hyper_pp.mindspore import autograd, random, split_backward
from hyper_pp.mindspore.tensors import MindSporeTensors
from hyper_pp.protocols import TensorSpec, Value
from hyper_pp.tree import flatten, unflatten

_LOG = logging.getLogger("hyper_pp")
SMALL = 65536  # elements; counters and running statistics are smaller, weights of a frozen tower mostly aren't
_TENSORS = MindSporeTensors()


class CellTape:
    """What a recorded forward leaves for its backward.

    Args:
        owners: The stages whose parameters the graph holds, with these parameters.
        leaves: For each tensor of the positional inputs, the leaf whose gradient is wanted, or None.
        outputs: The tensors of the output.
    """

    def __init__(
        self,
        owners: list[tuple["CellStage", list[Parameter]]],
        leaves: Sequence[Tensor | None],
        outputs: Sequence[Tensor],
    ) -> None:
        self.owners = owners
        self.requires_grad: tuple[bool, ...] = tuple(autograd.in_graph(output) for output in outputs)
        self.leaves: list[Tensor | None] | None = list(leaves)
        self.outputs = [output if use else None for output, use in zip(outputs, self.requires_grad)]
        self.specs = [_TENSORS.spec(output) for output in outputs]
        self.remainder: split_backward.Remainder | None = None
        self.whole: list[Tensor | None] | None = None  # weight gradients of a backward that couldn't be split

    def parameters(self) -> list[Parameter]:
        """Return the trainable parameters in the graph, each once."""
        return list({id(parameter): parameter for _, owned in self.owners for parameter in owned}.values())


class CellStage:
    """Implements :class:`hyper_pp.protocols.Stage` around a Cell or a function.

    Args:
        function: What the forward calls; it takes and returns nested values of tensors. A Cell, or any callable; the
            Cells that a callable runs are found if it has them in ``layers``.
        parameters: Its parameters, frozen ones included, in an order that is the same on every rank. By default all
            parameters of these Cells.
        name: Says in error messages which stage this is.

    Raises:
        TypeError: ``function`` can't be called.
    """

    def __init__(
        self, function: Callable[..., Any], parameters: Sequence[Parameter] | None = None, name: str = "stage"
    ) -> None:
        if not callable(function):
            raise TypeError(f"{name} must be a Cell or a function (got {type(function).__name__})")
        self.function = function
        self.name = name
        tops = [function] if isinstance(function, nn.Cell) else getattr(function, "layers", [])
        self._cells = [cell for top in tops for _, cell in top.cells_and_names()]
        if parameters is None:
            found = {id(parameter): parameter for top in tops for parameter in top.get_parameters()}
            parameters = list(found.values())
        self._parameters = list(parameters)
        self._custom_backward = any(map(autograd.has_custom_backward, self._cells))
        self._dropouts = [cell for cell in self._cells if isinstance(cell, nn.Dropout)]
        self._gradients: dict[int, Tensor] = {}  # by id of the parameter
        self._told_whole = False
        self._large_state: set[int] | None = None  # positions of large buffers that a forward changes; None: not known

    def forward(
        self,
        args: tuple[Value, ...],
        kwargs: Mapping[str, Value],
        *,
        needs_grad: Sequence[bool],
        record: bool,
        seed: int | None = None,
        keep_buffers: bool = False,
        continues: CellTape | None = None,
    ) -> tuple[Value, CellTape | None]:
        """Run the forward on one micro-batch; see the protocol."""
        tensors, skeleton = flatten(args, _TENSORS.is_tensor)
        leaves = [
            autograd.leaf(tensor) if record and needs and tensor.is_floating_point() else None
            for tensor, needs in zip(tensors, needs_grad, strict=True)
        ]
        connected = [] if continues is None else continues.outputs  # stands in front of the other tensors
        given = [*connected, *leaves[len(connected) :]]
        inputs = [_detached(tensor) if use is None else use for tensor, use in zip(tensors, given)]
        args = unflatten(skeleton, inputs)
        if kwargs:
            tensors, skeleton = flatten(dict(kwargs), _TENSORS.is_tensor)
            kwargs = unflatten(skeleton, [_detached(tensor) for tensor in tensors])
        owners = [(self, self.parameters())] if record else []
        if continues is not None:
            owners, leaves = [*continues.owners, *owners], continues.leaves
        differentiable = record and (
            any(leaf is not None for leaf in leaves) or any(parameters for _, parameters in owners)
        )
        with contextlib.ExitStack() as stack:
            if keep_buffers:
                stack.enter_context(self._buffers_kept())
            if seed is not None:
                stack.enter_context(random.seeded(seed, self._dropouts))
            stack.enter_context(_device_named())
            if differentiable:
                output = autograd.record(self.function, args, kwargs, custom_backward=self._custom_backward)
            else:
                output = autograd.run_unrecorded(self.function, args, kwargs)
        if not record:
            return output, None
        tape = CellTape(owners, leaves, flatten(output, _TENSORS.is_tensor)[0])
        if not differentiable:
            tape.requires_grad = (False,) * len(tape.requires_grad)
        return output, tape

    def backward(self, tape: CellTape, output_grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Accumulate parameter gradients and return the gradients of the inputs; see the protocol."""
        outputs, grads, leaves = self._start_backward(tape, output_grads)
        inputs = [leaf for leaf in leaves if leaf is not None]
        found = autograd.backward(outputs, grads, [*inputs, *tape.parameters()])
        _accumulate(tape, found[len(inputs) :])
        return _aligned(leaves, found)

    def backward_input(self, tape: CellTape, output_grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the gradients of the inputs, leave those of the parameters to :meth:`backward_weight`."""
        autograd.require_support(split_backward=True)
        outputs, grads, leaves = self._start_backward(tape, output_grads)
        inputs, parameters = [leaf for leaf in leaves if leaf is not None], tape.parameters()
        graph = split_backward.examine(outputs, inputs, parameters)
        if graph.divisible:
            found, tape.remainder = split_backward.backward_input(graph, outputs, grads, inputs)
        else:
            if not self._told_whole:
                _LOG.warning(
                    "%s holds a jitted function or a Cell with bprop, whose backward can't be split: its weight "
                    "gradients are computed together with its input gradients",
                    self.name,
                )
                self._told_whole = True
            found = autograd.backward(outputs, grads, [*inputs, *parameters])
            tape.whole = found[len(inputs) :]
        return _aligned(leaves, found)

    def backward_weight(self, tape: CellTape) -> None:
        """Accumulate the parameter gradients that :meth:`backward_input` left; see the protocol."""
        if tape.whole is not None:
            _accumulate(tape, tape.whole)
        elif tape.remainder is not None:
            _accumulate(tape, split_backward.backward_weight(tape.remainder, tape.parameters()))
        else:
            raise RuntimeError(f"{self.name}: backward_weight must follow a backward_input of the same forward, once")
        tape.whole = tape.remainder = None

    def trainable(self) -> bool:
        """Tell whether any parameter has ``requires_grad``."""
        return any(parameter.requires_grad for parameter in self._parameters)

    def parameters(self) -> list[Parameter]:
        """Return the trainable parameters."""
        return [parameter for parameter in self._parameters if parameter.requires_grad]

    def buffers(self) -> list[Tensor]:
        """Return the frozen parameters and the registered buffers."""
        frozen = [parameter for parameter in self._parameters if not parameter.requires_grad]
        return frozen + [buffer for _, _, buffer in self._registered_buffers()]

    def small_buffers(self) -> list[Tensor]:
        """Return the buffers that may change as a model trains: counters and running statistics, not frozen weights."""
        return [buffer for buffer in self.buffers() if buffer.size <= SMALL]

    def gradients(self) -> list[Tensor | None]:
        """Return the accumulated gradients, aligned with :meth:`parameters`; nothing changes them later."""
        return [self._gradients.get(id(parameter)) for parameter in self.parameters()]

    def set_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        """Replace the accumulated gradients, aligned with :meth:`parameters`."""
        self._gradients = {
            id(parameter): grad
            for parameter, grad in zip(self.parameters(), gradients, strict=True)
            if grad is not None
        }

    def _start_backward(
        self, tape: CellTape, output_grads: Sequence[Tensor | None]
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor | None]]:
        if tape.leaves is None:
            raise RuntimeError(f"{self.name}: a forward can be differentiated once, its tape is used up")
        if len(output_grads) != len(tape.specs):
            raise ValueError(f"{self.name} has {len(tape.specs)} output tensors (got {len(output_grads)} gradients)")
        outputs, grads = [], []
        for index, (output, spec, grad) in enumerate(zip(tape.outputs, tape.specs, output_grads)):
            if output is None or grad is None:
                continue
            _check_grad(f"{self.name}: the gradient of output tensor {index}", grad, spec)
            outputs.append(output)
            grads.append(grad)
        leaves, tape.leaves, tape.outputs = tape.leaves, None, []
        return outputs, grads, leaves

    def _accumulate(self, parameter: Parameter, grad: Tensor) -> None:
        # A new tensor, never in place: what gradients() handed out may be a copy to fall back on.
        before = self._gradients.get(id(parameter))
        self._gradients[id(parameter)] = grad if before is None else _TENSORS.add(before, grad)

    def _registered_buffers(self) -> list[tuple[nn.Cell, str, Tensor]]:
        seen: set[int] = set()
        found = []
        for cell in self._cells:
            for name, buffer in getattr(cell, "_buffers", {}).items():
                if buffer is not None and id(buffer) not in seen:
                    seen.add(id(buffer))
                    found.append((cell, name, buffer))
        return found

    @contextlib.contextmanager
    def _buffers_kept(self) -> Iterator[None]:
        """Put buffers back afterwards. Of the large ones, copy only those that the first run was seen to change."""
        frozen = [parameter for parameter in self._parameters if not parameter.requires_grad]
        registered = self._registered_buffers()
        buffers = [*frozen, *(buffer for _, _, buffer in registered)]
        large = {position for position, buffer in enumerate(buffers) if buffer.size > SMALL}
        left_alone = set() if self._large_state is None else large - self._large_state
        values = {at: _copy(buffer) for at, buffer in enumerate(buffers) if at not in left_alone}
        try:
            yield
        finally:
            if self._large_state is None:
                self._large_state = {at for at in large if not _same(buffers[at], values[at])}
            for cell, name, buffer in registered:
                cell._buffers[name] = buffer
            # Not in place: a graph that was recorded inside the block may still need the values of then.
            for position, value in values.items():
                buffers[position].assign_value(value)


@contextlib.contextmanager
def _device_named() -> Iterator[None]:
    """Say on which device an operator doesn't exist for a dtype, which MindSpore leaves out."""
    try:
        yield
    except (RuntimeError, TypeError) as error:
        if "kernel data type" not in str(error):
            raise
        raise type(error)(f"on device {mindspore.get_context('device_target')}: {error}") from error


def _accumulate(tape: CellTape, found: Sequence[Tensor | None]) -> None:
    grads = {id(parameter): grad for parameter, grad in zip(tape.parameters(), found, strict=True)}
    for stage, parameters in tape.owners:
        for parameter in parameters:
            # Where two stages hold a parameter, its gradient counts the uses of both and belongs to the first.
            grad = grads.pop(id(parameter), None)
            if grad is not None:
                stage._accumulate(parameter, grad)


def _same(left: Tensor, right: Tensor) -> bool:
    return bool(numpy.array_equal(left.asnumpy(), right.asnumpy(), equal_nan=left.is_floating_point()))


def _detached(tensor: Tensor) -> Tensor:
    return autograd.cut(tensor) if autograd.in_graph(tensor) else tensor


def _copy(tensor: Tensor) -> Tensor:
    with autograd.no_grad():
        return autograd.cut(tensor).copy()


def _check_grad(what: str, grad: Tensor, spec: TensorSpec) -> None:
    found = _TENSORS.spec(grad)
    if found != spec:
        raise ValueError(f"{what} must be {spec} (got {found})")


def _aligned(leaves: Sequence[Tensor | None], found: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Put the gradients in ``found`` where their leaves are; zeros where nothing depends on a leaf."""
    grads = iter(found)
    result: list[Tensor | None] = []
    for leaf in leaves:
        grad = None if leaf is None else next(grads)
        result.append(_TENSORS.full(_TENSORS.spec(leaf), 0.0) if leaf is not None and grad is None else grad)
    return result
