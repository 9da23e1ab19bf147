"""Stages and tensors by themselves: conformance, and the backward in two halves."""

from collections import Counter

import protocol_conformance as conformance
import pytest
import torch
from gpt_common import GptConfig
from gpt_model_torch import build_layers
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch_kit import KIT

from hyper_pp.torch_npu.stage import TorchStage


@pytest.mark.parametrize("case", conformance.named(conformance.TENSORS_CASES + conformance.STAGE_CASES))
def test_torch_conforms(case):
    case(KIT)


class MatMul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w.T, x.T @ grad


class Twice(nn.Module):
    """x·w·w, so that one parameter stands at two depths."""

    def __init__(self, multiply):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([[0.4, -0.2], [0.7, 0.3]]))
        self.multiply = multiply

    def forward(self, x):
        return self.multiply(self.multiply(x, self.w), self.w)


def through_chunk(x, w):
    left, right = (x @ w).chunk(2, -1)
    return torch.cat([left, right], -1)


@pytest.mark.parametrize("multiply", [torch.matmul, MatMul.apply, through_chunk])
def test_two_halves_are_exact_for_a_shared_weight(multiply):
    stage = TorchStage(Twice(multiply))
    output, tape = stage.forward((torch.tensor([[1.1, -0.7]]),), {}, needs_grad=[True], record=True)
    assert output.sum().item() == pytest.approx(-0.44)
    (dx,) = stage.backward_input(tape, [torch.ones_like(output)])
    assert stage.function.w.grad is None, "the input half leaves every weight gradient"
    stage.backward_weight(tape)
    torch.testing.assert_close(dx, torch.tensor([[-0.12, 0.44]]))
    torch.testing.assert_close(stage.function.w.grad, torch.tensor([[0.17, 1.05], [-0.57, -1.13]]))


class Mixed(nn.Module):
    """Frozen layers, a weight used in a branch and on the trunk, outputs on and off the trunk."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.shared = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.bias = nn.Parameter(torch.randn(6))

    def forward(self, x, ids):
        hidden = self.norm(self.frozen(self.shared(x)))
        side = self.shared(self.bias)
        first, second = (hidden * side).split([2, 4], -1)
        return self.shared(torch.cat([second, first], -1)), side * 2, ids + 1, x


def gradients_of(module, backward):
    module.zero_grad()
    torch.manual_seed(1)
    x = torch.randn(5, 6)
    stage = TorchStage(module)
    output, tape = stage.forward((x, torch.arange(3)), {}, needs_grad=[True, False], record=True)
    assert tape.requires_grad == (True, True, False, True)
    grads = [torch.randn_like(item) if use else None for item, use in zip(output, tape.requires_grad)]
    found = backward(stage, tape, grads)
    return found[0], [parameter.grad for parameter in module.parameters()]


def in_halves(stage, tape, grads):
    found = stage.backward_input(tape, grads)
    assert all(parameter.grad is None for parameter in stage.function.parameters())
    stage.backward_weight(tape)
    return found


@pytest.mark.parametrize("module", [Mixed(), nn.Sequential()], ids=["mixed", "nothing to train"])
def test_two_halves_give_what_one_backward_gives(module):
    if not list(module.parameters()):
        stage = TorchStage(nn.Identity())
        _, tape = stage.forward((torch.ones(2),), {}, needs_grad=[True], record=True)
        assert torch.equal(in_halves(stage, tape, [torch.ones(2)])[0], torch.ones(2))
        return
    dx, grads = gradients_of(module, lambda stage, tape, given: stage.backward(tape, given))
    split_dx, split_grads = gradients_of(module, in_halves)
    torch.testing.assert_close(split_dx, dx)
    for split, whole in zip(split_grads, grads):
        assert (split is None) == (whole is None)
        if whole is not None:
            torch.testing.assert_close(split, whole)


class Operators(TorchDispatchMode):
    """Counts the operators that run inside."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[str(function.overloadpacket)] += 1
        return function(*args, **(kwargs or {}))


GPT = GptConfig(num_blocks=2, hidden=32, num_heads=4, context=8)
STAGES = {
    "dense": lambda: nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32)),
    "attention": lambda: nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True),
    "first stage of the GPT": lambda: build_layers(GPT)[:2],
    "middle stage of the GPT": lambda: build_layers(GPT)[1:3],
    "last stage of the GPT": lambda: build_layers(GPT)[2:],
}


@pytest.mark.parametrize("name", STAGES)
def test_two_halves_run_little_more_than_one_backward(name):
    # Operators are counted, not timed: what a loaded machine shows of the time says nothing about the halves.
    stage = TorchStage(STAGES[name]())
    is_first = name.startswith("first")
    x = torch.randint(0, 256, (2, 8)) if is_first else torch.randn(2, 8, 32)
    counts, gradients = [], []
    for backward in (in_halves, lambda stage, tape, grads: stage.backward(tape, grads)):
        output, tape = stage.forward((x,), {}, needs_grad=[not is_first], record=True)
        with Operators() as operators:
            backward(stage, tape, [torch.ones_like(output)])
        counts.append(operators.counts)
        gradients.append(stage.gradients())
        stage.set_gradients([None] * len(gradients[0]))
    halves, whole = counts
    heavy = [kind for kind in whole if kind in ("aten.mm", "aten.bmm") or "scaled_dot_product" in kind]
    assert heavy
    for kind in heavy:
        assert halves[kind] == whole[kind], "the matrix products and the attention run once"
    assert halves.total() <= 1.25 * whole.total()
    for split, together in zip(*gradients, strict=True):
        torch.testing.assert_close(split, together)


def test_backwards_may_come_in_any_order():
    stage = TorchStage(nn.Linear(3, 3))
    inputs = [torch.randn(2, 3) for _ in range(4)]
    tapes = [stage.forward((x,), {}, needs_grad=[False], record=True)[1] for x in inputs]
    for index in (2, 0, 3, 1):
        in_order = stage.backward if index % 2 else lambda tape, grads: in_halves_of(stage, tape, grads)
        in_order(tapes[index], [torch.ones(2, 3)])
    expected = sum(torch.ones(2, 3).T @ x for x in inputs)
    torch.testing.assert_close(stage.function.weight.grad, expected)


def in_halves_of(stage, tape, grads):
    stage.backward_input(tape, grads)
    stage.backward_weight(tape)


def test_a_seed_gives_the_same_dropout_and_leaves_the_generator():
    stage = TorchStage(nn.Dropout(0.5))
    x = torch.ones(64)
    state = torch.get_rng_state()
    first, second, other = (
        stage.forward((x,), {}, needs_grad=[False], record=False, seed=seed)[0] for seed in (5, 5, 6)
    )
    assert torch.equal(first, second) and not torch.equal(first, other)
    assert torch.equal(state, torch.get_rng_state())


def test_a_recompute_counts_in_no_buffer():
    stage = TorchStage(nn.BatchNorm1d(3))
    for keep, count in ((False, 1), (True, 1), (False, 2)):
        stage.forward((torch.randn(4, 3),), {}, needs_grad=[False], record=True, keep_buffers=keep)
        assert stage.function.num_batches_tracked.item() == count
