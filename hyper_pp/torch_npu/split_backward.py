"""The backward in two halves: the inputs' gradients now, the parameters' later.

The autograd graph of a stage has a trunk, the nodes between the outputs and the inputs, and branches that hang on it
and lead to parameters only. The input half runs the trunk and notes the gradient that reaches every trunk node with a
branch. The weight half runs each of those nodes once more, for its branches alone, and then all branches together. No
branch node leads back to the trunk, so nothing is counted twice, however often a parameter is used.

"For its branches alone" is what the autograd engine does by itself where a branch hangs on one node only. Where several
nodes share one (a weight used twice), the engine would reach it through the trunk too: such a node is called directly.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

Tensor = torch.Tensor


class Joint(NamedTuple):
    """A trunk node with its branches."""

    node: Node
    branches: tuple[GradientEdge, ...]
    shared: bool  # another node has one of the branches too
    arrived: list[Tensor | None]  # the gradients of the node's outputs

    def run(self) -> list[tuple[GradientEdge, Tensor]]:
        """Return the gradient for each branch that gets one."""
        if all(grad is None for grad in self.arrived):
            return []
        if self.shared:
            return self._called_directly()
        given = [(GradientEdge(self.node, slot), grad) for slot, grad in enumerate(self.arrived) if grad is not None]
        edges, grads = zip(*given)
        found = torch.autograd.grad(edges, self.branches, grads, allow_unused=True)
        return [(branch, grad) for branch, grad in zip(self.branches, found) if grad is not None]

    def _called_directly(self) -> list[tuple[GradientEdge, Tensor]]:
        # A function written in Python expects zeros, not None, as the engine gives it.
        grads = [
            torch.zeros(info.shape, dtype=info.dtype, device=info.device) if grad is None else grad
            for grad, info in zip(self.arrived, self.node._input_metadata)
        ]
        with torch.no_grad():
            call = getattr(self.node, "apply", self.node)  # of a function written in Python; others are callable
            found = call(*grads)
        if not isinstance(found, tuple):
            found = (found,)
        wanted = {(branch.node, branch.output_nr): branch for branch in self.branches}
        return [
            (wanted[edge], _fitted(grad, edge))
            for edge, grad in zip(self.node.next_functions, found)
            if grad is not None and edge in wanted
        ]


def _fitted(grad: Tensor, edge: tuple[Node, int]) -> Tensor:
    """Return a gradient as the engine hands it on: summed where the forward broadcast, in the input's dtype."""
    node, slot = edge
    info = node._input_metadata[slot]
    return grad.sum_to_size(info.shape).to(info.dtype)


class WeightHalf:
    """What the input half leaves.

    Args:
        input_grads: Gradients of the inputs; None where the outputs don't depend on one.
        roots: Outputs that hang on no trunk node.
        root_grads: Their gradients.
    """

    def __init__(
        self, input_grads: Sequence[Tensor | None], roots: Sequence[Tensor], root_grads: Sequence[Tensor]
    ) -> None:
        self.input_grads = list(input_grads)
        self.joints: list[Joint] = []
        self._roots: list[Tensor | GradientEdge] = list(roots)
        self._root_grads = list(root_grads)

    def run(self) -> None:
        """Add the parameters' gradients to ``.grad``; only once."""
        roots, grads = self._roots, self._root_grads
        for joint in self.joints:
            for branch, grad in joint.run():
                roots.append(branch)
                grads.append(grad)
        self.joints, self._roots, self._root_grads = [], [], []
        if roots:
            torch.autograd.backward(roots, grads)


def backward_input(outputs: Sequence[Tensor], grads: Sequence[Tensor], inputs: Sequence[Tensor]) -> WeightHalf:
    """Run the input half.

    Args:
        outputs: Of a recorded forward, those with a graph.
        grads: Their gradients.
        inputs: Leaves whose gradients are wanted.

    Returns:
        The inputs' gradients, and what is left to do.
    """
    if not inputs or not outputs:
        return WeightHalf([None] * len(inputs), outputs, grads)
    targets = {get_gradient_edge(leaf).node for leaf in inputs}
    trunk, trained, num_parents = _explore([get_gradient_edge(output).node for output in outputs], targets)
    on_trunk = [get_gradient_edge(output).node in trunk for output in outputs]
    off_trunk = [(output, grad) for output, grad, on in zip(outputs, grads, on_trunk) if not on]
    half = WeightHalf([], [output for output, _ in off_trunk], [grad for _, grad in off_trunk])
    if not any(on_trunk):
        half.input_grads = [None] * len(inputs)
        return half
    hooks = []
    for node in trunk:
        branches = {
            (child, slot): GradientEdge(child, slot)
            for child, slot in node.next_functions
            if child is not None and child in trained and child not in trunk
        }
        if branches:
            arrived: list[Tensor | None] = []
            shared = any(num_parents[child] > 1 for child, _ in branches)
            half.joints.append(Joint(node, tuple(branches.values()), shared, arrived))
            hooks.append(node.register_prehook(arrived.extend))
    try:
        half.input_grads = list(
            torch.autograd.grad(
                [output for output, on in zip(outputs, on_trunk) if on],
                inputs,
                [grad for grad, on in zip(grads, on_trunk) if on],
                retain_graph=True,
                allow_unused=True,
            )
        )
    finally:
        for hook in hooks:
            hook.remove()
    return half


def _explore(roots: Sequence[Node], targets: set[Node]) -> tuple[dict[Node, None], set[Node], Counter[Node]]:
    """Return the trunk (nodes that lead to a target), the nodes that lead to another leaf, and each node's parents."""
    order: list[tuple[Node, list[Node]]] = []  # children before parents
    seen: set[Node] = set()
    num_parents: Counter[Node] = Counter()
    stack: list[tuple[Node, list[Node] | None]] = [(root, None) for root in roots]
    while stack:
        node, children = stack.pop()
        if children is not None:
            order.append((node, children))
        elif node not in seen:
            seen.add(node)
            children = list({child: None for child, _ in node.next_functions if child is not None})
            num_parents.update(children)
            stack.append((node, children))
            stack.extend((child, None) for child in children)
    trunk: dict[Node, None] = {}
    trained: set[Node] = set()
    for node, children in order:
        if node in targets or any(child in trunk for child in children):
            trunk[node] = None
        if (not children and node not in targets) or any(child in trained for child in children):
            trained.add(node)
    return trunk, trained, num_parents
