"""Recorded forwards, split backwards, seeds and the errors of MindSpore stages, in this process."""

import logging

import pytest

ms = pytest.importorskip("mindspore")

import numpy as np  # noqa: E402
from mindspore import Parameter, Tensor, nn, ops  # noqa: E402

from hyper_pp.mindspore import autograd  # noqa: E402
from hyper_pp.mindspore.stage import CellStage  # noqa: E402
from hyper_pp.mindspore.tensors import DTYPES, MindSporeTensors, dtype_of  # noqa: E402
from hyper_pp.tree import flatten  # noqa: E402


def f32(values):
    return Tensor(np.array(values, np.float32))


class Product(nn.Cell):
    """x·w·w with one shared parameter."""

    def __init__(self):
        super().__init__()
        self.w = Parameter(f32([[0.4, -0.2], [0.7, 0.3]]), name="w")

    def construct(self, x):
        return ops.matmul(ops.matmul(x, self.w), self.w)


class ThroughChunk(Product):
    def construct(self, x):
        left, right = ops.chunk(super().construct(x), 2, -1)
        return left, right


class Jitted(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(2, 2)

    @ms.jit
    def construct(self, x):
        return ops.tanh(self.dense(x))


class Doubled(nn.Cell):
    """Twice its input, with a backward of its own."""

    def construct(self, x):
        return x * 2

    def bprop(self, x, out, dout):
        return (dout * 2,)


class WithOwnBackward(Product):
    def __init__(self):
        super().__init__()
        self.doubled = Doubled()

    def construct(self, x):
        return super().construct(self.doubled(x))


class Attention(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm((4,)), nn.Dense(4, 12), nn.Dense(4, 4)

    def construct(self, x):
        q, k, v = ops.chunk(self.qkv(self.norm(x)), 3, -1)
        return x + self.out(ops.matmul(ops.softmax(ops.matmul(q, k.swapaxes(-1, -2))), v))


@pytest.mark.parametrize("cell", [Product, ThroughChunk])
def test_a_split_backward_is_exact_by_hand(cell):
    stage = CellStage(cell())
    output, tape = stage.forward((f32([[1.1, -0.7]]),), {}, needs_grad=[True], record=True)
    tensors = flatten(output, MindSporeTensors().is_tensor)[0]
    (dx,) = stage.backward_input(tape, [ops.ones_like(tensor) for tensor in tensors])
    stage.backward_weight(tape)
    np.testing.assert_allclose(dx.asnumpy(), [[-0.12, 0.44]], rtol=1e-5)
    np.testing.assert_allclose(stage.gradients()[0].asnumpy(), [[0.17, 1.05], [-0.57, -1.13]], rtol=1e-5)


@pytest.mark.parametrize("cell", [Attention, Product, Jitted, WithOwnBackward])
def test_a_split_backward_equals_a_whole_one_in_any_order_of_the_second_half(cell):
    cell = cell()
    width = 4 if isinstance(cell, Attention) else 2
    xs = [f32(np.random.RandomState(k).randn(3, width)) for k in range(4)]
    whole, split = CellStage(cell), CellStage(cell)
    for x in xs:
        output, tape = whole.forward((x,), {}, needs_grad=[True], record=True)
        whole.backward(tape, [ops.ones_like(output)])
    tapes = [split.forward((x,), {}, needs_grad=[True], record=True)[1] for x in xs]
    for tape, x in zip(tapes, xs):
        split.backward_input(tape, [ops.ones_like(x)])
    assert all(grad is None for grad in split.gradients())
    for k in (2, 0, 3, 1):
        split.backward_weight(tapes[k])
    for a, b in zip(whole.gradients(), split.gradients(), strict=True):
        np.testing.assert_allclose(a.asnumpy(), b.asnumpy(), rtol=1e-5, atol=1e-6)


def test_that_a_backward_cannot_be_split_is_said_once(caplog):
    stage = CellStage(Jitted(), name="stage 3")
    with caplog.at_level(logging.WARNING, "hyper_pp"):
        for _ in range(2):
            output, tape = stage.forward((f32([[1, 2]]),), {}, needs_grad=[True], record=True)
            stage.backward_input(tape, [ops.ones_like(output)])
            stage.backward_weight(tape)
    assert [record.getMessage() for record in caplog.records] == [
        "stage 3 holds a jitted function or a Cell with bprop, whose backward can't be split: its weight gradients are "
        "computed together with its input gradients"
    ]


def test_the_callers_tensor_stays_as_it_is():
    x = f32([1, 2])
    CellStage(lambda v: v * 2).forward((x,), {}, needs_grad=[True], record=True)
    assert not x._requires_grad
    assert x._grad_node is None


def test_a_stage_may_return_its_input_or_one_tensor_twice():
    stage = CellStage(lambda x: (x, x))
    _, tape = stage.forward((f32([1, 2]),), {}, needs_grad=[True], record=True)
    (grad,) = stage.backward(tape, [f32([1, 10]), f32([2, 20])])
    assert grad.asnumpy().tolist() == [3, 30]


def test_an_input_that_nothing_depends_on_gets_zeros():
    stage = CellStage(lambda x, y: x * 2)
    _, tape = stage.forward((f32([1]), f32([1, 2])), {}, needs_grad=[True, True], record=True)
    assert [grad.asnumpy().tolist() for grad in stage.backward(tape, [f32([1])])] == [[2], [0, 0]]


def test_a_forward_inside_somebodys_recorded_forward_leaves_no_graph():
    stage = CellStage(Product())
    output = autograd.record(lambda: stage.forward((f32([[1, 2]]),), {}, needs_grad=[False], record=False)[0], (), {})
    assert not autograd.in_graph(output)


@pytest.mark.parametrize(
    ("grads", "message"),
    [
        (
            [f32([[1, 1, 1]])],
            r"stage 2: the gradient of output tensor 0 must be Float32\[1, 2\] \(got Float32\[1, 3\]\)",
        ),
        ([Tensor([[1.0, 1.0]], ms.float16)], r"must be Float32\[1, 2\] \(got Float16\[1, 2\]\)"),
        ([], r"stage 2 has 1 output tensors \(got 0 gradients\)"),
    ],
)
def test_a_gradient_that_does_not_fit_is_refused(grads, message):
    stage = CellStage(Product(), name="stage 2")
    _, tape = stage.forward((f32([[1, 2]]),), {}, needs_grad=[True], record=True)
    with pytest.raises(ValueError, match=message):
        stage.backward(tape, grads)


def test_a_tape_is_used_up_by_its_backward():
    stage = CellStage(Product(), name="stage 1")
    output, tape = stage.forward((f32([[1, 2]]),), {}, needs_grad=[True], record=True)
    stage.backward(tape, [ops.ones_like(output)])
    with pytest.raises(RuntimeError, match="stage 1: a forward can be differentiated once, its tape is used up"):
        stage.backward(tape, [ops.ones_like(output)])


class Counting(nn.Cell):
    def __init__(self):
        super().__init__()
        self.n = Parameter(f32(0), requires_grad=False, name="n")
        self.register_buffer("m", f32([0, 0]))
        self.norm, self.dense = nn.BatchNorm1d(3), nn.Dense(3, 3)

    def construct(self, x):
        self.n += 1
        self.m.copy_(self.m + 1)
        return self.norm(self.dense(x))


def test_a_recompute_counts_nothing_twice_and_can_be_differentiated():
    cell = Counting().set_train()
    stage, x = CellStage(cell), f32(np.random.RandomState(0).randn(4, 3))
    counts = []
    for keep in (False, True, False):
        output, tape = stage.forward((x,), {}, needs_grad=[True], record=True, keep_buffers=keep)
        stage.backward(tape, [output])
        counts.append((cell.n.asnumpy().item(), cell.m.asnumpy().tolist(), cell.norm.moving_mean.asnumpy().tolist()))
    assert [count[:2] for count in counts] == [(1, [1, 1]), (1, [1, 1]), (2, [2, 2])]
    assert counts[0][2] == counts[1][2] != counts[2][2]


class Dropouts(nn.Cell):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Dropout(p=0.5), nn.Dropout(p=0.3)

    def construct(self, x):
        return self.one(x) + 10 * self.one(x) + 100 * self.other(x) + 1000 * ops.dropout(x, 0.5)


def test_a_seed_repeats_every_kind_of_dropout_and_disturbs_nothing():
    x = Tensor(np.ones((8, 32), np.float32))

    def surroundings():
        return ops.dropout(x, 0.5).asnumpy().tolist(), np.random.rand(), ms.get_rng_state().asnumpy().tolist()

    ms.set_seed(1)
    undisturbed = [surroundings(), surroundings()]
    stage = CellStage(Dropouts().set_train())
    operator = stage.function.one.dropout
    ms.set_seed(1)
    found = [surroundings()]
    drawn = [
        stage.forward((x,), {}, needs_grad=[True], record=record, seed=seed)[0].asnumpy()
        for seed, record in ((3, False), (4, True), (3, True))
    ]
    found.append(surroundings())
    assert found == undisturbed
    assert stage.function.one.dropout is operator
    np.testing.assert_array_equal(drawn[0], drawn[2])
    assert (drawn[0] != drawn[1]).any()


def test_a_layer_used_twice_draws_two_masks_under_one_seed():
    layer = nn.Dropout(p=0.5).set_train()

    class Twice(nn.Cell):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def construct(self, x):
            return self.layer(x), self.layer(x)

    stage = CellStage(Twice().set_train())
    (first, second), _ = stage.forward((f32(np.ones((64,))),), {}, needs_grad=[False], record=False, seed=1)
    assert (first.asnumpy() != second.asnumpy()).any()


def test_an_older_mindspore_is_refused_by_name(monkeypatch):
    autograd._api.cache_clear()
    monkeypatch.setattr(ms, "__version__", "2.7.1")
    try:
        with pytest.raises(RuntimeError, match=r"hyper_pp needs MindSpore 2.8 or newer \(found 2.7.1\)"):
            autograd.require_support()
    finally:
        autograd._api.cache_clear()


def test_a_split_backward_needs_gradient_edges(monkeypatch):
    monkeypatch.setattr(autograd, "_api", lambda: autograd._Api(None, None, None))
    with pytest.raises(RuntimeError, match=r"a split backward needs MindSpore 2.9 or newer \(found 2\."):
        autograd.require_support(split_backward=True)


def test_graph_mode_is_refused_with_the_fix():
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        with pytest.raises(
            RuntimeError, match=r"got graph mode\); call mindspore.set_context\(mode=mindspore.PYNATIVE_MODE"
        ):
            autograd.require_support()
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)


def test_reentrant_recompute_is_refused_with_the_fix():
    inner = Product()
    stage = CellStage(lambda x: ms.recompute(inner, x), inner.trainable_params())
    stage._custom_backward = True  # the Cell that recompute makes defines bprop
    output, tape = stage.forward((f32([[1, 2]]),), {}, needs_grad=[True], record=True)
    with pytest.raises(RuntimeError, match="pass use_reentrant=False"):
        stage.backward(tape, [ops.ones_like(output)])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_dtype_survives_its_text_form(dtype):
    assert str(dtype_of(dtype)) == dtype


def test_an_unknown_dtype_is_refused_with_a_list():
    with pytest.raises(TypeError, match=r"dtype must be one of Bool, Int8.* \(got Int3\)"):
        dtype_of("Int3")


def test_a_scalar_of_weight_zero_counts_nothing_even_if_it_is_nan():
    total = MindSporeTensors().weighted_sum([f32(float("nan")), f32(3)], [0.0, 0.5])
    assert total.asnumpy().item() == 1.5
