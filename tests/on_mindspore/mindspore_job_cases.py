"""Run under msrun: what crosses stage boundaries, who passes what, and how state and randomness behave."""

import traceback

import numpy as np
from case_list import CASES, case, close
from msrun_launch import report, settle


def main():
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    ms.runtime.launch_blocking()
    init()
    for name, function in CASES.items():
        try:
            function()
            report(name, "ok")
        except Exception:
            report(name, traceback.format_exc())
            raise


if __name__ == "__main__":
    settle()

import mindspore as ms  # noqa: E402 - after the core was chosen
from mindspore import Parameter, Tensor, nn, ops  # noqa: E402 - likewise
from mindspore.communication import get_group_size, get_rank, init  # noqa: E402 - likewise
from small_models import batch, gradients_by_name, mean_square, one_process, residual_layers  # noqa: E402

from hyper_pp.mindspore import PipelineCell  # noqa: E402 - likewise


class Scale(nn.Cell):
    """factor · x; whatever else comes in goes out again."""

    def __init__(self, factor, extra=()):
        super().__init__()
        self.factor = Parameter(Tensor(np.array([factor], np.float32)), name="factor")
        self.extra = extra

    def construct(self, x, *others):
        output = (x * self.factor, *others, *self.extra)
        return output if len(output) > 1 else output[0]


class MultiplyAll(nn.Cell):
    """factor · h · rope, where the mask is."""

    def __init__(self, factor):
        super().__init__()
        self.factor = Parameter(Tensor(np.array([factor], np.float32)), name="factor")

    def construct(self, h, mask, rope):
        assert str(mask.dtype) == "Int32"
        return self.factor * h * rope


def ones(size):
    return Tensor(np.ones((size, 1), np.float32))


def two_stages(first, second, loss, **options):
    """One layer per stage on two ranks; ranks beyond that hold layers of factor 1."""
    rest = [Scale(1.0) for _ in range(get_group_size() - 2)]
    return PipelineCell([first, second, *rest], loss, **{"micro_size": 4, "schedule": "1f1b", **options})


@case
def integers_and_constants_cross_and_one_gradient_travels_back():
    extra = (Tensor(np.ones((1,), np.int32)), Tensor(np.float32(0.5)))
    net = two_stages(Scale(2.0, extra), MultiplyAll(3.0), lambda output, target: output.mean())
    close(net(ones(4), ones(4)), 3.0)
    expected = {"0.factor": 1.5, "1.factor": 1.0}
    for name, gradient in gradients_by_name(net).items():
        if name in expected:
            close(gradient, [expected[name]])


@case
def token_ids_enter_and_positions_cross_without_gradient():
    class Embed(nn.Cell):
        def __init__(self):
            super().__init__()
            self.table = Parameter(Tensor(np.arange(20, dtype=np.float32).reshape(10, 2)), name="table")

        def construct(self, ids):
            return ops.gather(self.table, ids, 0), ids * 2

    class AddPositions(nn.Cell):
        def construct(self, h, positions):
            assert str(positions.dtype) == "Int64"
            return h + positions.astype(ms.float32).expand_dims(-1)

    ids = Tensor(np.random.RandomState(0).randint(0, 10, (8, 16)), ms.int64)
    net = two_stages(Embed(), AddPositions(), lambda output, target: output.mean())
    table = np.arange(20, dtype=np.float32).reshape(10, 2)
    close(net(ids, ids), (table[ids.asnumpy()] + 2 * ids.asnumpy()[..., None]).mean())
    for gradient in [gradient for name, gradient in gradients_by_name(net).items() if name == "0.table"]:
        counts = np.bincount(ids.asnumpy().ravel(), minlength=10)[:, None] / (8 * 16 * 2)
        close(gradient, np.broadcast_to(counts, (10, 2)))


@case
def none_numbers_and_dictionaries_are_kept():
    class Last(nn.Cell):
        def construct(self, h, nothing, number):
            assert nothing is None
            return {"logits": h * number, "aux": None}

    net = PipelineCell(
        [*(Scale(1.0) for _ in range(get_group_size() - 2)), Scale(2.0, (None, 7)), Last()],
        lambda output, target: output["logits"].mean(),
        micro_size=4,
        schedule="1f1b",
    )
    loss, outputs = net.eval_step(ones(5), ones(5))
    close(loss, 14.0)
    assert (outputs is None) == (get_rank() != get_group_size() - 1)
    if outputs is not None:
        assert outputs["aux"] is None
        close(outputs["logits"], np.full((5, 1), 14.0))


