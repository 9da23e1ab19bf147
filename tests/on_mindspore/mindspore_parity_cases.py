"""Run under msrun: every schedule over a grid of shapes, each compared with one process."""

import traceback

import numpy as np
from msrun_launch import report, settle

BATCH = 9


def cases():
    for num_chunks in (1, 2, 3):
        for micro_size in (1, 2, 3, 4, 7, 8):
            shape = {"num_chunks": num_chunks, "micro_size": micro_size}
            for schedule in ("gpipe", "1f1b", "interleaved"):
                if schedule != "1f1b" or num_chunks == 1:
                    yield {"schedule": schedule, **shape}
            yield {"schedule": "interleaved_zb", **shape}
            if num_chunks == 2:
                yield {"schedule": "zbv", **shape}
            for layers, frozen in ((0, True), (1, False), (1, True), (2, False), (2, True)):
                yield {"schedule": "mpipe", **shape, "num_transpose_layers": layers, "frozen": frozen}
            if num_chunks < 3 and micro_size in (1, 3, 8):
                for layers, options in TRANSPOSE:
                    case = {"schedule": "transpose", **shape, "num_transpose_layers": layers, **options}
                    yield {"frozen": layers == 0, **case}


TRANSPOSE = (
    (0, {}),
    (1, {"frozen": True}),
    (1, {"transpose_options": {"owners": "round_robin"}}),
    (2, {"transpose_options": {"owners": "round_robin", "recompute": True}}),
    (1, {"transpose_options": {"owners": "round_robin", "max_live": 1}}),
    (1, {"transpose_options": {"owners": "round_robin", "backward": "central"}}),
    (1, {"transpose_options": {"owners": "inline"}}),
)


def name_of(case):
    text = "{schedule}-v{num_chunks}-m{micro_size}".format(**case)
    if "frozen" in case:
        text += f"-t{case['num_transpose_layers']}-{'frozen' if case['frozen'] else 'trainable'}"
    return "-".join([text, *(f"{key} {value}" for key, value in case.get("transpose_options", {}).items())])


def largest_excess(found, expected):
    """How far found is outside rtol 1e-5, atol 1e-6 of expected; at most 0 if it is inside."""
    return float((np.abs(found - expected) - 1e-5 * np.abs(expected) - 1e-6).max())


def run_case(case, num_ranks, inputs, target):
    options = dict(case)
    frozen = options.pop("frozen", False)
    in_block = options.get("num_transpose_layers", 0)
    count = num_ranks * options["num_chunks"] + in_block + 1  # one more than stages, so that they differ in size
    layers = residual_layers(count)
    for layer in layers[:in_block]:
        layer.weight.requires_grad = not frozen
    net = PipelineCell(layers, mean_square, **options)
    loss, gradients = net(inputs, target), net.gradients()
    names = [parameter.name for parameter in net.trainable_params()]
    expected_loss, expected = one_process(count, inputs, target)
    excess = {"loss": largest_excess(loss.asnumpy(), expected_loss)}
    for name, gradient in zip(names, gradients, strict=True):
        excess[name] = largest_excess(gradient.asnumpy(), expected[int(name.split(".")[0])])
    trained = [f"{index}.weight" for index in range(in_block if frozen else 0, count)]
    return {"outside": {name: value for name, value in excess.items() if value > 0}, "names": names, "all": trained}


def main():
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    ms.runtime.launch_blocking()  # many times faster on CPU, where the threads of the pipeline fight for cores
    num_ranks = 1
    if int(os.environ.get("MS_WORKER_NUM", 1)) > 1:
        init()
        num_ranks = get_group_size()
    inputs, target = batch(BATCH)
    for case in cases():
        try:
            report(name_of(case), run_case(case, num_ranks, inputs, target))
        except Exception:
            report(name_of(case), {"error": traceback.format_exc()})
            raise


if __name__ == "__main__":
    import os

    settle()

    import mindspore as ms
    from mindspore.communication import get_group_size, init
    from small_models import batch, mean_square, one_process, residual_layers

    from hyper_pp.mindspore import PipelineCell

    main()
