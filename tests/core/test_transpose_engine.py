"""The engine on plans of `transpose` and of the split backwards: the loss and gradients of one process."""

import pytest
from fake import ScaleStage, scalar
from test_engine import Pipeline, factors_of, reference

from hyper_pp import Costs, Plan

SHAPES = [(1, 1, 4), (2, 1, 1), (2, 2, 3), (4, 1, 7), (4, 2, 8), (3, 3, 8)]
TRAINABLE = [
    {},
    {"recompute": True},
    {"max_live": 1},
    {"backward": "central"},
    {"owners": "inline"},
    {"owners": "round_robin", "costs": Costs(F=1, B=3, TF=4, TB=1, comm=0.5)},
]


@pytest.mark.parametrize("p, v, m", SHAPES)
@pytest.mark.parametrize("options", TRAINABLE, ids=lambda options: " ".join(options) or "default")
@pytest.mark.parametrize("overlap", [False, True])
def test_transpose_trains_its_block_like_one_process(p, v, m, options, overlap):
    plan = Plan.build("transpose", p, v, m, **options)
    pipeline = Pipeline(plan, blocking=not overlap, overlap_p2p=overlap, block=lambda: ScaleStage(0.7))
    if any(plan.transpose.owners):
        for rank, block in enumerate(pipeline.blocks[1:], 1):
            block.parameter = scalar(99.0 + rank)  # a replica's own value must not matter
    for steps in (1, 2):  # gradients accumulate, and none is counted twice
        loss, _ = pipeline.step()
        expected_loss, (block_gradient, *gradients) = reference(factors_of(pipeline, block=True), steps=steps)
        assert loss == pytest.approx(expected_loss)
        assert pipeline.gradients() == pytest.approx(gradients)
        assert pipeline.blocks[0].gradient.data[0] == pytest.approx(block_gradient)
        assert [block.gradient for block in pipeline.blocks[1:]] == [None] * (p - 1)


@pytest.mark.parametrize("p, v, m", SHAPES)
def test_transpose_with_nothing_to_train(p, v, m):
    frozen = Pipeline(Plan.build("transpose", p, v, m, frozen=True), block=lambda: ScaleStage(0.7, frozen=True))
    data_only = Pipeline(Plan.build("transpose", p, v, m, num_layers=0))
    for pipeline, has_block in ((frozen, True), (data_only, False)):
        loss, _ = pipeline.step()
        expected_loss, expected = reference(factors_of(pipeline, block=has_block))
        assert loss == pytest.approx(expected_loss)
        assert pipeline.gradients() == pytest.approx(expected[has_block:])


@pytest.mark.parametrize("p, v, m", SHAPES)
@pytest.mark.parametrize("name", ["interleaved_zb", "zbv"])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_split_backward_gives_the_gradients_of_a_whole_one(name, p, v, m, overlap):
    plan = Plan.build(name, p, v if name == "interleaved_zb" else 2, m)
    pipeline = Pipeline(plan, blocking=not overlap, overlap_p2p=overlap)
    loss, _ = pipeline.step()
    expected_loss, expected = reference(factors_of(pipeline))
    assert loss == pytest.approx(expected_loss)
    by_stage = [pipeline.stages[stage].gradient.data[0] for stage in range(plan.shape.num_stages)]
    assert by_stage == pytest.approx(expected)
