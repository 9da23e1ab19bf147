"""Bad input to PipelineCell: each a clear error before anything is sent. One rank, no msrun."""

import json
import re

import pytest

ms = pytest.importorskip("mindspore")

import numpy as np  # noqa: E402 - after the framework is known to be there
from mindspore import Parameter, Tensor, nn, ops  # noqa: E402 - likewise
from small_models import FEATURES, Residual, batch, mean_square, one_process, residual_layers  # noqa: E402 - likewise

from hyper_pp import PipelineError, Plan, PlanFormatError, ScheduleError  # noqa: E402 - likewise
from hyper_pp.mindspore import PipelineCell, PipelineTrainOneStepCell, autograd  # noqa: E402 - likewise


@pytest.fixture(autouse=True)
def pynative():
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")


def pipeline(layers=None, loss=mean_square, **options):
    options = {"micro_size": 2, "schedule": "gpipe", **options}
    return PipelineCell(residual_layers(4) if layers is None else layers, loss, **options)


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"micro_size": 0}, ValueError, r"micro_size must be at least 1 \(got 0\)"),
        ({"micro_size": True}, TypeError, r"micro_size must be an int \(got True\)"),
        ({"micro_size": 2.0}, TypeError, r"micro_size must be an int \(got 2.0\)"),
        ({"num_chunks": 0}, ValueError, r"num_chunks must be at least 1 \(got 0\)"),
        ({"num_chunks": 5}, ValueError, r"more stages than layers \(stages: 5, layers: 4\)"),
        ({"num_transpose_layers": -1}, ValueError, r"num_transpose_layers must be at least 0 \(got -1\)"),
        ({"num_transpose_layers": True}, TypeError, r"num_transpose_layers must be an int \(got True\)"),
        ({"num_transpose_layers": 1.0}, TypeError, r"num_transpose_layers must be an int \(got 1.0\)"),
        ({"num_transpose_layers": 1}, ValueError, "schedule gpipe has no preprocess block"),
        (
            {"schedule": "mpipe", "num_transpose_layers": 4},
            ValueError,
            r"at most 3 with 4 layers and 1 stages \(got 4\)",
        ),
        ({"partition": [2, 2]}, ValueError, r"one entry per stage .* got 2 entries with sum 4"),
        ({"partition": [5]}, ValueError, r"layers: 4; got 1 entries with sum 5"),
        ({"num_chunks": 2, "partition": [4, 0]}, ValueError, "every entry of partition must be at least 1"),
        ({"schedule": "2f2b"}, ValueError, "unknown schedule '2f2b'"),
        ({"schedule": "1f1b", "num_chunks": 2}, ValueError, "1f1b takes num_chunks=1"),
        ({"schedule": "zbv"}, ValueError, r"zbv takes num_chunks=2 \(got 1\)"),
        ({"schedule": "mpipe", "transpose_options": {"speed": 1}}, ValueError, "mpipe has no option speed"),
        ({"transpose_options": {"frozen": True}}, ValueError, "gpipe has no option frozen"),
        ({"layout": "x"}, ValueError, 'layout must be "pp" or "dp"'),
        ({"data_parallel": 2}, ValueError, r"data_parallel must be 1.* \(got 2\)"),
        ({"weight_fn": 3}, TypeError, "weight_fn must be a function"),
        ({"preprocess": "tower"}, TypeError, r"preprocess must be a Cell \(got str\)"),
        ({"group": [1]}, ValueError, "group must hold this process's global rank 0"),
        ({"schedule": Plan.build("1f1b", 2, 1, 2)}, ValueError, "the plan is for P=2 V=1 M=2, the job has P=1 V=1 M=2"),
        ({"schedule": Plan.build("gpipe", 1, 1, 3)}, ValueError, "the plan is for P=1 V=1 M=3"),
    ],
)
def test_a_bad_argument_is_named_with_its_value(options, error, message):
    with pytest.raises(error, match=message):
        pipeline(**options)


def test_a_loss_function_must_be_callable():
    with pytest.raises(TypeError, match="loss_fn must be callable"):
        pipeline(loss=3)


@pytest.mark.parametrize("network", [nn.Dense(2, 2), 7, [nn.Dense(2, 2), "layer"]])
def test_a_network_must_be_layers_or_a_function(network):
    with pytest.raises(TypeError, match="must be a"):
        PipelineCell(network, mean_square, micro_size=2)


