"""What crosses stage boundaries, on 2 ranks: one stage each, 1F1B unless a case says otherwise."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from hyper_pp.torch_npu import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

CPU = torch.device("cpu")


class Scale(nn.Module):
    """factor · x, with a one-element parameter."""

    def __init__(self, factor):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor([float(factor)]))

    def forward(self, x):
        return self.factor * x


class Call(nn.Module):
    """A module around a function of (module, *inputs)."""

    def __init__(self, function, factor=1.0):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor([float(factor)]))
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)


def rank():
    return dist.get_rank()


def two_stages(first, second, m, loss_fn, schedule=Schedule1F1B, **options):
    """Return this rank's module and the schedule of a pipeline of two stages."""
    module = (first, second)[rank()]
    stage = PipelineStage(module, rank(), 2, CPU)
    return module, schedule([stage] if schedule is ScheduleInterleaved1F1B else stage, m, loss_fn, **options)


def step(schedule, x=None, target=None, **options):
    """Run a step with the arguments where they belong; return the output and the losses."""
    losses = []
    args = () if x is None or rank() else (x,)
    if rank() == 1:
        options["target"] = target
    return schedule.step(*args, losses=losses, **options), losses


def only_the_float_with_a_parameter_behind_it_gets_a_gradient():
    first = Call(lambda self, x: (self.factor * x, torch.ones(len(x), dtype=torch.int32), torch.tensor(0.5)), 2)
    second = Call(lambda self, h, mask, rope: self.factor * h * rope * (mask == 1).unsqueeze(-1), 3)
    module, schedule = two_stages(first, second, 4, lambda y, _: y.mean())
    seen = []
    transport = schedule.engine.transport  # on rank 1, what goes out is gradients
    transport.send = lambda tensors, peer, send=transport.send: (seen.append(len(tensors)), send(tensors, peer))[1]
    _, losses = step(schedule, torch.ones(8, 1), torch.zeros(8))
    if rank() == 0:
        assert module.factor.grad.tolist() == [1.5]
    else:
        assert [loss.item() for loss in losses] == [3.0] * 4
        assert module.factor.grad.tolist() == [1.0]
        assert seen == [1] * 4


def integers_go_in_and_across():
    torch.manual_seed(3)
    table = nn.Embedding(16, 4)
    first = Call(lambda self, ids: (table(ids), torch.arange(ids.shape[1])))
    first.table = table
    second = Call(lambda self, h, positions: self.factor * h * positions.unsqueeze(-1))
    module, schedule = two_stages(first, second, 4, lambda y, _: y.mean())
    ids = torch.arange(128).reshape(8, 16) % 16
    step(schedule, ids, torch.zeros(8))
    if rank() == 0:
        grad = module.table.weight.grad.clone()
        module.table.weight.grad = None
        (table(ids) * torch.arange(16).unsqueeze(-1)).mean().backward()
        torch.testing.assert_close(grad, module.table.weight.grad)


def none_and_numbers_are_kept():
    first = Call(lambda self, x: (self.factor * x, None, 7), 2)

    def last(self, h, nothing, seven):
        assert nothing is None and seven == 7
        return {"logits": self.factor * h, "aux": None}

    module, schedule = two_stages(first, Call(last, 3), 2, lambda y, _: y["logits"].mean())
    output, _ = step(schedule, torch.ones(4, 1), torch.zeros(4))
    assert module.factor.grad.tolist() == [[3.0], [2.0]][rank()]
    if rank() == 1:
        assert output["aux"] is None and output["logits"].tolist() == [[6.0]] * 4
        assert not output["logits"].requires_grad


def every_dtype_and_size_arrives_as_it_was():
    torch.manual_seed(5)
    sent = {
        "complex": torch.randn(16, 8, dtype=torch.complex64),
        "bool": torch.randn(2, 1, 8, 8) > 0,
        "int64": torch.tensor([2**40, -1]),
        "float64": torch.tensor([1 / 3], dtype=torch.float64),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "half": torch.randn(3).half(),
        "bfloat": torch.randn(3).bfloat16(),
        "conjugate": torch.randn(4, dtype=torch.complex64).conj(),
    }

    def last(self, x, extra):
        for name, tensor in sent.items():
            assert extra[name].dtype == tensor.dtype, name
            assert torch.equal(extra[name], tensor), name
        return self.factor * x

    module, schedule = two_stages(Call(lambda self, x: (self.factor * x, sent)), Call(last), 2, lambda y, _: y.mean())
    step(schedule, torch.ones(4, 1), torch.zeros(4))
    assert module.factor.grad.tolist() == [1.0]


def complex_activations_get_gradients():
    first = Call(lambda self, x: torch.complex(self.factor * x, x), 2)
    second = Call(lambda self, z: (self.factor * z).abs().square(), 1)
    module, schedule = two_stages(first, second, 2, lambda y, _: y.mean())
    step(schedule, torch.ones(4, 1), torch.zeros(4))
    # mean of b²(a²+1): 2ab² = 4 and 2b(a²+1) = 10
    torch.testing.assert_close(module.factor.grad, torch.tensor([[4.0], [10.0]][rank()]))


