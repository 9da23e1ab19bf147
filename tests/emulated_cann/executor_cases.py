"""Run under msrun on the emulated Ascend: the executor's schedules, each compared with one process."""

import functools
import traceback

import numpy as np
from msrun_launch import report

MICRO_BATCHES = 4
# name: (options of PipelineCell, layers in the preprocess block, the block is frozen)
CASES = {
    "1f1b": ({"schedule": "1f1b"}, 0, False),
    "1f1b, overlapped": ({"schedule": "1f1b", "overlap_p2p": True}, 0, False),
    "interleaved": ({"schedule": "interleaved", "num_chunks": 2}, 0, False),
    "interleaved, overlapped": ({"schedule": "interleaved", "num_chunks": 2, "overlap_p2p": True}, 0, False),
    "interleaved, dynamic shapes": ({"schedule": "interleaved", "num_chunks": 2, "dynamic_shapes": True}, 0, False),
    "mpipe, trainable": ({"schedule": "mpipe", "num_chunks": 2}, 1, False),
    "mpipe, trainable, overlapped": ({"schedule": "mpipe", "overlap_p2p": True}, 1, False),
    "mpipe, frozen": ({"schedule": "mpipe"}, 1, True),
    "mpipe, data only": ({"schedule": "mpipe", "num_chunks": 2}, 0, False),
}
# The same for a GPT whose inputs are integers.
GPT_CASES = {
    "gpt, 1f1b": ({"schedule": "1f1b"}, 0),
    "gpt, interleaved": ({"schedule": "interleaved", "num_chunks": 2}, 0),
    "gpt, mpipe, embedding in the block": ({"schedule": "mpipe"}, 1),
}
OPTIMIZER_CASE = "a step with an optimizer"


def run_case(options, in_block, frozen, num_ranks):
    """Two steps whose gradients add up, and an evaluation; return what is outside rtol 1e-5, atol 1e-6."""
    count = num_ranks * options.get("num_chunks", 1) + in_block
    layers = residual_layers(count)
    for layer in layers[:in_block]:
        layer.weight.requires_grad = not frozen
    inputs, target = batch(9)
    expected_loss, expected = one_process(count, inputs, target)
    net = PipelineCell(layers, mean_square, micro_size=MICRO_BATCHES, num_transpose_layers=in_block, **options)
    losses = [net(inputs, target), net(inputs, target), net.eval_step(inputs, target)[0]]
    outside = {}
    for position, loss in enumerate(losses):
        outside[f"loss {position}"] = excess(loss.asnumpy(), expected_loss)
    for parameter, gradient in zip(net.trainable_params(), net.gradients(), strict=True):
        index = int(parameter.name.split(".")[0])
        outside[parameter.name] = excess(gradient.asnumpy(), 2 * expected[index])
    return {name: value for name, value in outside.items() if not value <= 0}  # a NaN is outside too


def run_gpt_case(options, in_block, num_ranks):
    """Two steps whose gradients add up, and an evaluation; return what is outside rtol 1e-5, atol 1e-6."""
    count = num_ranks * options.get("num_chunks", 1) + in_block
    tokens, target = gpt_layers.text(2 * MICRO_BATCHES)
    expected_loss, expected = gpt_layers.one_process(count, tokens, target)
    net = PipelineCell(
        gpt_layers.gpt_layers(count),
        gpt_layers.cross_entropy,
        micro_size=MICRO_BATCHES,
        num_transpose_layers=in_block,
        **options,
    )
    losses = [net(tokens, target), net(tokens, target), net.eval_step(tokens, target)[0]]
    outside = {f"loss {at}": excess(loss.asnumpy(), expected_loss) for at, loss in enumerate(losses)}
    for parameter, gradient in zip(net.trainable_params(), net.gradients(), strict=True):
        index, name = parameter.name.split(".")
        outside[parameter.name] = excess(gradient.asnumpy(), 2 * expected[int(index), name])
    return {name: value for name, value in outside.items() if not value <= 0}


def run_optimizer_case(num_ranks):
    """One step of plain SGD; return which parameters aren't where NumPy takes them, and gradients that are left."""
    inputs, target = batch(9)
    _, gradients = one_process(num_ranks, inputs, target)
    before = [layer.weight.asnumpy().astype(np.float64) for layer in residual_layers(num_ranks)]
    net = PipelineCell(residual_layers(num_ranks), mean_square, micro_size=MICRO_BATCHES, schedule="1f1b")
    step = PipelineTrainOneStepCell(net, mint.optim.SGD(net.trainable_params(), lr=0.5))
    step(inputs, target)
    outside = {}
    for parameter, gradient in zip(net.trainable_params(), net.gradients(), strict=True):
        index = int(parameter.name.split(".")[0])
        outside[parameter.name] = excess(parameter.asnumpy(), before[index] - 0.5 * gradients[index])
        outside[f"{parameter.name}, gradient left"] = excess(gradient.asnumpy(), 0.0)
    return {name: value for name, value in outside.items() if not value <= 0}


def excess(found, expected):
    return float((np.abs(found - expected) - 1e-5 * np.abs(expected) - 1e-6).max())


def main():
    ms.set_device("Ascend")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    init()
    num_ranks = get_group_size()
    runs = {name: functools.partial(run_case, *case, num_ranks) for name, case in CASES.items()}
    runs |= {name: functools.partial(run_gpt_case, *case, num_ranks) for name, case in GPT_CASES.items()}
    runs[OPTIMIZER_CASE] = functools.partial(run_optimizer_case, num_ranks)
    for name, run in runs.items():
        try:
            report(name, run())
        except Exception:
            report(name, traceback.format_exc())
            raise


if __name__ == "__main__":
    import gpt_layers
    import mindspore as ms
    from mindspore import mint
    from mindspore.communication import get_group_size, init
    from small_models import batch, mean_square, one_process, residual_layers

    from hyper_pp.mindspore import PipelineCell, PipelineTrainOneStepCell

    main()
