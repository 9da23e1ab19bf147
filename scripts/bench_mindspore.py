"""What the pipeline's runtime costs on MindSpore: a step on one rank against bare loops over the same micro-batches.

    python scripts/bench_mindspore.py [--rounds 15] [--device CPU]

Three ways to the same loss and gradients take turns, so that a noisy machine is noisy for all of them; the medians of
their times and of the ratios within each turn are printed:

* pipeline: ``PipelineCell`` with one rank, one stage and 8 micro-batches;
* bare: a recorded forward and one ``run_backward`` per micro-batch, gradients added up;
* value_and_grad: ``mindspore.value_and_grad`` per micro-batch, gradients added up.

Exit status 1 if a step costs more than 1.05 times the bare loop or 1.10 times the ``value_and_grad`` loop.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hyper_pp.mindspore import PipelineCell, autograd

MICRO_BATCHES = 8
MOST_OVER_BARE = 1.05
MOST_OVER_VALUE_AND_GRAD = 1.10


class Layer(nn.Cell):
    """x + tanh(x·W₁)·W₂."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__()
        numbers = np.random.RandomState(seed)
        scale = 0.3 / width**0.5
        self.inner = Parameter(Tensor((numbers.randn(width, 4 * width) * scale).astype(np.float32)), name="inner")
        self.outer = Parameter(Tensor((numbers.randn(4 * width, width) * scale).astype(np.float32)), name="outer")

    def construct(self, x: Tensor) -> Tensor:
        return x + mint.matmul(mint.tanh(mint.matmul(x, self.inner)), self.outer)


def mean_square(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared difference."""
    return mint.mean(mint.square(output - target))


def summed(total: list[Tensor], grads: tuple[Tensor, ...]) -> list[Tensor]:
    """Add a micro-batch's gradients to those of the micro-batches before it."""
    return [mint.add(old, new) for old, new in zip(total, grads)] if total else list(grads)


def main() -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=15, help="turns of the three ways (default: 15)")
    parser.add_argument("--device", default="CPU", choices=["CPU", "Ascend"])
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--rows", type=int, default=256, help="rows of one micro-batch")
    options = parser.parse_args()
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target=options.device)
    if options.device == "CPU":
        # For all three: else their threads' fight for the cores is what is measured.
        ms.runtime.launch_blocking()
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

    layers = [Layer(options.width, seed) for seed in range(2)]
    network = nn.SequentialCell(layers)
    parameters = network.trainable_params()
    numbers = np.random.RandomState(0)
    size = (MICRO_BATCHES * options.rows, options.width)
    x, y = (Tensor(numbers.randn(*size).astype(np.float32)) for _ in range(2))
    parts = [
        (x[m * options.rows : (m + 1) * options.rows], y[m * options.rows : (m + 1) * options.rows])
        for m in range(MICRO_BATCHES)
    ]
    pipeline = PipelineCell(layers, mean_square, micro_size=MICRO_BATCHES, schedule="1f1b")
    sens = Tensor(np.float32(1.0 / MICRO_BATCHES))

    def run_pipeline() -> tuple[Tensor, list[Tensor]]:
        loss, grads = pipeline(x, y), list(pipeline.gradients())
        pipeline.clear_gradients()
        return loss, grads

    def run_bare() -> tuple[Tensor, list[Tensor]]:
        losses, total = [], []
        for inputs, target in parts:
            loss = autograd.record(lambda a, b: mean_square(network(a), b), (inputs, target), {})
            total = summed(total, autograd.backward([loss], [sens], parameters))
            losses.append(loss)
        return sum(losses[1:], losses[0]) / MICRO_BATCHES, total

    value_and_grad = ms.value_and_grad(lambda a, b: mean_square(network(a), b) / MICRO_BATCHES, None, parameters)

    def run_value_and_grad() -> tuple[Tensor, list[Tensor]]:
        losses, total = [], []
        for inputs, target in parts:
            loss, grads = value_and_grad(inputs, target)
            total = summed(total, grads)
            losses.append(loss)
        return sum(losses[1:], losses[0]), total

    ways = {"pipeline": run_pipeline, "bare": run_bare, "value_and_grad": run_value_and_grad}
    results = {}
    for name, run in ways.items():
        loss, grads = run()
        results[name] = [loss.asnumpy(), *(grad.asnumpy() for grad in grads)]
    for name, values in results.items():
        worst = max(float(np.abs(a - b).max()) for a, b in zip(values, results["bare"]))
        assert worst < 1e-5, f"{name} gives another result than the bare loop (largest difference {worst})"

    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, run in ways.items():
            start = time.perf_counter()
            loss, grads = run()
            loss.asnumpy()
            for grad in grads:
                grad.asnumpy()
            times[name].append(1e3 * (time.perf_counter() - start))
    stage = statistics.median(times["bare"]) / MICRO_BATCHES
    print(f"{MICRO_BATCHES} micro-batches, one rank, {options.device}; forward and backward of one take {stage:.1f} ms")
    for name, values in times.items():
        print(f"{name:>15}: {statistics.median(values):8.1f} ms a step (smallest {min(values):.1f})")
    status = 0
    for name, most in (("bare", MOST_OVER_BARE), ("value_and_grad", MOST_OVER_VALUE_AND_GRAD)):
        ratio = statistics.median(a / b for a, b in zip(times["pipeline"], times[name]))
        verdict = "ok" if ratio <= most else "MISSED"
        print(f"pipeline / {name}: {ratio:.3f} (at most {most:.2f}) {verdict}")
        status |= ratio > most
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
