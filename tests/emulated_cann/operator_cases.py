"""Run alone on CPU and on the emulated Ascend: operators that a transformer needs, forward and backward.

Prints one JSON object: by case, the output and the gradients as nested lists.
"""

import json
import sys

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, ops


def numbers(*shape, seed=0):
    return Tensor(np.random.RandomState(seed).randn(*shape).astype(np.float32))


IDS = Tensor(np.array([[1, 3, 0], [2, 2, 4]], np.int32))
LABELS = Tensor(np.array([1, 0, 3, 2], np.int64))
MASK = Tensor(np.triu(np.ones((4, 4)), 1).astype(bool))

# name: (function of float tensors, their shapes)
CASES = {
    "matmul": (mint.matmul, [(3, 4), (4, 5)]),
    "batched matmul": (mint.matmul, [(2, 3, 4), (2, 4, 5)]),
    "linear": (lambda x, w, b: mint.nn.functional.linear(x, w, b), [(3, 4), (5, 4), (5,)]),
    "add broadcast": (mint.add, [(3, 4), (4,)]),
    "sub": (mint.sub, [(3, 4), (3, 4)]),
    "mul broadcast": (mint.mul, [(2, 3, 4), (3, 1)]),
    "div by number": (lambda x: x / 3.0, [(3, 4)]),
    "tanh": (mint.tanh, [(3, 4)]),
    "gelu": (mint.nn.functional.gelu, [(3, 4)]),
    "relu": (mint.nn.functional.relu, [(3, 4)]),
    "sigmoid": (mint.sigmoid, [(3, 4)]),
    "exp": (mint.exp, [(3, 4)]),
    "square and mean": (lambda x: mint.mean(mint.square(x)), [(3, 4)]),
    "sum over a dimension": (lambda x: mint.sum(x, 1), [(3, 4)]),
    "softmax": (lambda x: mint.nn.functional.softmax(x, -1), [(2, 3, 4)]),
    "log_softmax": (lambda x: mint.nn.functional.log_softmax(x, -1), [(3, 4)]),
    "layer_norm": (lambda x, w, b: mint.nn.functional.layer_norm(x, (4,), w, b), [(2, 3, 4), (4,), (4,)]),
    "embedding": (lambda w: mint.nn.functional.embedding(IDS, w), [(5, 4)]),
    "cross_entropy": (lambda x: mint.nn.functional.cross_entropy(x, LABELS), [(4, 5)]),
    "masked_fill": (lambda x: mint.nn.functional.softmax(x.masked_fill(MASK, -1e9), -1), [(2, 4, 4)]),
    "where": (lambda x, y: mint.where(MASK, x, y), [(4, 4), (4, 4)]),
    "transpose and reshape": (lambda x: mint.transpose(x, 1, 2).reshape(2, -1), [(2, 3, 4)]),
    "permute": (lambda x: mint.permute(x, (2, 0, 1)) * 2.0, [(2, 3, 4)]),
    "cat": (lambda x, y: mint.cat([x, y], 1), [(2, 3), (2, 4)]),
    "stack": (lambda x, y: mint.stack([x, y], 0), [(2, 3), (2, 3)]),
    "chunk": (lambda x: mint.chunk(x, 2, -1)[0] * mint.chunk(x, 2, -1)[1], [(3, 4)]),
    "split": (lambda x: mint.split(x, [1, 3], 1)[1], [(3, 4)]),
    "narrow": (lambda x: mint.narrow(x, 1, 1, 2), [(3, 4)]),
    "cast to half and back": (lambda x: (x.astype(ms.float16) * 2).astype(ms.float32), [(3, 4)]),
}

# Where the CPU lacks the operator, the same by others.
ON_CPU = {
    "gelu": lambda x: ops.gelu(x, approximate="none"),
    "log_softmax": lambda x: ops.log_softmax(x, -1),
    "layer_norm": lambda x, w, b: (x - x.mean(-1, True)) / ops.sqrt(x.var(-1, 0, True) + 1e-5) * w + b,
    "embedding": lambda w: ops.gather(w, IDS, 0),
    "cross_entropy": lambda x: ops.cross_entropy(x, LABELS.astype(ms.int32)),
    "stack": lambda x, y: ops.stack([x, y], 0),
}


def values(tensor):
    return tensor.asnumpy().astype(np.float64).tolist()


def plain():
    """What needs no gradient: integers, booleans, filling, copies."""
    x = numbers(3, 4)
    flags = x > 0
    return {
        "bool as bytes and back": values(flags.view(ms.uint8).view(ms.bool_)),
        "int64 to float32": values(LABELS.astype(ms.float32) + 0.5),
        "zeros and full": values(mint.zeros((3, 4)) + mint.full((3, 4), 2.5)),
        "contiguous copy of a transpose": values(mint.transpose(x, 0, 1).contiguous()),
        "all finite": bool(mint.isfinite(x).all()),
        # More than any case before has freed: the pool must ask the emulated device for it.
        "fresh memory holds NaN": bool(np.isnan(mint.empty((1 << 20,)).asnumpy()).any()),
    }


def plain_by_numpy():
    """The same in NumPy."""
    x = numbers(3, 4).asnumpy().astype(np.float64)
    return {
        "bool as bytes and back": (x > 0).astype(np.float64).tolist(),
        "int64 to float32": (LABELS.asnumpy() + 0.5).tolist(),
        "zeros and full": np.full((3, 4), 2.5).tolist(),
        "contiguous copy of a transpose": x.T.tolist(),
        "all finite": True,
        "fresh memory holds NaN": True,
    }


def main():
    if sys.argv[1] == "Ascend":
        ms.set_device("Ascend")
        ms.set_context(mode=ms.PYNATIVE_MODE)
    else:
        ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    from hyper_pp.mindspore import autograd

    results = {}
    for name, (function, shapes) in CASES.items():
        function = ON_CPU.get(name, function) if sys.argv[1] == "CPU" else function
        inputs = [autograd.leaf(numbers(*shape, seed=position)) for position, shape in enumerate(shapes)]
        output = autograd.record(function, inputs, {})
        grads = autograd.backward(
            [output], [ops.ones_like(output) * 0.5 if output.ndim == 0 else weights(output)], inputs
        )
        results[name] = [values(output), *(values(grad) for grad in grads)]
    print("RESULT", json.dumps({**results, **(plain_by_numpy() if sys.argv[1] == "CPU" else plain())}))


def weights(output):
    """An output gradient that differs from element to element."""
    count = int(np.prod(output.shape))
    return (Tensor(np.linspace(-1, 1, count).reshape(output.shape).astype(np.float32)) * 1.0).astype(output.dtype)


if __name__ == "__main__":
    main()