def test_a_block_of_layers_and_a_preprocess_cell_contradict_each_other():
    with pytest.raises(ValueError, match="either num_transpose_layers or preprocess"):
        pipeline(schedule="mpipe", num_transpose_layers=1, preprocess=Residual(9))


def test_a_function_of_stages_has_no_layers_to_take_or_to_count():
    with pytest.raises(ValueError, match="num_transpose_layers counts layers, but network is a function"):
        pipeline(Residual, schedule="mpipe", num_transpose_layers=1)
    with pytest.raises(ValueError, match="partition counts layers, but network is a function"):
        pipeline(Residual, partition=[1])
    with pytest.raises(TypeError, match=r"network\(0\) must return a Cell \(got int\)"):
        pipeline(lambda stage: stage)


def test_a_plan_file_must_be_whole_and_of_the_jobs_shape(tmp_path):
    path = tmp_path / "plan.json"
    Plan.build("gpipe", 1, 1, 3).save(path)
    with pytest.raises(ValueError, match=r"plan.json is for P=1 V=1 M=3, the job has P=1 V=1 M=2"):
        pipeline(schedule=path)
    path.write_text(path.read_text()[:-20])
    with pytest.raises(PlanFormatError, match=r"plan.json: not a complete JSON file"):
        pipeline(schedule=str(path))


@pytest.mark.parametrize(
    "edit, message",
    [
        (lambda order: order.remove("0F1"), "0F1 is missing in rank 0's order"),
        (lambda order: order.append("0F1"), "0F1 is twice in rank 0's order"),
        (lambda order: order.insert(0, order.pop(2)), "0B0 comes before 0F0, which it needs"),
    ],
)
def test_a_plan_broken_by_hand_is_refused(tmp_path, edit, message):
    path = tmp_path / "plan.json"
    Plan.build("gpipe", 1, 1, 2).save(path)
    data = json.loads(path.read_text())
    edit(data["orders"][0])
    path.write_text(json.dumps(data))
    with pytest.raises(ScheduleError, match=message):
        pipeline(schedule=path)


def test_a_batch_smaller_than_the_number_of_micro_batches_is_an_error_naming_both():
    net = pipeline(micro_size=4)
    with pytest.raises(ValueError, match="a batch of 3 can't be split into 4 micro-batches"):
        net(*batch(3))


def test_inputs_and_target_must_agree_on_the_batch_size():
    inputs, target = batch(4)
    with pytest.raises(ValueError, match="inputs and target disagree on the batch size: 4 and 3"):
        pipeline()(inputs, target[:3])


def test_a_step_takes_inputs_and_a_target():
    with pytest.raises(TypeError, match=r"net\(\*inputs, target\) \(got 1 arguments\)"):
        pipeline()(batch(4)[0])


def test_a_loss_that_is_no_scalar_names_its_shape_and_keeps_earlier_gradients():
    scalar = [True]
    net = pipeline(loss=lambda output, target: mean_square(output, target) if scalar[0] else output - target)
    net(*batch(4))
    before = [gradient.asnumpy() for gradient in net.gradients()]
    scalar[0] = False
    with pytest.raises(PipelineError, match=r"rank 0: 0F0 \(.* step 1\) failed: the loss must be a scalar tensor"):
        net(*batch(4))
    for one, other in zip(before, net.gradients()):
        np.testing.assert_array_equal(one, other.asnumpy())


def test_a_weight_function_must_give_finite_numbers():
    with pytest.raises(ValueError, match="weight_fn must return a finite number"):
        pipeline(weight_fn=lambda target: float("nan"))(*batch(4))


def test_a_frozen_plan_for_a_block_that_trains_is_an_error():
    with pytest.raises(
        ValueError, match="the plan's preprocess block is frozen, but the block has trainable parameters"
    ):
        pipeline(schedule="mpipe", num_transpose_layers=1, transpose_options={"frozen": True})


def test_graph_mode_is_refused_with_the_fix():
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        with pytest.raises(RuntimeError, match="a pipeline needs PyNative mode"):
            pipeline()
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)


def test_a_mindspore_that_is_too_old_is_named(monkeypatch):
    autograd._api.cache_clear()
    monkeypatch.setattr(ms, "__version__", "2.7.1")
    try:
        with pytest.raises(RuntimeError, match=r"hyper_pp needs MindSpore 2.8 or newer \(found 2.7.1\)"):
            pipeline()
    finally:
        autograd._api.cache_clear()


