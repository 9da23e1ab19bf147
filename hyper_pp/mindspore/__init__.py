"""Pipeline-parallel training of MindSpore Cells, on Ascend NPUs (HCCL) and on CPU (mccl), started by ``msrun``."""

from hyper_pp.mindspore.data import OwnedSampler
from hyper_pp.mindspore.optim import PipelineTrainOneStepCell
from hyper_pp.mindspore.pipeline import PipelineCell

__all__ = ["OwnedSampler", "PipelineCell", "PipelineTrainOneStepCell"]
