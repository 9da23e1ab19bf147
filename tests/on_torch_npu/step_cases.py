"""Losses, weights, evaluation, state and plans, on 2 ranks."""

import copy
import gc
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from boundary_cases import CPU, Call, Scale, rank, step, two_stages
from torch import nn
from torch.distributed.pipelining._utils import PipeliningMetadataError

from hyper_pp import PipelineError, PipelineShape, Plan
from hyper_pp.torch_npu import (
    PipelineStage,
    Schedule1F1B,
    ScheduleFromPlan,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleMPipeTranspose,
    TensorChunkSpec,
    get_pipeline_schedule,
    split_model,
)


def uneven_micro_batches_are_weighted_by_their_size():
    for schedule_class in (ScheduleGPipe, Schedule1F1B, ScheduleInterleaved1F1B):
        module, schedule = two_stages(Scale(1), Scale(1), 3, lambda y, t: (y.squeeze(-1) * t).mean(), schedule_class)
        target = torch.tensor([0.0] * 6 + [1.0] * 2)
        _, losses = step(schedule, torch.ones(8, 1), target)
        assert module.factor.grad.item() == 0.25
        if rank() == 1:
            assert [loss.item() for loss in losses] == [0, 0, 1], "the losses themselves are not weighted"


def a_batch_smaller_than_the_micro_batches_is_an_error():
    _, schedule = two_stages(Scale(1), Scale(1), 4, lambda y, _: y.mean())
    try:
        step(schedule, torch.ones(3, 1), torch.zeros(3))
    except ValueError as error:
        assert "a batch of 3 can't be split into 4 micro-batches" in str(error)
    else:
        raise AssertionError("no error")


def another_shape_or_dtype_is_an_error_of_torchs_type_and_the_step_can_be_called_again():
    module, schedule = two_stages(nn.Linear(1, 1, bias=False), Scale(3), 4, lambda y, _: y.mean())
    x, target = torch.ones(8, 1), torch.zeros(8)
    step(schedule, x, target)
    if rank() == 0:
        for wrong in (torch.ones(9, 1), x.int(), torch.ones(8, 1, dtype=torch.bfloat16)):
            try:
                schedule.step(wrong)
            except PipeliningMetadataError as error:
                assert isinstance(error, PipelineError) and isinstance(error, ValueError)
            else:
                raise AssertionError(f"no error: {wrong.dtype}{list(wrong.shape)}")
    before = next(module.parameters()).grad.clone()
    step(schedule, x, target)
    torch.testing.assert_close(next(module.parameters()).grad, 2 * before)


def products_have_the_gradients_of_products():
    module, schedule = two_stages(Scale(2), Scale(3), 8, lambda y, _: y.mean())
    step(schedule, torch.ones(8, 1), torch.zeros(8))
    assert module.factor.grad.item() == (3, 2)[rank()]


def a_summed_loss_is_not_scaled():
    module, schedule = two_stages(Scale(2), Scale(3), 4, lambda y, _: y.sum(), scale_grads=False)
    step(schedule, torch.ones(8, 1), torch.zeros(8))
    assert module.factor.grad.item() == 8 * (3, 2)[rank()]


def a_token_mean_is_exact_and_an_empty_micro_batch_adds_nothing():
    def loss_fn(y, target):
        valid = target[:, 1]
        return (y.squeeze(-1) * target[:, 0] * valid).sum() / valid.sum()

    # Micro-batch 0 has one valid token with loss 4, micro-batch 1 three with loss 0, micro-batch 2 none at all.
    target = torch.tensor([[4.0, 1], [0, 0], [0, 0], [0, 1], [0, 1], [0, 1], [1, 0], [1, 0], [1, 0]])
    module, schedule = two_stages(Scale(1), Scale(1), 3, loss_fn)
    schedule.configure(weight_fn=lambda t: t[:, 1].sum())
    step(schedule, torch.ones(9, 1), target)
    assert module.factor.grad.item() == 1.0


def half_precision_losses_keep_value_and_shape():
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        first, second = Scale(1).to(dtype), Scale(2.5).to(dtype)
        _, schedule = two_stages(first, second, 2, lambda y, _: y.mean())
        for run in (schedule.step, schedule.eval):
            losses = []
            run(*([torch.ones(4, 1, dtype=dtype)] if rank() == 0 else []), target=torch.zeros(4), losses=losses)
            if rank() == 1:
                assert [(loss.item(), loss.shape, loss.dtype) for loss in losses] == [(2.5, (), dtype)] * 2


