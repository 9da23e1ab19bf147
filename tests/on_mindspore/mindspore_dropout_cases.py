"""Cases of mindspore_job_cases: dropout in the preprocess block is drawn again where its forward is run again."""

import importlib

import mindspore as ms
import numpy as np
from case_list import case, close
from mindspore import Parameter, Tensor, nn, ops
from mindspore.communication import get_group_size, get_rank
from small_models import FEATURES, batch, gradients_by_name, mean_square, residual_layers

from hyper_pp.microbatch import offsets, split_sizes
from hyper_pp.mindspore import PipelineCell
from hyper_pp.mindspore.random import seeded

SEED, BATCH, MICRO_BATCHES = 11, 8, 5
OWNER = ({"owners": "round_robin"}, {"owners": [1, 0, 1, 0, 1]}, {"owners": "inline"})
CHOICES = [
    *(("mpipe", {"explicit_backward": explicit}) for explicit in (True, False)),
    ("transpose", {}),
    *(("transpose", {**owners, **how}) for owners in OWNER for how in ({}, {"recompute": True}, {"max_live": 1})),
    *(("transpose", {**owners, "backward": "central"}) for owners in OWNER),
    ("transpose", {"owners": "round_robin", "recompute": True, "max_live": 2}),
]


class Dropped(nn.Cell):
    """Dropout by a function and by a Cell, with a weight before each."""

    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor(np.linspace(0.5, 1.5, FEATURES).astype(np.float32)), name="weight")
        self.drop = nn.Dropout(p=0.25)

    def construct(self, x):
        return self.drop(ops.dropout(x * self.weight, p=0.5) * self.weight)


def one_process_with_the_masks(inputs, target, num_steps):
    """Return the last step's loss and the gradients of all steps; micro-batch m of step s draws from seed s·M + m."""
    layers = [Dropped(), *residual_layers(get_group_size())]
    parts = offsets(split_sizes(BATCH, MICRO_BATCHES))

    def loss_of(step):
        total = 0.0
        for m, (start, size) in enumerate(parts):
            with seeded(SEED + step * MICRO_BATCHES + m, [layers[0].drop]):
                x = layers[0](inputs[start : start + size])
            for layer in layers[1:]:
                x = layer(x)
            total = total + mean_square(x, target[start : start + size]) * (size / BATCH)
        return total

    weights = [layer.weight for layer in layers]
    layers[0].set_train()
    steps = [ms.value_and_grad(lambda step=step: loss_of(step), None, weights)() for step in range(num_steps)]
    return steps[-1][0], [sum(gradients[1:], gradients[0]) for gradients in zip(*(found for _, found in steps))]


@case
def every_option_of_a_block_with_dropout_gives_the_gradients_of_one_process():
    inputs, target = batch(BATCH)
    expected_loss, expected = one_process_with_the_masks(inputs, target, 2)
    another_loss, _ = one_process_with_the_masks(inputs, target, 1)
    assert abs(float(expected_loss) - float(another_loss)) > 1e-3, "the masks don't change from step to step"
    for schedule, options in CHOICES:
        ms.set_seed(SEED)
        net = PipelineCell(
            [Dropped(), *residual_layers(get_group_size())],
            mean_square,
            micro_size=MICRO_BATCHES,
            schedule=schedule,
            num_transpose_layers=1,
            transpose_options=options,
        )
        net.set_train()
        ms.set_seed(100 + get_rank())  # what ranks draw elsewhere doesn't matter
        net(inputs, target)
        close(net(inputs, target), float(expected_loss))
        for name, gradient in gradients_by_name(net).items():
            close(gradient, expected[int(name.split(".")[0])].asnumpy())


class Masked(nn.Cell):
    """Its output's sum is the sum of its weight's gradient, if that was computed with the same mask."""

    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(FEATURES, np.float32)), name="weight")

    def construct(self, x):
        return ops.dropout(x, p=0.5) * self.weight


@case
def a_gradient_belongs_to_the_mask_of_its_loss_though_nobody_set_a_seed():
    importlib.import_module("mindspore.common.seed")._GLOBAL_SEED = None  # as in a new process
    for schedule, options in CHOICES:
        net = PipelineCell(
            [Masked(), *(nn.Identity() for _ in range(get_group_size()))],
            lambda output, target: output.sum(-1).mean(),
            micro_size=4,
            schedule=schedule,
            num_transpose_layers=1,
            transpose_options={**options, **({"owners": [1, 0, 1, 0]} if "owners" in options else {})},
        )
        loss = net(batch(8)[0], batch(8)[1])
        if get_rank() == 0:
            close(gradients_by_name(net)["0.weight"].sum(), float(loss), rtol=1e-4, atol=1e-5)
