"""Cut a model that is a list of layers into the stages of a rank."""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from hyper_pp.partition import partition_layers
from hyper_pp.shape import PipelineShape, Placement
from hyper_pp.torch_npu.pipeline_stage import PipelineStage
from hyper_pp.torch_npu.schedule_base import PipelineSchedule
from hyper_pp.torch_npu.schedules import PipelineScheduleSingle, ScheduleZBVZeroBubble, get_schedule_class

Model = nn.Sequential | nn.ModuleList | Sequence[nn.Module]


class Chain(nn.Sequential):
    """Layers one after another, under the names they have in the whole model.

    A tuple that a layer returns becomes the next layer's positional inputs; a layer that takes just one input gets it
    as a tuple. So a model gives the same wherever it is cut.

    Args:
        layers: (name, layer) pairs; keywords go to the first.
    """

    def __init__(self, layers: Sequence[tuple[str, nn.Module]]) -> None:
        super().__init__(OrderedDict(layers))
        self._takes_one = [_takes_one_input(layer) for _, layer in layers]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layers."""
        output: Any = args
        for layer, takes_one in zip(self, self._takes_one):
            output = layer(args, **kwargs) if takes_one and len(args) > 1 else layer(*args, **kwargs)
            args = output if type(output) is tuple else (output,)
            kwargs = {}
        return output


def split_model(
    model: Model,
    num_ranks: int,
    num_chunks: int,
    rank: int,
    partition: Sequence[int] | None = None,
    *,
    num_transpose_layers: int = 0,
    placement: Placement = "loop",
) -> list[nn.Module]:
    """Return the modules of a rank's stages, one for each chunk.

    Args:
        model: An nn.Sequential, an nn.ModuleList or a list of modules: the layers of the whole model.
        num_ranks: P.
        num_chunks: V.
        rank: This rank.
        partition: Layers per stage, P·V positive ints; None for an even split, where the first stages get one more.
        num_transpose_layers: T, first layers that are left out; they form the preprocess block.
        placement: ``"loop"``: stage s lives on rank s mod P. ``"v"``: rank r holds stages r and 2P−1−r.

    Returns:
        Modules whose parameters have the names they have in the whole model.

    Raises:
        TypeError: The model isn't a list of modules.
        ValueError: There are too few layers, or the partition doesn't add up.
    """
    shape = PipelineShape(num_ranks, num_chunks, 1, placement)
    layers = layers_of(model)
    ranges = partition_layers(
        len(layers), shape.num_stages, num_transpose_layers=num_transpose_layers, partition=partition
    )
    return [Chain([layers[index] for index in ranges[stage]]) for stage in shape.stages_of(rank)]


def layers_of(model: Model) -> list[tuple[str, nn.Module]]:
    """Return the (name, layer) pairs of a model.

    Raises:
        TypeError: The model isn't a list of modules.
    """
    if isinstance(model, (nn.Sequential, nn.ModuleList)):
        return list(model.named_children())
    if isinstance(model, (list, tuple)) and all(isinstance(layer, nn.Module) for layer in model):
        return [(str(index), layer) for index, layer in enumerate(model)]
    raise TypeError(
        f"model must be an nn.Sequential, an nn.ModuleList or a list of modules (got {type(model).__name__}): "
        "a model of another kind is cut with pipeline(), or by hand into a PipelineStage for each stage"
    )


def get_pipeline_schedule(
    model: Model,
    n_microbatches: int,
    loss_fn: Callable[..., torch.Tensor] | None,
    mode: str = "1f1b",
    group: dist.ProcessGroup | None = None,
    *,
    num_chunks: int | None = None,
    partition: Sequence[int] | None = None,
    device: torch.device | None = None,
) -> PipelineSchedule:
    """Cut a model into stages and return the schedule that trains this rank's.

    Args:
        model: An nn.Sequential, an nn.ModuleList or a list of modules; every rank passes the same.
        n_microbatches: M.
        loss_fn: Called with (output, target) of a micro-batch.
        mode: A schedule's name, as for ``get_schedule_class``.
        group: Process group of the pipeline; None for the default group.
        num_chunks: V; by default 1 for schedules with one stage per rank, else 2.
        partition: Layers per stage; None for an even split.
        device: Where the stages compute; by default where the model's parameters are.

    Returns:
        The schedule; its stages' modules are ``[stage.submod for stage in schedule.stages]``.
    """
    schedule_class = get_schedule_class(mode)
    single = issubclass(schedule_class, PipelineScheduleSingle)
    if num_chunks is None:
        num_chunks = 1 if single else 2
    if single and num_chunks != 1:
        raise ValueError(f"{mode} takes num_chunks=1 (got {num_chunks})")
    ready = dist.is_initialized()
    num_ranks = dist.get_world_size(group) if ready else 1
    rank = dist.get_rank(group) if ready else 0
    placement: Placement = "v" if issubclass(schedule_class, ScheduleZBVZeroBubble) else "loop"
    modules = split_model(model, num_ranks, num_chunks, rank, partition, placement=placement)
    if device is None:
        device = next((p.device for _, layer in layers_of(model) for p in layer.parameters()), torch.device("cpu"))
    shape = PipelineShape(num_ranks, num_chunks, n_microbatches, placement)
    stages = [
        PipelineStage(module.to(device), index, shape.num_stages, device, group=group)
        for index, module in zip(shape.stages_of(rank), modules)
    ]
    return schedule_class(stages[0] if single else stages, n_microbatches, loss_fn)


def _takes_one_input(layer: nn.Module) -> bool:
    try:
        parameters = inspect.signature(layer.forward).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = [parameter.kind for parameter in parameters]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Parameter.VAR_POSITIONAL not in kinds and sum(kind in positional for kind in kinds) == 1