@case
def every_kind_of_tensor_arrives_as_it_was():
    numbers = np.random.RandomState(3)
    sent = [
        numbers.randn(2, 3) > 0,
        (numbers.randn(16, 8) + 1j * numbers.randn(16, 8)).astype(np.complex64),
        np.arange(3, dtype=np.int64),
        numbers.randn(4),
        np.float32(2.5),
        np.zeros((0, 3), np.float32),
        np.arange(16.0, dtype=np.float32).reshape(4, 4),
    ]
    got = []

    class First(Scale):
        def construct(self, x):
            tensors = [Tensor(value) for value in sent[:-1]]
            turned = ops.transpose(Tensor(sent[-1]), (1, 0))
            return (x * self.factor, *tensors, turned, turned[:, 1:])

    class Second(nn.Cell):
        def construct(self, x, *tensors):
            got[:] = tensors
            return x

    net = two_stages(First(2.0), Second(), lambda output, target: output.mean())
    net(ones(4), ones(4))
    if get_rank() == 1:
        expected = [*sent[:-1], sent[-1].T, sent[-1].T[:, 1:]]
        assert got[-2].asnumpy()[0].tolist() == [0, 4, 8, 12]
        for tensor, value in zip(got, expected, strict=True):
            np.testing.assert_array_equal(tensor.asnumpy(), value)
            assert tensor.asnumpy().dtype == np.asarray(value).dtype


@case
def a_gradient_that_is_not_contiguous_travels():
    class Turn(nn.Cell):
        def construct(self, x):
            return ops.transpose(x, (1, 0)) * Tensor(np.arange(1.0, 4.0, dtype=np.float32).reshape(3, 1))

    net = two_stages(Scale(2.0), Turn(), lambda output, target: output.sum(), micro_size=1)
    net(Tensor(np.ones((2, 3), np.float32)), ones(2))
    for gradient in [gradient for name, gradient in gradients_by_name(net).items() if name == "0.factor"]:
        close(gradient, [12.0])


@case
def two_steps_give_twice_the_gradient_and_nothing_rescales_it():
    net = two_stages(Scale(2.0), Scale(3.0), lambda output, target: output.mean(), micro_size=8)
    for _ in range(2):
        close(net(ones(8), ones(8)), 6.0)
    expected = {"0.factor": 6.0, "1.factor": 4.0}
    for name, gradient in gradients_by_name(net).items():
        close(gradient, [expected.get(name, 12.0)])


@case
def shapes_may_change_from_step_to_step_where_they_are_dynamic():
    net = two_stages(Scale(2.0), Scale(3.0), lambda output, target: output.mean(), dynamic_shapes=True)
    for length in (128, 129, 128):
        x = Tensor(np.ones((4, length), np.float32))
        close(net(x, x), 6.0)
    close(net.eval_step(ones(8), ones(8))[0], 6.0)


@case
def each_rank_passes_only_what_it_owns():
    count = get_group_size()
    inputs, target = batch(11)
    for in_block, options in ((1, {}), (0, {}), (1, {"overlap_p2p": True})):
        layers = residual_layers(count + in_block)
        net = PipelineCell(
            layers,
            mean_square,
            micro_size=5,
            schedule="mpipe",
            num_transpose_layers=in_block,
            sharded_inputs=True,
            **options,
        )
        sizes = [3, 2, 2, 2, 2]
        starts = np.cumsum([0, *sizes])
        owned = [m for m in range(5) if net.plan.transpose.owners[m] == get_rank()]
        parts = [inputs.asnumpy()[starts[m] : starts[m + 1]] for m in owned]
        mine = Tensor(np.concatenate(parts)) if parts else None
        loss = net(mine, target if get_rank() == count - 1 else None)
        expected_loss, expected = one_process(count + in_block, inputs, target)
        close(loss, expected_loss)
        for name, gradient in gradients_by_name(net).items():
            close(gradient, expected[int(name.split(".")[0])])


