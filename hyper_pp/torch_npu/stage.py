"""A module as a stage: forwards that are cut from each other, backwards in any order."""

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining.stage import _PipelineStageBase as _PipelineStageBase
from torch.distributed.pipelining.stage import build_stage as build_stage

from hyper_pp.protocols import Value
from hyper_pp.torch_npu.data_parallel import GradientSync, gradient_sync
from hyper_pp.torch_npu.pipeline_stage import PipelineStage as PipelineStage
from hyper_pp.torch_npu.split_backward import WeightHalf, backward_input
from hyper_pp.tree import flatten, unflatten

# torch's module of this name has PipelineStage, build_stage and _PipelineStageBase; an import that changes finds them.

_LOG = logging.getLogger("hyper_pp")
Tensor = torch.Tensor


class TorchTape:
    """What a recorded forward leaves for its backward.

    Args:
        inputs: For each tensor of the positional inputs, the leaf whose gradient is wanted, or None.
        outputs: For each tensor of the output, the tensor with its graph.
        dw_builder: Of the stage, see there.
        gradient_sync: Says when the stage's gradients meet those of its replicas, if it has some.
    """

    __slots__ = ("dw_builder", "gradient_sync", "inputs", "is_whole", "outputs", "requires_grad", "weight_half")

    def __init__(
        self,
        inputs: list[Tensor | None],
        outputs: list[Tensor],
        dw_builder: Callable[[], Callable[..., None]] | None = None,
        gradient_sync: GradientSync | None = None,
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.dw_builder = dw_builder
        self.gradient_sync = gradient_sync
        self.requires_grad = tuple([output.requires_grad for output in outputs])
        self.weight_half: Callable[[], None] | None = None
        self.is_whole = False  # the input half was a whole backward


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


class TorchStage:
    """One model chunk, the preprocess block or the loss function.

    Args:
        function: Called with the stage's inputs; a module, or a plain function such as a loss.
        dw_builder: After each backward of the inputs it is called for a function that is called in the weight half:
            for modules that put their weight gradients off themselves.
    """

    def __init__(
        self, function: Callable[..., Value], dw_builder: Callable[[], Callable[..., None]] | None = None
    ) -> None:
        self.function = function
        self._dw_builder = dw_builder
        self._module = function if isinstance(function, nn.Module) else None
        self.gradient_sync = gradient_sync(function)

    def forward(
        self,
        args: tuple[Value, ...],
        kwargs: Mapping[str, Value],
        *,
        needs_grad: Sequence[bool],
        record: bool,
        seed: int | None = None,
        keep_buffers: bool = False,
        continues: TorchTape | None = None,
    ) -> tuple[Value, TorchTape | None]:
        """Run the forward on one micro-batch; see ``hyper_pp.protocols.Stage``."""
        if seed is not None:
            with _random_numbers_from(seed):
                return self.forward(
                    args, kwargs, needs_grad=needs_grad, record=record, keep_buffers=keep_buffers, continues=continues
                )
        if keep_buffers and self._module is not None:
            with _buffers_kept(self._module):
                return self.forward(args, kwargs, needs_grad=needs_grad, record=record, continues=continues)
        if not record:
            with torch.no_grad():
                return self._call(args, kwargs), None
        if continues is not None:
            given, skeleton = flatten(args, _is_tensor)
            args = unflatten(skeleton, [*continues.outputs, *given[len(continues.outputs) :]])
            wanted, options = continues.inputs, (continues.dw_builder, continues.gradient_sync)
        else:
            # An input whose gradient nobody asks for goes in as it is: if the user's tensor requires one, it gets it.
            if len(args) == 1 and isinstance(args[0], Tensor):  # by far the most frequent case, and flatten costs
                wanted = [args[0].detach().requires_grad_() if needs_grad[0] else None]
                args = args if wanted[0] is None else (wanted[0],)
            else:
                given, skeleton = flatten(args, _is_tensor)
                wanted = [leaf.detach().requires_grad_() if need else None for leaf, need in zip(given, needs_grad)]
                args = unflatten(skeleton, [one if leaf is None else leaf for one, leaf in zip(given, wanted)])
            options = self._dw_builder, self.gradient_sync
        with torch.enable_grad():
            output = self._call(args, kwargs)
        if isinstance(output, Tensor):
            return output.detach(), TorchTape(wanted, [output], *options)
        outputs, skeleton = flatten(output, _is_tensor)
        return unflatten(skeleton, [item.detach() for item in outputs]), TorchTape(wanted, outputs, *options)

    def _call(self, args: tuple[Value, ...], kwargs: Mapping[str, Value]) -> Value:
        if self.gradient_sync is None:
            return self.function(*args, **kwargs)
        with self.gradient_sync.forward():
            return self.function(*args, **kwargs)

    def backward(self, tape: TorchTape, output_grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Add parameter gradients to ``.grad``; return those of the inputs."""
        outputs, grads = _with_grad(tape, output_grads)
        with _last_synchronised(tape, outputs):
            if outputs:
                torch.autograd.backward(outputs, grads)
            if tape.dw_builder is not None:
                tape.dw_builder()()
        result = _taken(tape.inputs)
        tape.outputs = []
        return result

    def backward_input(self, tape: TorchTape, output_grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the gradients of the inputs; leave those of the parameters to :meth:`backward_weight`."""
        if tape.gradient_sync is not None and not tape.gradient_sync.splits_backward:
            return self._backward_whole(tape, output_grads)
        outputs, grads = _with_grad(tape, output_grads)
        if tape.gradient_sync is None or not tape.gradient_sync.looks_for_unused:
            tape.outputs = []
        if tape.dw_builder is not None:
            if outputs:
                torch.autograd.backward(outputs, grads)
            tape.weight_half = tape.dw_builder()
            return _taken(tape.inputs)
        wanted = [leaf for leaf in tape.inputs if leaf is not None]
        half: WeightHalf = backward_input(outputs, grads, wanted)
        tape.weight_half = half.run
        found = iter(half.input_grads)
        return [None if leaf is None else _or_zeros(next(found), leaf) for leaf in tape.inputs]

    def _backward_whole(self, tape: TorchTape, output_grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Run a whole backward and leave nothing to the weight half."""
        _say_that_sharded_backwards_are_whole()
        tape.is_whole = True
        return self.backward(tape, output_grads)

    def backward_weight(self, tape: TorchTape) -> None:
        """Add the parameter gradients that :meth:`backward_input` left."""
        if tape.is_whole:
            return
        assert tape.weight_half is not None
        with _last_synchronised(tape, tape.outputs):
            tape.weight_half()
        tape.weight_half = None
        tape.outputs = []

    # -- parameters ------------------------------------------------------------------------------------------------

    def trainable(self) -> bool:
        """Tell whether any parameter has ``requires_grad``."""
        return bool(self.parameters())

    def parameters(self) -> list[Tensor]:
        """Return the trainable parameters, in the module's own order."""
        module = self._module
        return [] if module is None else [parameter for parameter in module.parameters() if parameter.requires_grad]

    def buffers(self) -> list[Tensor]:
        """Return the frozen parameters and the buffers."""
        module = self._module
        if module is None:
            return []
        return [parameter for parameter in module.parameters() if not parameter.requires_grad] + list(module.buffers())

    def gradients(self) -> list[Tensor | None]:
        """Return copies of ``.grad`` of each trainable parameter, which later backwards don't add to."""
        return [None if parameter.grad is None else parameter.grad.detach().clone() for parameter in self.parameters()]

    def set_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        """Replace ``.grad`` of each trainable parameter by a copy, since later backwards add in place."""
        for parameter, gradient in zip(self.parameters(), gradients):
            parameter.grad = None if gradient is None else gradient.detach().clone()


@functools.cache
def _say_that_sharded_backwards_are_whole() -> None:
    _LOG.warning(
        "a stage is sharded by fully_shard, whose backward can't be split: its weight gradients are computed together "
        "with its input gradients"
    )


def _last_synchronised(tape: TorchTape, outputs: Sequence[Tensor]) -> AbstractContextManager[None]:
    return nullcontext() if tape.gradient_sync is None else tape.gradient_sync.backward(outputs)


def _with_grad(tape: TorchTape, output_grads: Sequence[Tensor | None]) -> tuple[list[Tensor], list[Tensor]]:
    outputs, grads = [], []
    for output, grad in zip(tape.outputs, output_grads):
        if grad is not None and output.requires_grad:
            outputs.append(output)
            grads.append(grad)
    return outputs, grads


def _taken(leaves: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return the gradients that a backward left on the leaves."""
    return [None if leaf is None else _or_zeros(leaf.grad, leaf) for leaf in leaves]


def _or_zeros(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like, requires_grad=False) if gradient is None else gradient


@contextmanager
def random_numbers_kept() -> Iterator[None]:
    """Put the random generators of the CPU and the accelerator back afterwards."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    others = [] if device is None else [torch.accelerator.current_device_index()]
    with torch.random.fork_rng(others, device_type="cuda" if device is None else device.type):
        yield


@contextmanager
def _random_numbers_from(seed: int) -> Iterator[None]:
    with random_numbers_kept():
        torch.manual_seed(seed)
        yield


@contextmanager
def _buffers_kept(module: nn.Module) -> Iterator[None]:
    """Let a module change copies of its buffers: a recompute must not count twice.

    The copies stay as they are for the backward of what is recorded meanwhile.
    """
    before = [
        (part, name, buffer)
        for part in module.modules()
        for name, buffer in part._buffers.items()
        if buffer is not None
    ]
    copies = {buffer: buffer.detach().clone() for _, _, buffer in before}
    try:
        for part, name, buffer in before:
            part._buffers[name] = copies[buffer]
        yield
    finally:
        for part, name, buffer in before:
            part._buffers[name] = buffer