def test_the_optimizer_must_be_of_this_ranks_parameters():
    net = pipeline()
    with pytest.raises(ValueError, match="the optimizer must be made of network"):
        PipelineTrainOneStepCell(net, nn.SGD(net.trainable_params()[1:], 0.1))
    with pytest.raises(ValueError, match="left out"):
        PipelineTrainOneStepCell(net, None)
    with pytest.raises(TypeError, match="network must be a PipelineCell"):
        PipelineTrainOneStepCell(nn.Dense(2, 2), None)


# -- what must work on one rank -----------------------------------------------------------------------------------


def test_names_are_those_of_the_whole_model():
    class Named(nn.Cell):
        def __init__(self):
            super().__init__()
            self.body = nn.SequentialCell(residual_layers(3))

    def names(net):
        return [parameter.name for parameter in net.trainable_params()]

    assert names(pipeline(residual_layers(3))) == ["0.weight", "1.weight", "2.weight"]
    assert names(pipeline(Named().body)) == ["body.0.weight", "body.1.weight", "body.2.weight"]
    assert names(pipeline(Residual, num_chunks=2)) == ["0.weight", "1.weight"]
    assert names(pipeline(schedule="mpipe", preprocess=Residual(9)))[0] == "preprocess.weight"
    assert names(pipeline(residual_layers(1), loss=ScaledLoss())) == ["0.weight", "loss_fn.factor"]


class ScaledLoss(nn.Cell):
    """A loss with a parameter."""

    def __init__(self):
        super().__init__()
        self.factor = Parameter(Tensor(2.0, ms.float32), name="factor")

    def construct(self, output, target):
        return self.factor * mean_square(output, target)


@pytest.mark.parametrize("micro_size", [1, 3])
def test_a_loss_with_a_parameter_gets_its_gradient_too(micro_size):
    inputs, target = batch(6)
    expected_loss, expected = one_process(2, inputs, target)
    net = pipeline(residual_layers(2), loss=ScaledLoss(), micro_size=micro_size)
    for steps in (1, 2):
        np.testing.assert_allclose(net(inputs, target).asnumpy(), 2 * expected_loss, rtol=1e-5)
        found = dict(zip([parameter.name for parameter in net.trainable_params()], net.gradients()))
        np.testing.assert_allclose(found["loss_fn.factor"].asnumpy(), steps * expected_loss, rtol=1e-5)
        for index in range(2):
            np.testing.assert_allclose(
                found[f"{index}.weight"].asnumpy(), 2 * steps * expected[index], rtol=1e-5, atol=1e-6
            )


def test_a_loss_that_shares_a_parameter_with_the_last_stage_counts_both_uses_once():
    class Penalised(nn.Cell):
        def __init__(self, layer):
            super().__init__()
            self.weight = layer.weight

        def construct(self, output, target):
            return mean_square(output, target) + self.weight.sum()

    inputs, target = batch(6)
    (layer,) = residual_layers(1)
    net = pipeline([layer], loss=Penalised(layer))
    _, (expected,) = one_process(1, inputs, target)
    net(inputs, target)
    (found,) = net.gradients()
    np.testing.assert_allclose(found.asnumpy(), expected + 1.0, rtol=1e-5, atol=1e-6)


def test_stages_of_equal_shape_start_differently():
    ms.set_seed(5)
    net = pipeline(lambda stage: nn.Dense(FEATURES, FEATURES), num_chunks=2)
    first, second = (parameter for parameter in net.trainable_params() if parameter.name.endswith("weight"))
    assert not np.allclose(first.asnumpy(), second.asnumpy())


def test_model_train_drives_the_step_and_the_loss_falls(capsys):
    import mindspore.dataset as data
    from mindspore.train import Callback, LossMonitor, Model

    inputs, target = (tensor.asnumpy() for tensor in batch(8))
    net = pipeline()
    step = PipelineTrainOneStepCell(net, nn.Adam(net.trainable_params(), learning_rate=0.05))
    losses = []

    class Note(Callback):
        def on_train_step_end(self, run_context):
            losses.append(float(run_context.original_args().net_outputs.asnumpy()))

    dataset = data.NumpySlicesDataset((inputs, target), shuffle=False).batch(8)
    Model(step).train(6, dataset, callbacks=[Note(), LossMonitor()], dataset_sink_mode=False)
    assert len(losses) == 6
    assert [float(text) for text in re.findall(r"loss is ([\d.]+)", capsys.readouterr().out)] == losses
    assert losses[-1] < 0.7 * losses[0]


