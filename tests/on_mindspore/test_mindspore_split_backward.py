"""What the two halves of a backward run on MindSpore, gradient by gradient, beside one whole backward."""

import logging
import sys
from collections import Counter

import pytest
from msrun_launch import ROOT

ms = pytest.importorskip("mindspore")
sys.path[:0] = [str(ROOT / "scripts")]

import numpy as np  # noqa: E402
from gpt_common import GptConfig  # noqa: E402
from gpt_model import build_layers  # noqa: E402
from mindspore import Tensor, nn, ops  # noqa: E402

from hyper_pp.mindspore.split_backward import walk  # noqa: E402
from hyper_pp.mindspore.stage import CellStage  # noqa: E402

WIDTH, TOKENS = 16, 8
GPT = GptConfig(num_blocks=2, hidden=WIDTH, num_heads=2, context=TOKENS)
PRODUCTS = ("MatMul", "BatchMatMul", "Dense", "FlashAttention", "PromptFlashAttention")


class Attention(nn.Cell):
    """Self-attention with a residual, its weights in two Dense."""

    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm((WIDTH,)), nn.Dense(WIDTH, 3 * WIDTH), nn.Dense(WIDTH, WIDTH)

    def construct(self, x):
        q, k, v = ops.chunk(self.qkv(self.norm(x)), 3, -1)
        return x + self.out(ops.matmul(ops.softmax(ops.matmul(q, k.swapaxes(-1, -2))), v))


class SplitAndFrozen(nn.Cell):
    """The parts of one Dense's output go different ways, one of them through a frozen Dense."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Dense(WIDTH, 2 * WIDTH), nn.Dense(WIDTH, WIDTH)
        self.frozen = nn.Dense(WIDTH, WIDTH)
        for parameter in self.frozen.trainable_params():
            parameter.requires_grad = False

    def construct(self, x):
        left, right = ops.split(self.first(x), WIDTH, -1)
        return self.last(ops.tanh(self.frozen(left)) * right) + left


def hidden():
    return Tensor(np.random.RandomState(1).randn(2, TOKENS, WIDTH).astype(np.float32))


def ids():
    return Tensor(np.random.RandomState(2).randint(0, 256, (2, TOKENS)).astype(np.int32))


STAGES = {
    "dense": lambda: (nn.SequentialCell(nn.Dense(WIDTH, WIDTH), nn.Tanh(), nn.Dense(WIDTH, WIDTH)), hidden()),
    "attention": lambda: (Attention(), hidden()),
    "split outputs and a frozen layer": lambda: (SplitAndFrozen(), hidden()),
    "first stage of the GPT": lambda: (nn.SequentialCell(build_layers(GPT)[:2]), ids()),
    "middle stage of the GPT": lambda: (nn.SequentialCell(build_layers(GPT)[1:3]), hidden()),
    "last stage of the GPT": lambda: (nn.SequentialCell(build_layers(GPT)[2:]), hidden()),
}


def forward(stage, x):
    """Run a recorded forward; return its tape and gradients to start from."""
    output, tape = stage.forward((x,), {}, needs_grad=[x.dtype == ms.float32], record=True)
    return tape, [ops.ones_like(output)]


def count_gradients(tape):
    """Return a counter that fills, while backwards run, with the gradients they compute: (node, edge) → times."""
    found, names = Counter(), {}
    for number, (node, children) in enumerate(walk([output._grad_node for output in tape.outputs]).values()):
        if not children:  # a leaf, named by a running number
            continue
        names[number] = str(node.name() if callable(node.name) else node.name)

        def note(grads, _, number=number):
            found.update((number, edge) for edge, grad in enumerate(grads) if grad is not None)

        node.register_hook(note)
    return found, names


@pytest.mark.parametrize("name", STAGES)
def test_the_halves_compute_each_gradient_of_a_whole_backward_once(name, caplog):
    cell, x = STAGES[name]()
    stage = CellStage(cell)
    tape, grads = forward(stage, x)
    whole, names = count_gradients(tape)
    stage.backward(tape, grads)
    expected = stage.gradients()
    stage.set_gradients([None] * len(expected))

    tape, grads = forward(stage, x)
    halves, names_again = count_gradients(tape)
    with caplog.at_level(logging.WARNING, "hyper_pp"):
        stage.backward_input(tape, grads)
    assert not caplog.records, "the backward is run whole"
    assert all(grad is None for grad in stage.gradients()), "the input half leaves the weights' gradients alone"
    in_first_half = halves.copy()
    stage.backward_weight(tape)

    assert names_again == names
    products = [key for key in whole if names[key[0]].startswith(PRODUCTS)]
    assert products
    for key in products:
        assert halves[key] == whole[key] == 1, (names[key[0]], key)
    assert halves.total() <= 1.25 * whole.total()
    if x.dtype == ms.float32:
        assert 0 < in_first_half.total() < whole.total(), "each half has its share"
    for one, other in zip(expected, stage.gradients(), strict=True):
        np.testing.assert_allclose(other.asnumpy(), one.asnumpy(), rtol=1e-5, atol=1e-6)