def evaluation_leaves_nothing_behind():
    last = nn.Sequential(Scale(3), nn.Dropout(0.5), nn.BatchNorm1d(1))
    module, schedule = two_stages(Scale(2), last, 2, nn.MSELoss())
    x = torch.linspace(0, 1, 8).reshape(8, 1)
    state = [buffer.clone() for buffer in module.buffers()]
    random_state = torch.get_rng_state()
    output = schedule.eval(*([x] if rank() == 0 else []))
    assert (output is None) == (rank() == 0)
    assert torch.equal(random_state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(state, module.buffers()))
    assert all(parameter.grad is None for parameter in module.parameters())
    assert output is None or not output.requires_grad


def evaluation_between_training_steps_changes_no_gradient():
    module, schedule = two_stages(Scale(2), Scale(3), 2, nn.MSELoss())
    x, target = torch.ones(4, 1), torch.zeros(4, 1)
    grads = []
    for _ in range(2):
        losses = []
        schedule.eval(*([x] if rank() == 0 else []), target=target, losses=losses)
        assert [loss.item() for loss in losses] == [36.0] * (2 * rank())
        step(schedule, x, target)
        grads.append(module.factor.grad.item())
    assert grads[1] == 2 * grads[0] == 2 * (36, 24)[rank()]


def without_a_loss_function_only_forwards_run():
    module, schedule = two_stages(Scale(2), Scale(3), 2, None)
    output, losses = step(schedule, torch.ones(4, 1))
    assert losses == [] and module.factor.grad is None
    assert rank() == 0 or output.tolist() == [[6.0]] * 4


def a_schedule_may_run_forwards_only():
    from hyper_pp.torch_npu import _ScheduleForwardOnly

    _, schedule = two_stages(Scale(2), Scale(3), 4, None, _ScheduleForwardOnly)
    x = torch.ones(8, 1)
    for _ in range(3):  # messages of the user's own go in between
        output, _ = step(schedule, x)
        if rank() == 1:
            dist.send(output, 0)
        else:
            dist.recv(x, 1)
    assert rank() == 0 or output.tolist() == [[6.0**3]] * 8


def a_keyword_may_have_one_entry_per_micro_batch():
    class Add(Scale):
        def forward(self, x, extra=None):
            return self.factor * x if extra is None else self.factor * x + extra

    _, schedule = two_stages(Add(2), Add(3), 4, lambda y, _: y.sum(), ScheduleInterleaved1F1B)
    keywords = {"extra": torch.arange(4.0).unsqueeze(1)} if rank() == 0 else {}
    output, _ = step(schedule, torch.ones(8, 1), torch.zeros(8), **keywords)
    assert rank() == 0 or output.flatten().tolist() == [6, 6, 9, 9, 12, 12, 15, 15]


