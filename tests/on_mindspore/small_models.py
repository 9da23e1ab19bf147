"""A small residual network on MindSpore, and the same in NumPy: one process, written down a second time."""

import numpy as np
from mindspore import Parameter, Tensor, mint, nn

from hyper_pp.microbatch import offsets, split_sizes

FEATURES = 6


class Residual(nn.Cell):
    """x + tanh(x·W), with a weight that depends on the layer's index only."""

    def __init__(self, index):
        super().__init__()
        weight = np.random.RandomState(100 + index).randn(FEATURES, FEATURES) * 0.15
        self.weight = Parameter(Tensor(weight.astype(np.float32)), name="weight")

    def construct(self, x):
        return x + mint.tanh(mint.matmul(x, self.weight))


def residual_layers(count):
    return [Residual(index) for index in range(count)]


def mean_square(output, target):
    return mint.mean(mint.square(output - target))


def batch(size, seed=7):
    numbers = np.random.RandomState(seed)
    return (
        Tensor(numbers.randn(size, FEATURES).astype(np.float32)),
        Tensor(numbers.randn(size, FEATURES).astype(np.float32)),
    )


def gradients_by_name(net):
    """Return a pipeline's accumulated gradients on this rank, by parameter name."""
    return dict(zip([parameter.name for parameter in net.trainable_params()], net.gradients(), strict=True))


def one_process(count, inputs, target, num_micro_batches=1, weights=None):
    """Loss and weight gradients of ``count`` residual layers under ``mean_square``, in float64.

    The loss is the weighted sum over the micro-batches; by default each weighs by its size, so that any number of
    micro-batches gives the same.
    """
    matrices = [layer.weight.asnumpy().astype(np.float64) for layer in residual_layers(count)]
    sizes = split_sizes(target.shape[0], num_micro_batches)
    weights = [size / sum(sizes) for size in sizes] if weights is None else weights
    total, gradients = 0.0, [np.zeros_like(matrix) for matrix in matrices]
    for (start, size), weight in zip(offsets(sizes), weights):
        x = inputs.asnumpy()[start : start + size].astype(np.float64)
        y = target.asnumpy()[start : start + size].astype(np.float64)
        tape = []
        for matrix in matrices:
            tangent = np.tanh(x @ matrix)
            tape.append((x, tangent))
            x = x + tangent
        total += weight * np.mean((x - y) ** 2)
        grad = weight * 2 * (x - y) / x.size
        for index in reversed(range(count)):
            x, tangent = tape[index]
            inner = grad * (1 - tangent**2)
            gradients[index] += x.T @ inner
            grad = grad + inner @ matrices[index].T
    return total, gradients
