"""What the conformance tests need to know about MindSpore."""

import mindspore as ms
from mindspore import Parameter, Tensor, nn

from hyper_pp.mindspore.stage import CellStage
from hyper_pp.mindspore.tensors import MindSporeTensors
from hyper_pp.tree import map_tensors


class Scale(nn.Cell):
    """Multiplies every float input by its parameter; everything else passes."""

    def __init__(self, factor, frozen):
        super().__init__()
        self.factor = Parameter(Tensor([float(factor)], ms.float32), name="factor", requires_grad=not frozen)

    def construct(self, *values):
        is_tensor = MindSporeTensors().is_tensor
        scaled = map_tensors(lambda x: x * self.factor[0] if x.is_floating_point() else x, values, is_tensor)
        return scaled if len(scaled) > 1 else scaled[0]


class MindSporeKit:
    tensors = MindSporeTensors()

    def floats(self, *values):
        return Tensor([float(value) for value in values], ms.float32)

    def integers(self, *values):
        return Tensor(list(values), ms.int64)

    def scalar(self, value):
        return Tensor(float(value), ms.float32)

    def values(self, tensor):
        return tensor.reshape(-1).asnumpy().tolist()

    def scale_stage(self, factor, frozen=False):
        return CellStage(Scale(factor, frozen))
