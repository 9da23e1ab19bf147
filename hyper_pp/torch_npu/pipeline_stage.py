"""A stage as users make it: ``PipelineStage`` with the arguments of ``torch.distributed.pipelining``."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining.stage import GetMeshCallback

from hyper_pp.shape import check_count


class PipelineStage:
    """One stage of a model that is cut into stages; a rank that holds several makes one for each.

    Args:
        submodule: The stage's module. What it returns is the next stage's positional input; a tuple is spread.
        stage_index: Global stage, from 0.
        num_stages: S, stages of the whole pipeline.
        device: Where the stage computes; what it receives is put there.
        input_args: Example inputs of one micro-batch; only their shapes and dtypes are looked at, and a first stage
            checks what it gets against them. Shapes are agreed between ranks in any case, so this is never needed.
        output_args: Example outputs, to the same end.
        output_grads: Accepted for compatibility; gradients have the shapes of the outputs.
        input_grads: Accepted for compatibility; gradients have the shapes of the inputs.
        group: Process group of the pipeline; None for the default group.
        dw_builder: Called after each backward of the inputs for the function that runs its weight half.
        get_mesh: Accepted for compatibility; DTensors don't cross stages here.

    Raises:
        ValueError: ``stage_index`` is outside ``num_stages``, or the group has more ranks than there are stages.
    """

    def __init__(
        self,
        submodule: nn.Module,
        stage_index: int,
        num_stages: int,
        device: torch.device,
        input_args: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
        output_args: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
        output_grads: torch.Tensor | tuple[torch.Tensor | None, ...] | None = None,
        input_grads: torch.Tensor | tuple[torch.Tensor | None, ...] | None = None,
        group: dist.ProcessGroup | None = None,
        dw_builder: Callable[[], Callable[..., None]] | None = None,
        get_mesh: GetMeshCallback | None = None,
    ):
        check_count("num_stages", num_stages)
        check_count("stage_index", stage_index, minimum=0)
        if stage_index >= num_stages:
            raise ValueError(f"stage_index must be below num_stages (got {stage_index} of {num_stages})")
        self.submod = submodule
        self.stage_index = stage_index
        self.num_stages = num_stages
        self.device = torch.device(device)
        self.group = group
        self.dw_builder = dw_builder
        self.input_args = _as_tuple(input_args)
        self.output_args = _as_tuple(output_args)
        ready = dist.is_initialized()
        self.group_size = dist.get_world_size(group) if ready else 1
        self.group_rank = dist.get_rank(group) if ready else 0
        if self.group_size > num_stages:
            raise ValueError(
                f"every rank of the group needs a stage (ranks: {self.group_size}, stages: {num_stages}): "
                "cut the model into more stages or use a smaller group"
            )
        # The loop placement. Another map may be put in its place before the stage goes into a schedule.
        self.stage_index_to_group_rank = {index: index % self.group_size for index in range(num_stages)}
        self.has_backward = False

    @property
    def is_first(self) -> bool:
        """Whether the pipeline's inputs go in here."""
        return self.stage_index == 0

    @property
    def is_last(self) -> bool:
        """Whether the loss is computed here."""
        return self.stage_index == self.num_stages - 1

    def __repr__(self) -> str:
        return f"PipelineStage({self.stage_index} of {self.num_stages}, rank {self.group_rank}, {self.device})"


def _as_tuple(value: Any) -> tuple[torch.Tensor, ...] | None:
    return (value,) if isinstance(value, torch.Tensor) else value
