"""Stages and tensors of MindSpore keep the engine's protocols; split backwards are exact. One process, no msrun."""

import numpy as np
import protocol_conformance as conformance
import pytest

ms = pytest.importorskip("mindspore")

from mindspore import Parameter, Tensor, mint, nn, ops  # noqa: E402 - after the framework is known to be there
from mindspore_kit import MindSporeKit  # noqa: E402 - likewise

from hyper_pp.mindspore import stage as stage_module  # noqa: E402 - likewise
from hyper_pp.mindspore.stage import CellStage  # noqa: E402 - likewise


@pytest.fixture(autouse=True)
def pynative():
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")


@pytest.mark.parametrize("case", conformance.TENSORS_CASES + conformance.STAGE_CASES, ids=lambda case: case.__name__)
def test_the_protocol_is_kept(case):
    case(MindSporeKit())


W = [[0.4, -0.2], [0.7, 0.3]]
X = [[1.1, -0.7]]


class Twice(nn.Cell):
    """x·w·w, summed."""

    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.array(W, np.float32)), name="w")

    def construct(self, x):
        return mint.matmul(mint.matmul(x, self.w), self.w).sum()


class Chunked(Twice):
    """The same, the second product by halves."""

    def construct(self, x):
        left, right = mint.chunk(mint.matmul(x, self.w), 2, -1)
        upper, lower = mint.chunk(self.w, 2, 0)
        return (left * upper + right * lower).sum()


@pytest.mark.parametrize("cell", [Twice, Chunked])
def test_a_weight_used_twice_gets_its_whole_gradient_from_the_two_halves(cell):
    stage = CellStage(cell())
    output, tape = stage.forward((Tensor(np.array(X, np.float32)),), {}, needs_grad=[True], record=True)
    assert float(output.asnumpy()) == pytest.approx(-0.44)
    (dx,) = stage.backward_input(tape, [Tensor(np.float32(1.0))])
    assert stage.gradients() == [None], "the input half leaves every weight gradient untouched"
    stage.backward_weight(tape)
    np.testing.assert_allclose(dx.asnumpy(), [[-0.12, 0.44]], rtol=1e-6)
    np.testing.assert_allclose(stage.gradients()[0].asnumpy(), [[0.17, 1.05], [-0.57, -1.13]], rtol=1e-5)


class Noisy(nn.Cell):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(p=0.5)

    def construct(self, x):
        return self.drop(x) + ops.dropout(x, p=0.5)


def test_a_seed_repeats_the_random_numbers_and_leaves_those_around_alone():
    stage, x = CellStage(Noisy().set_train()), Tensor(np.ones((4, 50), np.float32))

    def run(seed):
        return stage.forward((x,), {}, needs_grad=[False], record=False, seed=seed)[0].asnumpy()

    ms.set_seed(3)
    alone = ops.dropout(x, p=0.5).asnumpy()
    ms.set_seed(3)
    first = run(7)
    np.testing.assert_array_equal(run(7), first)
    assert (run(8) != first).any()
    np.testing.assert_array_equal(ops.dropout(x, p=0.5).asnumpy(), alone)


class Stateful(nn.Cell):
    def __init__(self):
        super().__init__()
        self.count = Parameter(Tensor(np.zeros(3, np.float32)), name="count", requires_grad=False)
        self.tower = Parameter(Tensor(np.ones(4, np.float32)), name="tower", requires_grad=False)

    def construct(self, x):
        self.count.assign_value(self.count + 1)
        return x * self.tower.sum() + self.count.sum()


def test_buffers_are_put_back_and_large_ones_that_never_change_are_not_copied(monkeypatch):
    monkeypatch.setattr(stage_module, "SMALL", 0)
    copied = []
    monkeypatch.setattr(stage_module, "_copy", lambda tensor: copied.append(tensor.name) or Tensor(tensor.asnumpy()))
    cell = Stateful()
    stage = CellStage(cell)
    for _ in range(2):
        output, _ = stage.forward((Tensor(np.float32(1.0)),), {}, needs_grad=[False], record=False, keep_buffers=True)
        assert float(output.asnumpy()) == 7.0
        assert cell.count.asnumpy().tolist() == [0, 0, 0]
    assert copied == ["count", "tower", "count"]
