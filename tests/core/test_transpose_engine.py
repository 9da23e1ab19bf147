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


def collectives(pipeline):
    return [[entry for entry in log if entry[0] in ("broadcast", "reduce")] for log in pipeline.network.log]


def test_parameters_travel_only_after_they_changed():
    pipeline = Pipeline(Plan.build("transpose", 2, 1, 4, owners="round_robin"), block=lambda: ScaleStage(0.7))
    seen = 0
    for change, sends in [(None, True), (None, False), (2.0, True), (2.0, False), (None, False)]:
        if change is not None:
            pipeline.blocks[0].parameter = scalar(change)  # rank 0's optimizer; the same value again is no change
        pipeline.step()
        told, parameters, gradients = ("broadcast", 0, 1), ("broadcast", 0, 1), ("reduce", 0, 2)
        expected = [told, parameters, gradients] if sends else [told, gradients]
        assert [log[seen:] for log in collectives(pipeline)] == [expected] * 2
        seen += len(expected)
        assert pipeline.blocks[1].parameter.data == pipeline.blocks[0].parameter.data


class Unused(ScaleStage):
    """Its parameter gets no gradient on the ranks that ``without`` lists."""

    def __init__(self, without, rank):
        super().__init__(0.7)
        self.skips = rank in without

    def backward_weight(self, tape):
        if not self.skips:
            super().backward_weight(tape)


@pytest.mark.parametrize("without", [(0, 1), (0,), (1,), ()])
def test_a_parameter_that_no_owner_used_has_no_gradient(without):
    ranks = iter(range(2))
    plan = Plan.build("transpose", 2, 1, 4, owners="round_robin")
    pipeline = Pipeline(plan, block=lambda: Unused(without, next(ranks)))
    pipeline.step()
    gradient = pipeline.blocks[0].gradient
    assert (gradient is None) == (without == (0, 1))
    _, (whole, *_) = reference(factors_of(pipeline, block=True))
    if not without:
        assert gradient.data[0] == pytest.approx(whole)
    elif gradient is not None:
        assert 0 < abs(gradient.data[0]) < abs(whole)
