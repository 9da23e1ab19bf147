"""Run under msrun: a job that fails in the way its argument says; each rank notes when it began the faulty step."""

import sys
import time

from msrun_launch import report, settle

if __name__ == "__main__":
    settle()

    import mindspore as ms
    from mindspore.communication import init
    from small_models import Residual, batch, mean_square, residual_layers

    from hyper_pp.mindspore import PipelineCell

    class Raising(Residual):
        """Raises in its eleventh forward: step 2, micro-batch 2."""

        calls = 0

        def construct(self, x):
            self.calls += 1
            if self.calls == 11:
                raise KeyError("no such token")
            return super().construct(x)

    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    ms.runtime.launch_blocking()
    init()
    how = sys.argv[1]
    layers = residual_layers(3)
    if how == "raise":
        layers[1] = Raising(1)
    net = PipelineCell(layers, mean_square, micro_size=4, schedule="interleaved")
    inputs, target = batch(8)
    for _ in range(2):
        net(inputs, target).asnumpy()
    report("two steps", time.time())
    if how == "shape":
        inputs, target = batch(12)
    net(inputs, target).asnumpy()
    report("the third step", time.time())