@case
def a_preprocess_cell_takes_several_inputs_and_keywords_and_returns_several_outputs():
    class Tower(nn.Cell):
        def __init__(self):
            super().__init__()
            self.weight = Parameter(Tensor(np.full(1, 0.5, np.float32)), name="weight")

        def construct(self, x, ids, shift=None):
            return x * self.weight + shift, x * 2.0, ids

    class Join(nn.Cell):
        def __init__(self):
            super().__init__()
            self.factor = Parameter(Tensor(np.array([3.0], np.float32)), name="factor")

        def construct(self, a, b, ids):
            return a * self.factor + b * ids.astype(ms.float32)

    x, ids = np.random.RandomState(1).randn(9, 2).astype(np.float32), np.arange(9, dtype=np.int32).reshape(9, 1)
    shift = np.linspace(0, 1, 9, dtype=np.float32).reshape(9, 1)
    expected_loss = ((x * 0.5 + shift) * 3 + 2 * x * ids).mean()
    for frozen in (False, True):
        tower = Tower()
        tower.weight.requires_grad = not frozen
        rest = [Scale(1.0) for _ in range(get_group_size() - 1)]
        net = PipelineCell(
            [Join(), *rest], lambda output, target: output.mean(), micro_size=4, schedule="mpipe", preprocess=tower
        )
        loss = net(Tensor(x), Tensor(ids), Tensor(x), shift=Tensor(shift))
        close(loss, expected_loss)
        found = gradients_by_name(net)
        assert ("preprocess.weight" in found) == (get_rank() == 0 and not frozen)
        expected = {"preprocess.weight": 3 * x.mean(), "0.factor": (x * 0.5 + shift).mean()}
        for name in set(expected) & set(found):
            close(found[name], [expected[name]])


class Counting(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(1, np.float32)), name="weight")
        self.count = Parameter(Tensor(np.zeros(1, np.float32)), name="count", requires_grad=False)

    def construct(self, x):
        self.count.assign_value(self.count + 1)
        return x * self.weight


@case
def a_buffer_counts_each_forward_once_whatever_is_recomputed():
    layers = [Counting() for _ in range(get_group_size() + 1)]
    net = PipelineCell(
        layers, lambda output, target: output.mean(), micro_size=4, schedule="mpipe", num_transpose_layers=1
    )
    net(ones(4), ones(4))
    close(layers[get_rank() + 1].count, [4.0])
    own = 1 + 4 - min(4, get_group_size())  # micro-batch 0, and those beyond the transposed ones
    if get_rank() == 0:
        close(layers[0].count, [float(own)])


class AddsItsCount(Counting):
    """Counts its forwards while it trains; in evaluation, adds the count."""

    def construct(self, x):
        if self.training:
            return super().construct(x)
        return x * self.weight + self.count


@case
def replicas_of_the_block_evaluate_with_the_buffers_of_rank_0():
    count, block = get_group_size(), AddsItsCount()
    layers = [Scale(1.0) for _ in range(count)]
    net = PipelineCell(layers, lambda output, target: output.mean(), micro_size=4, schedule="mpipe", preprocess=block)
    net.set_train(True)
    net(ones(4), ones(4))
    expected = 1 + {2: 3, 4: 1}[count]  # rank 0 runs micro-batch 0 and those beyond the transposed ones
    loss, outputs = net.eval_step(ones(4), ones(4))
    close(loss, expected)
    close(block.count, [expected - 1.0])
    if outputs is not None:
        close(outputs, np.full((4, 1), expected))


@case
def evaluation_between_steps_changes_nothing():
    inputs, target = batch(9)
    net = PipelineCell(residual_layers(get_group_size() + 1), mean_square, micro_size=3, schedule="mpipe")
    expected_loss, expected = one_process(get_group_size() + 1, inputs, target)
    close(net.eval_step(inputs, target)[0], expected_loss)
    close(net(inputs, target), expected_loss)
    close(net.eval_step(inputs, target)[0], expected_loss)
    close(net(inputs, target), expected_loss)
    for name, gradient in gradients_by_name(net).items():
        close(gradient, 2 * expected[int(name.split(".")[0])])


import mindspore_agreement_cases  # noqa: E402, F401 - its cases join the list
import mindspore_dropout_cases  # noqa: E402, F401 - likewise
import mindspore_sharded_cases  # noqa: E402, F401 - likewise

if __name__ == "__main__":
    main()
