"""From a user's network to this rank's preprocess block and stages."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from mindspore import nn

from hyper_pp.partition import partition_layers
from hyper_pp.shape import PipelineShape, check_count

Network = nn.SequentialCell | nn.CellList | Sequence[nn.Cell] | Callable[[int], nn.Cell]


class Chain(nn.Cell):
    """Layers one after another.

    A tuple that a layer returns becomes the next layer's positional inputs; a layer that takes just one input gets it
    as a tuple. So a model gives the same wherever it is cut into stages.

    Args:
        layers: Cells; keywords go to the first. Their parameters keep their names.
    """

    def __init__(self, layers: Sequence[nn.Cell]) -> None:
        super().__init__(auto_prefix=False)
        self.layers = nn.CellList(list(layers), auto_prefix=False)
        self._takes_one = tuple(map(_takes_one_input, layers))

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layers."""
        for layer, takes_one in zip(self.layers, self._takes_one):
            output = layer(args, **kwargs) if takes_one and len(args) > 1 else layer(*args, **kwargs)
            args = output if type(output) is tuple else (output,)
            kwargs = {}
        return output


@dataclass
class Model:
    """What one rank holds of the network.

    Args:
        stages: Its stages by global stage.
        block: The preprocess block; None without one, and where only data is spread.
        block_layers: T; None if the block is a cell of its own.
    """

    stages: dict[int, Chain]
    block: Chain | None
    block_layers: int | None


def take_apart(
    network: Network,
    shape: PipelineShape,
    rank: int,
    *,
    num_transpose_layers: int,
    preprocess: nn.Cell | None,
    partition: Sequence[int] | None,
    building: Callable[[int], AbstractContextManager[Any]],
) -> Model:
    """Cut a network into this rank's block and stages.

    Args:
        network: The layers of the whole model (SequentialCell, CellList, list of Cells), or ``stage_index -> Cell``.
        shape: Of the plan.
        rank: This rank in the pipeline.
        num_transpose_layers: T, layers that go to the preprocess block.
        preprocess: A preprocess block of its own.
        partition: Layers per stage; None for an even split.
        building: Context for building a stage, by its index: stages of equal shape shall start differently.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: The arguments contradict each other, or ranks would share a parameter.
    """
    check_count("num_transpose_layers", num_transpose_layers, minimum=0)
    if preprocess is not None and not isinstance(preprocess, nn.Cell):
        raise TypeError(f"preprocess must be a Cell (got {type(preprocess).__name__})")
    if preprocess is not None and num_transpose_layers > 0:
        raise ValueError(
            "give either num_transpose_layers or preprocess: a preprocess cell is the block itself "
            f"(got num_transpose_layers={num_transpose_layers} and preprocess={type(preprocess).__name__})"
        )
    if preprocess is not None:
        name_fresh([preprocess], ["preprocess"])
    block_layers = None if preprocess is not None else num_transpose_layers
    block = None if preprocess is None else Chain([preprocess])
    layers = _layers_of(network)
    if layers is None:
        stages = _build_stages(network, shape, rank, num_transpose_layers, partition, building)  # type: ignore[arg-type]
        return Model(stages, block, block_layers)
    ranges = partition_layers(
        len(layers), shape.num_stages, num_transpose_layers=num_transpose_layers, partition=partition
    )
    if num_transpose_layers > 0:
        block = Chain(layers[:num_transpose_layers])
    chains = {stage: Chain([layers[i] for i in ranges[stage]]) for stage in range(shape.num_stages)}
    _refuse_shared_parameters(chains, block, shape)
    return Model({stage: chains[stage] for stage in shape.stages_of(rank)}, block, block_layers)


def _layers_of(network: Network) -> list[nn.Cell] | None:
    """Return the layers of a network; None for ``stage_index -> Cell``."""
    if isinstance(network, (nn.SequentialCell, nn.CellList, list, tuple)):
        layers = list(network)
        for position, layer in enumerate(layers):
            if not isinstance(layer, nn.Cell):
                raise TypeError(f"every layer of network must be a Cell (got {type(layer).__name__} at {position})")
        name_fresh(layers, [str(position) for position in range(len(layers))])
        return layers
    if isinstance(network, nn.Cell) or not callable(network):
        raise TypeError(
            "network must be a SequentialCell, a CellList, a list of Cells or a function stage_index -> Cell "
            f"(got {type(network).__name__}): a cell of another kind can't be cut into layers"
        )
    return None


def _build_stages(
    network: Callable[[int], nn.Cell],
    shape: PipelineShape,
    rank: int,
    num_transpose_layers: int,
    partition: Sequence[int] | None,
    building: Callable[[int], AbstractContextManager[Any]],
) -> dict[int, Chain]:
    for name, value in (("num_transpose_layers", num_transpose_layers or None), ("partition", partition)):
        if value is not None:
            raise ValueError(f"{name} counts layers, but network is a function stage_index -> Cell (got {value!r})")
    stages = {}
    for stage in shape.stages_of(rank):
        with building(stage):
            cell = network(stage)
        if not isinstance(cell, nn.Cell):
            raise TypeError(f"network({stage}) must return a Cell (got {type(cell).__name__})")
        name_fresh([cell], [str(stage)])
        stages[stage] = Chain([cell])
    return stages


def name_fresh(cells: Sequence[nn.Cell], prefixes: Sequence[str]) -> None:
    """Give the parameters of cells that are in no container the names a container would give them."""
    names = [(name, parameter) for cell in cells for name, parameter in cell.parameters_and_names()]
    if all(name == parameter.name for name, parameter in names):
        for cell, prefix in zip(cells, prefixes):
            cell.update_parameters_name(prefix + ".")


def _refuse_shared_parameters(chains: Mapping[int, Chain], block: Chain | None, shape: PipelineShape) -> None:
    """One parameter on two ranks would be trained twice, each time with half of its gradient."""
    holders: dict[int, tuple[str, int]] = {}
    parts = [("the preprocess block", 0, block)] if block is not None else []
    parts += [(f"stage {stage}", shape.rank_of(stage), chain) for stage, chain in chains.items()]
    for part, rank, chain in parts:
        assert chain is not None
        for parameter in chain.get_parameters():
            other, other_rank = holders.setdefault(id(parameter), (part, rank))
            if other_rank != rank and parameter.requires_grad:
                raise ValueError(
                    f"parameter {parameter.name} is shared by {other} on rank {other_rank} and {part} on rank {rank}: "
                    "give each its own parameter, or put both layers on one rank"
                )


def _takes_one_input(layer: nn.Cell) -> bool:
    try:
        parameters = inspect.signature(layer.construct).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = [parameter.kind for parameter in parameters]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Parameter.VAR_POSITIONAL not in kinds and sum(kind in positional for kind in kinds) == 1
