"""A backward in two halves: input gradients now, weight gradients at any later time.

In the graph of a stage, call a node *chain* if a stage input can be reached from it, and *junction* if it is a chain
node from which an edge leads off the chain to a parameter::

    output ── Add ── MatMul ── Tanh ── MatMul ── x        chain: everything in this row but x
               │       │                 │
               b       w₂                w₁               junctions: Add and both MatMul

The input half runs along the chain and keeps the gradient that arrives at each junction. Then the edges from the
junctions along the chain are cut, so that the weight half, which starts at all junctions at once, runs down the side
branches only: nothing runs twice but the junctions, and a parameter used at several depths is counted once a use.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mindspore import Tensor

from hyper_pp.mindspore import autograd

# Nodes that compute all their gradients at once and can't be started a second time: a jitted function, a Cell's bprop.
INDIVISIBLE = ("bprop_builder", "CellCustomBackward")


class Remainder(NamedTuple):
    """What the input half leaves to the weight half."""

    junctions: list[tuple[Any, list[Any]]]  # node, and the gradients that arrived at its outputs
    side_outputs: list[tuple[Tensor, Tensor]]  # outputs that depend on parameters only, with their gradients


class Graph(NamedTuple):
    """The graph between the outputs and the inputs and parameters of one recorded forward."""

    nodes: dict[int, tuple[Any, list[int | None]]]  # id → node and the ids its edges lead to; children come first
    chain: set[int]  # ids of nodes from which an input can be reached
    weighted: set[int]  # ids of nodes from which a parameter can be reached

    @property
    def divisible(self) -> bool:
        """Whether all nodes on the chain can be run in halves."""
        return not any(mark in _name(self.nodes[key][0]) for key in self.chain for mark in INDIVISIBLE)


def examine(outputs: Sequence[Tensor], inputs: Sequence[Tensor], parameters: Sequence[Tensor]) -> Graph:
    """Look at the graph below ``outputs``."""
    nodes = walk([output._grad_node for output in outputs])
    return Graph(nodes, _reaching(nodes, inputs), _reaching(nodes, parameters))


def backward_input(
    graph: Graph, outputs: Sequence[Tensor], output_grads: Sequence[Tensor], inputs: Sequence[Tensor]
) -> tuple[list[Tensor | None], Remainder]:
    """Differentiate recorded outputs with respect to ``inputs`` only.

    Args:
        graph: What :func:`examine` returned; it must be divisible.
        outputs: As for :func:`hyper_pp.mindspore.autograd.backward`.
        output_grads: Their gradients.
        inputs: Leaves.

    Returns:
        One gradient per input (None where the outputs don't depend on it), and the remainder for the weight half.
    """
    nodes, chain, weighted = graph
    junctions: list[tuple[Any, list[Any]]] = []
    hooks, cuts = [], []
    for key in chain:
        node, children = nodes[key]
        if any(child in weighted and child not in chain for child in children):
            arrived: list[Any] = []
            junctions.append((node, arrived))
            hooks.append(node.register_prehook(_keep_in(arrived)))
            cuts += [(node, index) for index, child in enumerate(children) if child in chain]
    pairs = [(output._grad_node._unique_id(), output, grad) for output, grad in zip(outputs, output_grads)]
    main = [(output, grad) for key, output, grad in pairs if key in chain]
    try:
        grads = autograd.backward([o for o, _ in main], [g for _, g in main], inputs, keep_graph=True)
    finally:
        for hook in hooks:
            hook.remove()
    for node, index in cuts:
        node._set_next_edge(index, None)
    side = [(output, grad) for key, output, grad in pairs if key in weighted and key not in chain]
    return grads, Remainder(junctions, side)


def backward_weight(remainder: Remainder, parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the parameter gradients that :func:`backward_input` left; consumes the remainder."""
    starts = [
        (autograd.gradient_edge(node, index), grad)
        for node, arrived in remainder.junctions
        for index, grad in enumerate(arrived)
        if grad is not None
    ]
    starts += remainder.side_outputs
    grads = autograd.backward([start for start, _ in starts], [grad for _, grad in starts], parameters)
    remainder.junctions.clear()
    remainder.side_outputs.clear()
    return grads


def _keep_in(arrived: list[Any]) -> Callable[[Any], None]:
    def hook(grads: Any) -> None:
        arrived[:] = grads if isinstance(grads, (tuple, list)) else (grads,)

    return hook


def _name(node: Any) -> str:
    return str(node.name() if callable(node.name) else node.name)


def walk(roots: Sequence[Any]) -> dict[int, tuple[Any, list[int | None]]]:
    """Return all nodes below ``roots``, children first; iterative, since graphs are deeper than Python's stack."""
    nodes: dict[int, tuple[Any, list[int | None]]] = {}
    seen: set[int] = set()
    stack: list[tuple[Any, list[int | None] | None]] = [(root, None) for root in roots]
    while stack:
        node, children = stack.pop()
        key = node._unique_id()
        if children is not None:
            nodes[key] = (node, children)
        elif key not in seen:
            seen.add(key)
            below = [child for child, _ in node.next_functions]
            stack.append((node, [None if child is None else child._unique_id() for child in below]))
            stack += [(child, None) for child in below if child is not None]
    return nodes


def _reaching(nodes: dict[int, tuple[Any, list[int | None]]], targets: Sequence[Tensor]) -> set[int]:
    """Return the ids of the nodes from which a target can be reached, targets included."""
    reaching = {tensor._grad_node._unique_id() for tensor in targets if tensor._grad_node is not None}
    for key, (_, children) in nodes.items():
        if any(child in reaching for child in children):
            reaching.add(key)
    return reaching & nodes.keys()
