"""A stage as users make it: ``PipelineStage`` with the arguments of ``torch.distributed.pipelining``."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import stage as torch_stage
from torch.distributed.pipelining.stage import GetMeshCallback

from hyper_pp.shape import check_count


class PipelineStage(torch_stage.PipelineStage):
    """One stage of a model that is cut into stages; a rank that holds several makes one for each.

    It is one of torch's stages too, so it passes for one and runs in torch's own schedules. Our schedules use its
    module and its place only; the last one's ``output_chunks`` are the outputs of the last step, by micro-batch, until
    the next one or ``clear_runtime_states()``.

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
        ready = dist.is_initialized()
        group_size = dist.get_world_size(group) if ready else 1
        if group_size > num_stages:
            raise ValueError(
                f"every rank of the group needs a stage (ranks: {group_size}, stages: {num_stages}): "
                "cut the model into more stages or use a smaller group"
            )
        device = torch.device(device)
        if ready:
            super().__init__(
                submodule,
                stage_index,
                num_stages,
                device,
                _if_tensors(input_args),
                _if_tensors(output_args),
                output_grads,
                input_grads,
                group,
                dw_builder,
                get_mesh,
            )
        else:  # torch's asks for a process group even for a single process; what is set here is what ours need
            self.submod, self.stage_index, self.num_stages, self.device = submodule, stage_index, num_stages, device
            self.group, self.group_rank, self.group_size, self.dw_builder = group, 0, 1, dw_builder
            self.stage_index_to_group_rank = dict.fromkeys(range(num_stages), 0)
            self.has_backward = False
            self.output_chunks: list[Any] = []
        self.input_args = _as_tuple(input_args)
        self.output_args = _as_tuple(output_args)

    def __repr__(self) -> str:
        return f"PipelineStage({self.stage_index} of {self.num_stages}, rank {self.group_rank}, {self.device})"


def _if_tensors(value: Any) -> Any:
    """Torch's stages pass on tensors only; ours also numbers, None and more."""
    values = value if isinstance(value, tuple) else (value,)
    return value if all(isinstance(one, torch.Tensor) for one in values) else None


def _as_tuple(value: Any) -> tuple[torch.Tensor, ...] | None:
    return (value,) if isinstance(value, torch.Tensor) else value