def what_is_not_contiguous_arrives_right():
    for take in (lambda x: x.T, lambda x: x.T[:, 1:]):
        first = Call(lambda self, x, take=take: take(self.factor * torch.arange(16.0).reshape(4, 4) + 0 * x.sum()))
        rows = []

        def last(self, h, rows=rows):
            rows.append(h.detach().clone())
            # The gradient that goes back is an expanded or transposed view.
            return (self.factor * h).T.sum().reshape(1)

        module, schedule = two_stages(first, Call(last), 1, lambda y, _: y.sum())
        step(schedule, torch.ones(1, 1), torch.zeros(1))
        expected = take(torch.arange(16.0).reshape(4, 4))
        if rank() == 1:
            assert torch.equal(rows[0], expected)
            assert rows[0][0].tolist() == [0, 4, 8, 12] or rows[0][0].tolist() == [4, 8, 12]
        assert module.factor.grad.item() == expected.sum().item()


class Shift(Scale):
    def forward(self, x, shift=None):
        return self.factor * (x + shift)


class Gain(Scale):
    def forward(self, x, *, gain):
        return self.factor * x * gain


def each_rank_gives_keywords_to_its_own_stages():
    _, schedule = two_stages(Shift(1), Gain(1), 4, lambda y, _: y.mean(), ScheduleGPipe)
    keywords = {"shift": torch.full((8, 1), 2.0)} if rank() == 0 else {"gain": torch.full((8, 1), 5.0)}
    output, _ = step(schedule, torch.ones(8, 1), torch.zeros(8), **keywords)
    if rank() == 1:
        assert output.tolist() == [[15.0]] * 8
    try:
        step(schedule, torch.ones(8, 1), torch.zeros(8), nonsense=torch.ones(8))
    except TypeError as error:
        assert f"no stage of this rank takes the keyword nonsense (its stages: {rank()})" in str(error)
    else:
        raise AssertionError("no error")


def a_traced_model_hands_on_what_later_stages_need():
    from hyper_pp.torch_npu import build_stage, pipe_split, pipeline

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x, y):
            h = torch.relu(self.first(x))
            pipe_split()
            return self.second(h) + y + x

    torch.manual_seed(2)
    model = Model()
    x, y, target = torch.randn(8, 4), torch.randn(8, 4), torch.randn(8, 4)
    loss_fn = nn.functional.mse_loss
    whole = model(x, y)
    loss_fn(whole, target).backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    pipe = pipeline(model, (x[:2],), {"y": y[:2]})
    for stage in (pipe.build_stage(rank(), CPU), build_stage(pipe.get_stage_module(rank()), rank(), pipe.info(), CPU)):
        pipe.get_stage_module(rank()).zero_grad()
        schedule = ScheduleGPipe(stage, 4, loss_fn)
        output, losses = step(schedule, x, target, **({"y": y} if rank() == 0 else {}))
        for name, parameter in pipe.get_stage_module(rank()).named_parameters():
            torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-5, atol=1e-6)
        if rank() == 1:
            torch.testing.assert_close(output, whole.detach())
            torch.testing.assert_close(sum(losses) / 4, loss_fn(whole, target).detach())


def an_input_that_requires_a_gradient_gets_it():
    class Checkpointed(nn.Linear):  # in its older form, which asks for an input that requires a gradient
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=True)

    for make in (ScheduleGPipe, Schedule1F1B, ScheduleInterleavedZeroBubble):
        torch.manual_seed(4)
        first, second = Checkpointed(3, 3), nn.Linear(3, 3)
        reference = copy.deepcopy(nn.Sequential(first, second))
        x, target = torch.randn(6, 3), torch.randn(6, 3)
        given, twin = x.clone().requires_grad_(), x.clone().requires_grad_()
        stage = PipelineStage((first, second)[rank()], rank(), 2, CPU)
        schedule = make([stage] if make is ScheduleInterleavedZeroBubble else stage, 3, nn.MSELoss())
        step(schedule, given, target)
        nn.functional.mse_loss(reference(twin), target).backward()
        for parameter, other in zip(stage.submod.parameters(), reference[rank()].parameters()):
            torch.testing.assert_close(parameter.grad, other.grad)
        if rank() == 0:
            torch.testing.assert_close(given.grad, twin.grad)


CASES = [
    only_the_float_with_a_parameter_behind_it_gets_a_gradient,
    integers_go_in_and_across,
    none_and_numbers_are_kept,
    every_dtype_and_size_arrives_as_it_was,
    complex_activations_get_gradients,
    what_is_not_contiguous_arrives_right,
    each_rank_gives_keywords_to_its_own_stages,
    a_traced_model_hands_on_what_later_stages_need,
    an_input_that_requires_a_gradient_gets_it,
]
