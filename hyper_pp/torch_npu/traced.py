"""Stages that ``torch.distributed.pipelining.pipeline`` traced, as modules that pass on what later stages need.

In a traced model a stage may use values of any earlier stage, or inputs of the model. Here values travel from each
stage to the next one only, so a stage hands on, next to its own outputs, what it got and a later stage uses.
"""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn


class TracedStage(nn.Module):
    """One stage of a traced model.

    Args:
        submodule: The stage's graph module.
        graph: The graph of the whole model, in which every stage is one call.
        stage_index: Which of them.

    Raises:
        ValueError: The graph holds something else than calls of stages.
    """

    def __init__(self, submodule: nn.Module, graph: fx.Graph, stage_index: int) -> None:
        super().__init__()
        self.submodule = submodule
        calls = [node for node in graph.nodes if node.op == "call_module"]
        call = calls[stage_index]
        self._arguments = call.args
        self._keywords = call.kwargs
        self._results = {user.name: user.args[1] for user in call.users if user.target is operator.getitem}
        self._name = call.name
        self._model_inputs = {node.target: node for node in graph.nodes if node.op == "placeholder"}
        producers = _producers(graph, calls)
        self._arrives = _passed_on(calls, graph, producers, stage_index) if stage_index > 0 else []
        self._is_last = stage_index == len(calls) - 1
        self._leaves = [] if self._is_last else _passed_on(calls, graph, producers, stage_index + 1)
        (output,) = (node.args[0] for node in graph.nodes if node.op == "output")
        self._output = output

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the stage; return what the next one needs, or the model's output."""
        known = dict(zip(self._arrives, args)) if self._arrives else self._bind(args)
        for name, value in kwargs.items():
            if name not in self._model_inputs:
                raise TypeError(f"the model has no input {name} (its inputs: {', '.join(self._model_inputs)})")
            known[self._model_inputs[name].name] = value
        result = self.submodule(*self._look_up(self._arguments, known), **self._look_up(self._keywords, known))
        known[self._name] = result
        for name, position in self._results.items():
            known[name] = result[position]
        if not self._is_last:
            return tuple(known[name] for name in self._leaves)
        output = self._look_up(self._output, known)
        return output[0] if isinstance(output, tuple) and len(output) == 1 else output

    def _bind(self, args: Sequence[Any]) -> dict[str, Any]:
        nodes = list(self._model_inputs.values())
        if len(args) > len(nodes):
            raise TypeError(f"the model takes {len(nodes)} inputs (got {len(args)})")
        known = {node.name: node.args[0] if node.args else None for node in nodes}
        known.update({node.name: value for node, value in zip(nodes, args)})
        return known

    @staticmethod
    def _look_up(arguments: Any, known: dict[str, Any]) -> Any:
        return fx.node.map_arg(arguments, lambda node: known[node.name])


def _producers(graph: fx.Graph, calls: Sequence[fx.Node]) -> dict[str, int]:
    """Return for every value the stage that makes it; −1 for inputs of the model."""
    producers = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            producers[node.name] = -1
        elif node.op == "call_module":
            producers[node.name] = calls.index(node)
        elif node.target is operator.getitem and node.args[0].op == "call_module":
            producers[node.name] = calls.index(node.args[0])
        elif node.op != "output":
            raise ValueError(f"a traced model must consist of calls of its stages (got {node.format_node()})")
    return producers


def _passed_on(calls: Sequence[fx.Node], graph: fx.Graph, producers: dict[str, int], stage: int) -> list[str]:
    """Return the values that enter ``stage``: made before it, and used by it or after it."""
    needed: dict[str, None] = {}
    users = [*calls[stage:], *(node for node in graph.nodes if node.op == "output")]
    for user in users:
        for value in user.all_input_nodes:
            if producers[value.name] < stage:
                needed[value.name] = None
    return list(needed)


def module_of(stage: Any) -> torch.nn.Module:
    """Return the module that runs for a stage: its own, or one around what a traced model's stage holds."""
    info = getattr(stage, "pipe_info", None)
    return stage.submod if info is None else TracedStage(stage.submod, info.graph, stage.stage_index)