def no_tensor_is_left_in_a_reference_cycle():
    module, schedule = two_stages(nn.Linear(4, 4), nn.Linear(4, 4), 4, nn.MSELoss(), ScheduleInterleaved1F1B)
    x = torch.randn(8, 4)
    step(schedule, x, x)
    gc.collect()
    gc.disable()
    try:
        gc.set_debug(gc.DEBUG_SAVEALL)
        step(schedule, x, x)
        module.zero_grad()
        gc.collect()
        assert not [item for item in gc.garbage if issubclass(type(item), torch.Tensor)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def outputs_are_kept_only_when_asked_for():
    _, schedule = two_stages(Scale(2), Scale(3), 2, nn.MSELoss())
    assert step(schedule, torch.ones(4, 1), torch.zeros(4, 1), return_outputs=False)[0] is None


def loss_keywords_and_chunk_specs_reach_their_places():
    first = Call(lambda self, x, scale: self.factor * x.T * scale)
    module, schedule = two_stages(
        first,
        Scale(3),
        2,
        lambda y, t, *, gain: (y * gain).mean(),
        args_chunk_spec=(TensorChunkSpec(1), TensorChunkSpec(0)),
        output_merge_spec=TensorChunkSpec(0),
    )
    args = (torch.ones(1, 6), torch.full((6, 1), 2.0)) if rank() == 0 else ()
    target = {"target": torch.zeros(6)} if rank() == 1 else {}
    output = schedule.step(*args, **target, loss_kwargs={"gain": 10.0})
    assert module.factor.grad.item() == (60, 20)[rank()]
    assert rank() == 0 or output.shape == (6, 1)


def a_buffer_counts_each_micro_batch_once():
    class Count(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", torch.zeros(()))
            self.factor = nn.Parameter(torch.ones(1))

        def forward(self, x):
            self.n += 1
            return self.factor * x

    module, schedule = two_stages(Count(), Count(), 4, lambda y, _: y.mean())
    step(schedule, torch.ones(8, 1), torch.zeros(8))
    assert module.n.item() == 4
    for explicit in (False, True):
        block = Count()
        stage = PipelineStage(Count(), rank(), 2, CPU)
        mpipe = ScheduleMPipeTranspose([stage], 4, nn.MSELoss(), preprocess=block, explicit_backward=explicit)
        for _ in range(2):
            mpipe.step(torch.ones(8, 1), target=torch.zeros(8, 1))
        # Rank 0 owns micro-batches 0, 2 and 3; a recompute counts nowhere.
        assert stage.submod.n.item() == 8
        if rank() == 0:
            assert block.n.item() == 6
        mpipe.eval(torch.ones(8, 1))
        assert block.n.item() == 6, "replicas follow rank 0"


def dropout_is_the_same_in_a_recompute():
    found = []
    for explicit in (False, True):
        torch.manual_seed(9)
        block = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
        stage = PipelineStage(nn.Linear(4, 4), rank(), 2, CPU)
        torch.manual_seed(21)
        x = torch.randn(8, 4)
        schedule = ScheduleMPipeTranspose([stage], 4, nn.MSELoss(), preprocess=block, explicit_backward=explicit)
        losses = []
        schedule.step(x, target=torch.zeros(8, 4), losses=losses)
        grads = [p.grad for p in [*stage.submod.parameters(), *(block.parameters() if rank() == 0 else ())]]
        found.append((losses, grads))
    for a, b in zip(*found):
        assert all(torch.equal(left, right) for left, right in zip(a, b))
    if rank() == 1:
        assert len(set(map(float, found[0][0]))) == 4, "every micro-batch draws its own mask"


def shapes_may_change_where_that_was_asked_for():
    for schedule_class in (Schedule1F1B, ScheduleInterleaved1F1B):
        module, schedule = two_stages(Scale(2), Scale(3), 2, lambda y, _: y.mean(), schedule_class)
        schedule.configure(dynamic_shapes=True)
        for length in (128, 129, 128):
            step(schedule, torch.ones(4, length), torch.zeros(4))
        output = schedule.eval(*([torch.ones(8, 5)] if rank() == 0 else []))
        assert module.factor.grad.item() == 3 * (3, 2)[rank()]
        assert rank() == 0 or output.shape == (8, 5)


def a_plan_file_in_either_form_runs():
    torch.manual_seed(4)
    layers = [nn.Linear(4, 4) for _ in range(4)]
    x, target = torch.randn(6, 4), torch.randn(6, 4)
    reference = copy.deepcopy(nn.Sequential(*layers))
    nn.functional.mse_loss(reference(x), target).backward()
    plan = Plan.build("interleaved", 2, 2, 3)
    v_shape = PipelineShape(2, 2, 3, "v")
    gpipe_on_v = Plan.build("gpipe", 2, 2, 3, compute_only=True)
    orders = tuple(
        tuple(action._replace(stage=v_shape.stages_of(r)[action.stage // 2]) for action in order)
        for r, order in enumerate(gpipe_on_v.orders)
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        plan.save(path / "plan.json")
        plan.save(path / "plan.csv")
        plans = [plan, path / "plan.json", str(path / "plan.csv"), Plan("v", v_shape, orders, compute_only=True)]
        for item in plans:
            nn.Sequential(*layers).zero_grad()
            shape = v_shape if isinstance(item, Plan) and item.schedule == "v" else plan.shape
            stages = [PipelineStage(layers[i], i, 4, CPU) for i in shape.stages_of(rank())]
            schedule = ScheduleFromPlan(stages, item, nn.functional.mse_loss)
            schedule.step(x, target=target)
            for i in shape.stages_of(rank()):
                torch.testing.assert_close(layers[i].weight.grad, reference[i].weight.grad)


def a_model_is_cut_and_scheduled_in_one_call():
    torch.manual_seed(6)
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(5)])
    x, target = torch.randn(6, 4), torch.randn(6, 4)
    reference = copy.deepcopy(model)
    nn.functional.mse_loss(reference(x), target).backward()
    for mode, names in (("1f1b", ["012", "34"]), ("interleaved", [["01", "3"], ["2", "4"]])):
        model.zero_grad()
        schedule = get_pipeline_schedule(model, 3, nn.functional.mse_loss, mode)
        schedule.step(x, target=target)
        held = ["".join(name for name, _ in stage.submod.named_children()) for stage in schedule.stages]
        assert held == ([names[rank()]] if mode == "1f1b" else names[rank()])
        for stage in schedule.stages:
            for name, parameter in stage.submod.named_parameters():
                torch.testing.assert_close(parameter.grad, reference.get_parameter(name).grad)
    assert [len(part) for part in split_model(model, 2, 1, rank(), [1, 4])] == [(1, 4)[rank()]]


def a_delayed_weight_half_runs_after_each_backward():
    calls = []
    module = Scale(1)
    stage = PipelineStage(module, rank(), 2, CPU, dw_builder=lambda: lambda: calls.append(1))
    schedule = ScheduleGPipe(stage, 4, lambda y, _: y.mean())
    step(schedule, torch.ones(8, 1), torch.zeros(8))
    assert len(calls) == 4 and module.factor.grad.item() == 1.0


def gradients_are_added_to_the_tensor_that_is_there():
    module, schedule = two_stages(Scale(2), Scale(3), 2, lambda y, _: y.mean())
    module.factor.grad = grad = torch.tensor([10.0])
    step(schedule, torch.ones(4, 1), torch.zeros(4))
    assert module.factor.grad is grad and grad.item() == 10 + (3, 2)[rank()]


def large_and_small_activations_pass_each_other():
    for width in (2**8, 2**24):  # 1 KB and 64 MB
        module, schedule = two_stages(Scale(2), Scale(3), 2, lambda y, _: y.mean(), ScheduleInterleaved1F1B)
        x = torch.ones(2, width)
        step(schedule, x, torch.zeros(2), return_outputs=False)
        assert abs(module.factor.grad.item() - (3, 2)[rank()]) < 1e-2


def memory_stays_flat():
    module, schedule = two_stages(nn.Linear(64, 64), nn.Linear(64, 64), 4, nn.MSELoss())
    optimizer = torch.optim.SGD(module.parameters(), 1e-3)
    x = torch.randn(64, 64)

    def run(steps):
        for _ in range(steps):
            optimizer.zero_grad()
            step(schedule, x, x)
            optimizer.step()
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
        return resident, sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())

    resident, tensors = run(50)
    later, tensors_later = run(950)
    assert tensors_later == tensors
    assert later - resident < 4 * 2**20, f"{(later - resident) / 2**20:.1f} MiB more after 950 steps"


def the_transport_conforms():
    import protocol_conformance as conformance
    from torch_kit import KIT

    from hyper_pp.torch_npu.transport import TorchTransport

    transport = TorchTransport(None, CPU)
    transport.connect([1 - transport.rank])
    for case in conformance.TRANSPORT_CASES:
        dist.barrier()
        case(transport, KIT)


def a_block_of_many_tensors_travels_in_few_messages():
    from hyper_pp.torch_npu import transport as module

    def made():
        small = [torch.full((3,), float(i + 1)) for i in range(50)]
        dtypes = (torch.float64, torch.bfloat16, torch.complex64)
        others = [torch.full((2, 2), 2, dtype=dtype) for dtype in dtypes]
        # Not contiguous, empty, and larger than a bucket.
        return [*small, *others, torch.arange(6.0).view(2, 3).t(), torch.ones(0), torch.ones(2**23 + 1)]

    transport = module.TorchTransport(None, CPU)
    calls = []
    patched = {"broadcast": dist.broadcast, "reduce": dist.reduce}
    for name, function in patched.items():
        setattr(dist, name, lambda *a, name=name, f=function, **k: (calls.append((name, a[0].dtype)), f(*a, **k)))
    try:
        tensors = made() if rank() == 1 else [torch.zeros_like(tensor) for tensor in made()]
        places = [tensor.data_ptr() for tensor in tensors]
        transport.broadcast(tensors, 1)
        sums = transport.reduce([tensor for tensor in tensors if not tensor.is_complex()], 0)
    finally:
        for name, function in patched.items():
            setattr(dist, name, function)
    assert [tensor.data_ptr() for tensor in tensors] == places
    assert all(torch.equal(tensor, other) for tensor, other in zip(tensors, made()))
    kinds = [torch.float32, torch.float32, torch.float64, torch.bfloat16]
    sent = [torch.float32, torch.float32, torch.uint8, torch.bfloat16, torch.uint8]
    assert calls == [("broadcast", kind) for kind in sent] + [("reduce", kind) for kind in kinds]
    expected = [tensor * 2 for tensor in made() if not tensor.is_complex()]
    assert rank() == 1 or all(torch.equal(tensor, other) for tensor, other in zip(sums, expected))
    assert all(torch.equal(tensor, other) for tensor, other in zip(tensors, made())), "what was summed is as it was"


CASES = [case for case in list(globals().values()) if callable(case) and getattr(case, "__module__", "") == __name__]
