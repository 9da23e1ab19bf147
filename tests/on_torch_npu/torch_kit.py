"""What the conformance tests need to know about torch."""

import torch
from torch import nn

from hyper_pp.torch_npu.stage import TorchStage
from hyper_pp.torch_npu.tensors import TorchTensors
from hyper_pp.tree import map_tensors


class Scale(nn.Module):
    """Multiplies every float input by its parameter; everything else passes."""

    def __init__(self, factor, frozen):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor([float(factor)]), requires_grad=not frozen)

    def forward(self, *values):
        scaled = map_tensors(
            lambda x: x * self.factor[0] if x.is_floating_point() else x, values, lambda x: isinstance(x, torch.Tensor)
        )
        return scaled if len(scaled) > 1 else scaled[0]


class TorchKit:
    tensors = TorchTensors(torch.device("cpu"))

    def floats(self, *values):
        return torch.tensor([float(value) for value in values])

    def integers(self, *values):
        return torch.tensor(values, dtype=torch.int64)

    def scalar(self, value):
        return torch.tensor(float(value))

    def values(self, tensor):
        return tensor.reshape(-1).tolist()

    def scale_stage(self, factor, frozen=False):
        return TorchStage(Scale(factor, frozen))


KIT = TorchKit()
