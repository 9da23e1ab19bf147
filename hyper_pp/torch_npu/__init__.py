"""Pipeline parallelism on torch, on NPUs (device ``npu``, backend ``hccl``) and on the CPU (``gloo``).

The names and signatures are those of ``torch.distributed.pipelining``, so one changed import switches.
"""

from hyper_pp.torch_npu.device import load_torch

load_torch()

from torch.distributed.pipelining import Pipe, SplitPoint, build_stage, pipe_split, pipeline  # noqa: E402

from hyper_pp.torch_npu.data import OwnedBatchSampler  # noqa: E402
from hyper_pp.torch_npu.microbatch import TensorChunkSpec, merge_chunks, split_args_kwargs_into_chunks  # noqa: E402
from hyper_pp.torch_npu.model import get_pipeline_schedule, split_model  # noqa: E402
from hyper_pp.torch_npu.pipeline_stage import PipelineStage  # noqa: E402
from hyper_pp.torch_npu.schedules import (  # noqa: E402
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
    _ScheduleForwardOnly,
    get_schedule_class,
)
from hyper_pp.torch_npu.transposed import (  # noqa: E402
    ScheduleFromPlan,
    ScheduleMPipeTranspose,
    ScheduleTranspose,
)

__all__ = [
    "OwnedBatchSampler",
    "Pipe",
    "PipelineScheduleMulti",
    "PipelineScheduleSingle",
    "PipelineStage",
    "Schedule1F1B",
    "ScheduleDualPipeV",
    "ScheduleFromPlan",
    "ScheduleGPipe",
    "ScheduleInterleaved1F1B",
    "ScheduleInterleavedZeroBubble",
    "ScheduleLoopedBFS",
    "ScheduleMPipeTranspose",
    "ScheduleTranspose",
    "ScheduleZBVZeroBubble",
    "SplitPoint",
    "TensorChunkSpec",
    "_ScheduleForwardOnly",
    "build_stage",
    "get_pipeline_schedule",
    "get_schedule_class",
    "merge_chunks",
    "pipe_split",
    "pipeline",
    "split_args_kwargs_into_chunks",
    "split_model",
]
