"""Forwards that are recorded now and differentiated later, in any order: the one user of MindSpore's private autograd.

MindSpore's public ``vjp`` and ``grad`` hold one forward of a Cell at a time. A pipeline holds many, so this module
sets the grad flag around the forward and calls the backward engine itself. ``Cell.set_grad`` isn't used: it leaks
memory with every forward. Whether the interface is there is checked at first use.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import mindspore
from mindspore import Tensor, nn, ops

REENTRANT_RECOMPUTE = "In no_grad context, you can not calculate gradient"


class _Api(NamedTuple):
    run_backward: Callable[..., Any]
    executor: Any
    gradient_edge: Callable[..., Any] | None


@functools.cache
def _api() -> _Api:
    found = mindspore.__version__
    try:
        from mindspore._c_expression import run_backward
    except ImportError:
        raise RuntimeError(
            f"hyper_pp needs MindSpore 2.8 or newer (found {found}): its backward engine can't be called from outside; "
            "install mindspore>=2.8"
        ) from None
    if tuple(int(part) for part in found.split(".")[:2]) < (2, 8):
        raise RuntimeError(
            f"hyper_pp needs MindSpore 2.8 or newer (found {found}): older backward engines leak memory; "
            "install mindspore>=2.8"
        )
    try:  # this is where 2.9 moved it
        from mindspore.graph import api
    except ImportError:
        from mindspore.common import api
    return _Api(run_backward, api._pynative_executor, getattr(api, "_GradientEdge", None))


def require_support(split_backward: bool = False) -> None:
    """Check that this MindSpore can do what the pipeline needs.

    Args:
        split_backward: Input and weight gradients shall be computed at different times.

    Raises:
        RuntimeError: It is too old, or in graph mode.
    """
    if split_backward and _api().gradient_edge is None:
        raise RuntimeError(
            f"a split backward needs MindSpore 2.9 or newer (found {mindspore.__version__}); choose a schedule without "
            "I and W actions or install mindspore>=2.9"
        )
    if not split_backward:
        _api()
    if mindspore.get_context("mode") != mindspore.PYNATIVE_MODE:
        raise RuntimeError(
            "a pipeline needs PyNative mode (got graph mode); call mindspore.set_context(mode=mindspore.PYNATIVE_MODE) "
            "first, stages may still use @mindspore.jit"
        )


def record(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, custom_backward: bool = False
) -> Any:
    """Call ``function`` so that its output can be differentiated later.

    Args:
        function: A Cell or any callable.
        args: Positional arguments.
        kwargs: Keyword arguments.
        custom_backward: A Cell in it defines ``bprop``, see :func:`has_custom_backward`.

    Returns:
        What the function returns; its tensors hold the graph.
    """
    if custom_backward:
        _open_top_cell()
    with _flags(grad=True, enable=True):
        return function(*args, **kwargs)


def run_unrecorded(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call ``function`` without leaving a graph, whatever flags surround the call."""
    # The grad flag is set too: a Cell on which somebody called set_grad would else open a graph of its own, and leak.
    with _flags(grad=True, enable=False):
        return function(*args, **kwargs)


# Both are entered several times a micro-batch: as classes they cost half of what contextlib's generators do.
class _flags:
    __slots__ = ("_before", "_enable", "_executor", "_grad")

    def __init__(self, grad: bool, enable: bool) -> None:
        self._executor, self._grad, self._enable = _api().executor, grad, enable

    def __enter__(self) -> None:
        executor = self._executor
        self._before = executor.grad_flag(), executor.enable_grad()
        executor.set_grad_flag(self._grad)
        executor.set_enable_grad(self._enable)

    def __exit__(self, *exception: Any) -> None:
        self._executor.set_grad_flag(self._before[0])
        self._executor.set_enable_grad(self._before[1])


class no_grad:
    """Record nothing inside, whatever flags surround the block."""

    __slots__ = ("_before", "_executor")

    def __enter__(self) -> None:
        self._executor = _api().executor
        self._before = self._executor.enable_grad()
        self._executor.set_enable_grad(False)

    def __exit__(self, *exception: Any) -> None:
        self._executor.set_enable_grad(self._before)


class _Identity(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        return x


def _open_top_cell() -> None:
    # The engine runs a Cell's own bprop only in a process that holds some graph opened and closed the classic way.
    executor, cell, value = _api().executor, _identity(), mindspore.Tensor(0.0)
    with _flags(grad=True, enable=True):
        executor.new_graph(cell, value)
        executor.end_graph(cell, value, value)


@functools.cache
def _identity() -> _Identity:
    return _Identity()


def has_custom_backward(cell: nn.Cell) -> bool:
    """Tell whether the Cell itself defines ``bprop``."""
    return bool(cell.has_bprop)


def cut(tensor: Tensor) -> Tensor:
    """Return a tensor that shares the data and belongs to no graph."""
    with no_grad():
        return ops.stop_gradient(tensor)


def leaf(tensor: Tensor) -> Tensor:
    """Return a tensor that shares the data and that gradients can be asked for; the given one stays as it is."""
    result = cut(tensor)
    result.requires_grad_(True)
    return result


def in_graph(tensor: Tensor) -> bool:
    """Tell whether a backward can start from the tensor."""
    return tensor._grad_node is not None


def backward(
    outputs: Sequence[Tensor], output_grads: Sequence[Tensor], inputs: Sequence[Tensor], *, keep_graph: bool = False
) -> list[Tensor | None]:
    """Differentiate recorded outputs.

    Args:
        outputs: Tensors for which :func:`in_graph` holds, or gradient edges.
        output_grads: Their gradients; shapes aren't checked here, nor by MindSpore.
        inputs: Leaves and trainable parameters.
        keep_graph: The same graph will be differentiated again.

    Returns:
        One gradient per input; None where the outputs don't depend on it.
    """
    wanted = [tensor for tensor in inputs if tensor._grad_node is not None]
    if not outputs or not wanted:
        return [None] * len(inputs)
    try:
        grads = _api().run_backward(
            tuple(outputs), tuple(output_grads), keep_graph, False, tuple(wanted), True, accumulate_grad=False
        )
    except RuntimeError as error:
        if REENTRANT_RECOMPUTE in str(error):
            raise RuntimeError(
                "mindspore.recompute can't run inside a pipeline stage in its reentrant form; pass use_reentrant=False"
            ) from error
        raise
    found = iter(grads)
    return [next(found) if tensor._grad_node is not None else None for tensor in inputs]


def gradient_edge(node: Any, index: int) -> Any:
    """Return what stands for output ``index`` of a graph node in :func:`backward`."""
    edge = _api().gradient_edge
    assert edge is not None, "require_support(split_backward=True) comes first"
    return edge(node, index, None)
