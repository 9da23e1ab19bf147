"""Steps leave nothing behind: no tape stays alive, and memory grows no faster than under a bare loop."""

import gc

import pytest

ms = pytest.importorskip("mindspore")

from mindspore import nn  # noqa: E402 - after the framework is known to be there
from small_models import batch, mean_square, residual_layers  # noqa: E402 - likewise

from hyper_pp.mindspore import PipelineCell, autograd  # noqa: E402 - likewise
from hyper_pp.mindspore.stage import CellTape  # noqa: E402 - likewise

STEPS = 150
MICRO_BATCHES = 4


def resident():
    """Return the process's resident memory in kilobytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:"))


def growth(step):
    """Return by how many kilobytes memory grows over the steps, after some to warm up."""
    for _ in range(30):
        step()
    gc.collect()
    before = resident()
    for _ in range(STEPS):
        step()
    gc.collect()
    return resident() - before


def test_memory_grows_no_faster_than_under_a_bare_loop():
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    layers = residual_layers(3)
    inputs, target = batch(8)
    parts = [(inputs[2 * m : 2 * m + 2], target[2 * m : 2 * m + 2]) for m in range(MICRO_BATCHES)]
    network = nn.SequentialCell(layers)
    parameters = network.trainable_params()
    net = PipelineCell(layers, mean_square, micro_size=MICRO_BATCHES, schedule="mpipe", num_transpose_layers=1)

    def bare():
        for x, y in parts:
            loss = autograd.record(lambda a, b: mean_square(network(a), b), (x, y), {})
            for grad in autograd.backward([loss], [mean_square(x, x) + 1.0], parameters):
                grad.asnumpy()

    def pipeline():
        net(inputs, target).asnumpy()
        net.clear_gradients()

    first, ours = growth(bare), growth(pipeline)
    # A CPU matmul leaks some bytes a call by itself; 4 MB cover how coarsely memory is counted.
    assert ours <= 2 * max(first, 0) + 4096, (first, ours)
    assert sum(type(item) is CellTape for item in gc.get_objects()) == 0