def test_evaluation_before_and_between_training_steps_leaves_no_gradient():
    net = pipeline()
    inputs, target = batch(5)
    loss, outputs = net.eval_step(inputs, target)
    assert all(not gradient.asnumpy().any() for gradient in net.gradients())
    trained = net(inputs, target)
    once = [gradient.asnumpy() for gradient in net.gradients()]
    net.eval_step(inputs, target)
    assert (loss.asnumpy(), outputs.shape) == (trained.asnumpy(), (5, FEATURES))
    for one, gradient in zip(once, net.gradients()):
        np.testing.assert_array_equal(gradient.asnumpy(), one)
    net(inputs, target)
    for one, gradient in zip(once, net.gradients()):
        np.testing.assert_allclose(gradient.asnumpy(), 2 * one, rtol=1e-6)
    net.clear_gradients()
    assert all(not gradient.asnumpy().any() for gradient in net.gradients())


class Tap(nn.Cell):
    """Passes its input."""

    def __init__(self):
        super().__init__()
        self.scale = Parameter(Tensor(np.ones(1, np.float32)), name="scale")

    def construct(self, x):
        return x * self.scale


def test_uneven_micro_batches_and_token_weights_give_the_exact_mean():
    losses = Tensor(np.array([0, 0, 0, 0, 0, 0, 1, 1], np.float32))
    net = PipelineCell([Tap()], lambda output, target: output.mean(), micro_size=3, schedule="gpipe")
    assert float(net(losses, losses).asnumpy()) == pytest.approx(0.25)
    tokens = Tensor(np.array([[4, 0, 0], [0, 0, 0]], np.float32))
    valid = Tensor(np.array([[1, 0, 0], [1, 1, 1]], np.float32))

    def token_mean(output, target):
        return (output * target).sum() / target.sum()

    net = PipelineCell([Tap()], token_mean, micro_size=2, schedule="gpipe", weight_fn=lambda target: target.sum())
    assert float(net(tokens, valid).asnumpy()) == pytest.approx(1.0)


def test_a_micro_batch_without_valid_tokens_contributes_nothing():
    def token_mean(output, target):
        return (output * target).sum() / target.sum()

    net = PipelineCell([Tap()], token_mean, micro_size=2, schedule="gpipe", weight_fn=lambda target: target.sum())
    tokens, valid = Tensor(np.ones((2, 3), np.float32)), Tensor(np.array([[0, 0, 0], [1, 1, 1]], np.float32))
    assert float(net(tokens, valid).asnumpy()) == pytest.approx(1.0)
    assert net.gradients()[0].asnumpy() == pytest.approx([1.0])


def test_a_half_precision_loss_keeps_its_value_and_has_no_dimension():
    x = Tensor(np.full((4, 1), 2.5, np.float16))
    net = PipelineCell([Tap()], lambda output, target: output.astype(ms.float16).mean(), micro_size=2, schedule="gpipe")
    for loss in (net(x, x), net.eval_step(x, x)[0]):
        assert (float(loss.asnumpy()), loss.shape) == (2.5, ())


def test_a_mean_that_the_device_lacks_is_an_error_naming_device_and_dtype():
    x = Tensor(np.full((4, 1), 2.5, np.float32))
    net = PipelineCell([Tap()], lambda output, target: output.astype(ms.bfloat16).mean(), micro_size=2)
    with pytest.raises(PipelineError, match=r"rank 0: 0F0 \(.*step 0\) failed: on device CPU: .*BFloat16"):
        net(x, x)


def test_keywords_batch_dimensions_and_nesting_reach_stage_0():
    class First(nn.Cell):
        def construct(self, pair, flags, shift=None):
            return {"h": pair["a"] + pair["b"][0] + shift, "flags": flags, "none": None}

    class Second(nn.Cell):
        def construct(self, value):
            assert value["none"] is None
            return value["h"] * 2

    a, b = Tensor(np.arange(6, dtype=np.float32).reshape(3, 2)), Tensor(np.ones((2, 3), np.float32))
    net = PipelineCell(
        [First(), Second()],
        lambda output, target: output.mean(),
        micro_size=2,
        schedule="gpipe",
        num_chunks=2,
        args_batch_dim=[{"a": 0, "b": [None]}, None],
        kwargs_batch_dim={"shift": 1},
    )
    once = Tensor(np.ones((1, 2), np.float32))
    loss, outputs = net.eval_step({"a": a, "b": [once]}, True, a, shift=ops.transpose(b, (0, 1))[:1])
    assert float(loss.asnumpy()) == pytest.approx(9.0)
    np.testing.assert_allclose(outputs.asnumpy(), 2 * (a.asnumpy() + 2))
