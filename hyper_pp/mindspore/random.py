"""Random numbers that a recompute can draw again, on any rank, without disturbing the numbers drawn around it.

What steers a random operator depends on the operator. ``ops.dropout`` and the other functions of ``ops`` take their
seed from the global seed and a counter per operator; ``mint`` functions from the default generator; an ``nn.Dropout``
keeps a kernel with a state of its own, which nothing resets, so its operator is replaced while a seed is set.
Not steered, since MindSpore gives them no seed: ``dropout1d``, ``dropout2d``, ``dropout3d`` on CPU, and nn.Dropout
inside a jitted function.
"""

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence

import mindspore
import numpy
from mindspore import Tensor, nn, ops

_LARGEST = 2**31 - 1


@contextlib.contextmanager
def seeded(seed: int, layers: Sequence[nn.Dropout] = ()) -> Iterator[None]:
    """Draw random numbers from ``seed`` inside the block; afterwards every generator is where it was before.

    Args:
        seed: Any integer of at least 0.
        layers: The ``nn.Dropout`` objects used inside.

    Raises:
        ValueError: The seed is negative.
    """
    if seed < 0:
        raise ValueError(f"seed must be at least 0 (got {seed})")
    seeds = importlib.import_module("mindspore.common.seed")  # the package hides the module behind a function
    counters = seeds._KERNEL_SEED
    before = seeds._GLOBAL_SEED, dict(counters), mindspore.get_rng_state(), numpy.random.get_state()
    operators = [layer.dropout for layer in layers]
    seeds._GLOBAL_SEED = seed % _LARGEST
    counters.clear()
    mindspore.manual_seed(seed)
    numpy.random.seed(seed % 2**32)
    for layer in layers:
        layer.dropout = _steered(layer)
    try:
        yield
    finally:
        for layer, operator in zip(layers, operators):
            layer.dropout = operator
        seeds._GLOBAL_SEED = before[0]
        counters.clear()
        counters.update(before[1])
        mindspore.set_rng_state(before[2])
        numpy.random.set_state(before[3])


def _steered(layer: nn.Dropout) -> Callable[[Tensor], tuple[Tensor, None]]:
    dropped = 1 - layer.keep_prob if layer.p is None else layer.p
    return lambda x: (ops.dropout(x, p=dropped), None)
