"""Ranks, chunks and stages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyper_pp import PipelineShape, Plan
from hyper_pp.shape import MappedShape


def test_a_loop_places_stage_s_on_rank_s_mod_p():
    shape = PipelineShape(3, 2, 1)
    assert [shape.stages_of(rank) for rank in range(3)] == [(0, 3), (1, 4), (2, 5)]
    assert [shape.rank_of(stage) for stage in range(6)] == [0, 1, 2, 0, 1, 2]


def test_a_v_comes_back_on_the_way_it_went():
    shape = PipelineShape(3, 2, 1, "v")
    assert [shape.stages_of(rank) for rank in range(3)] == [(0, 5), (1, 4), (2, 3)]
    assert [shape.rank_of(stage) for stage in range(6)] == [0, 1, 2, 2, 1, 0]


@given(st.integers(1, 9), st.integers(1, 5), st.booleans())
def test_every_stage_lives_on_exactly_one_rank(p, v, is_v):
    shape = PipelineShape(p, 2, 1, "v") if is_v else PipelineShape(p, v, 1)
    stages = [(stage, rank) for rank in range(p) for stage in shape.stages_of(rank)]
    assert sorted(stages) == [(stage, shape.rank_of(stage)) for stage in range(shape.num_stages)]


@pytest.mark.parametrize("field", ["num_ranks", "num_chunks", "num_micro_batches"])
def test_a_count_below_one_is_an_error(field):
    counts = {"num_ranks": 2, "num_chunks": 2, "num_micro_batches": 2, field: 0}
    with pytest.raises(ValueError, match=rf"{field} must be at least 1 \(got 0\)"):
        PipelineShape(**counts)


@pytest.mark.parametrize("value", [True, 2.0, "2", None])
def test_a_count_must_be_an_int(value):
    with pytest.raises(TypeError, match=rf"num_ranks must be an int \(got {value!r}\)"):
        PipelineShape(value, 1, 1)


def test_a_v_needs_two_chunks():
    with pytest.raises(ValueError, match=r"placement v needs num_chunks 2 \(got 3\)"):
        PipelineShape(2, 3, 1, "v")


def test_an_unknown_placement_is_an_error():
    with pytest.raises(ValueError, match=r"placement must be one of loop, v \(got 'w'\)"):
        PipelineShape(2, 2, 1, "w")


def test_a_shape_is_named_by_its_counts():
    assert str(PipelineShape(4, 2, 8)) == "P=4 V=2 M=8"
    assert str(PipelineShape(4, 2, 8, "v")) == "P=4 V=2 M=8 placement=v"


@pytest.mark.parametrize("shape", [PipelineShape(3, 2, 1), PipelineShape(3, 2, 1, "v"), PipelineShape(1, 2, 5)])
def test_stages_in_a_loop_or_a_v_are_told_from_their_ranks(shape):
    ranks = [shape.rank_of(stage) for stage in range(shape.num_stages)]
    assert PipelineShape.of_stages(ranks, shape.num_micro_batches) == shape


@given(st.lists(st.integers(0, 4), min_size=1, max_size=9))
def test_stages_may_live_on_any_ranks(homes):
    homes = [sorted(set(homes)).index(home) for home in homes]
    shape = PipelineShape.of_stages(homes, 2)
    assert [shape.rank_of(stage) for stage in range(shape.num_stages)] == homes
    held = [shape.stages_of(rank) for rank in range(shape.num_ranks)]
    assert sorted(stage for stages in held for stage in stages) == list(range(len(homes)))
    assert shape.num_chunks == max(map(len, held))
    for rank, stages in enumerate(held):
        for chunk, stage in enumerate(stages):
            assert shape.stage_of(rank, chunk) == stage
            assert shape.chunk_of(stage) == chunk


def test_a_rank_without_a_stage_is_an_error():
    with pytest.raises(ValueError, match=r"every rank holds a stage \(ranks: 4, without one: \[1, 2\]\)"):
        PipelineShape.of_stages([0, 3, 3], 1)


def test_a_map_has_a_csv_form_but_no_json_form():
    shape = PipelineShape.of_stages([0, 0, 1, 0], 3)
    assert isinstance(shape, MappedShape)
    assert str(shape) == "P=2 M=3 stages on ranks 0,0,1,0"
    with pytest.raises(ValueError, match=r"placements loop and v \(the plan: P=2 M=3 stages on ranks 0,0,1,0\)"):
        Plan("own", shape, ((), ())).to_json()
