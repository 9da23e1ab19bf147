"""Layers to stages, and schedule arguments to plans."""

import pytest

from hyper_pp import Plan
from hyper_pp.choose import choose_plan
from hyper_pp.partition import partition_layers


def sizes(*args, **kwargs):
    return [len(layers) for layers in partition_layers(*args, **kwargs)]


def test_the_first_stages_get_the_layers_that_are_left_over():
    assert partition_layers(11, 4, num_transpose_layers=1) == [range(1, 4), range(4, 7), range(7, 9), range(9, 11)]
    assert sizes(8, 4) == [2, 2, 2, 2]


def test_a_partition_is_taken_as_it_is():
    assert partition_layers(6, 3, num_transpose_layers=1, partition=[1, 3, 1]) == [
        range(1, 2),
        range(2, 5),
        range(5, 6),
    ]


@pytest.mark.parametrize("partition", [[2, 2], [1, 1, 1], [2, 2, 2]])
def test_a_partition_that_does_not_add_up_is_an_error(partition):
    with pytest.raises(ValueError, match=r"sum to the layers that are left \(stages: 3, layers: 5; got"):
        partition_layers(6, 3, num_transpose_layers=1, partition=partition)


@pytest.mark.parametrize(
    "partition, error", [([3, 2, 0], ValueError), ([2, True, 2], TypeError), ([1.0, 2, 2], TypeError)]
)
def test_partition_entries_are_positive_ints(partition, error):
    with pytest.raises(error, match="every entry of partition must be"):
        partition_layers(5, 3, partition=partition)


def test_more_stages_than_layers_is_an_error_naming_both():
    with pytest.raises(ValueError, match=r"more stages than layers \(stages: 4, layers: 3\)"):
        partition_layers(3, 4)


def test_the_block_must_leave_a_layer_for_every_stage():
    with pytest.raises(ValueError, match=r"at most 2 with 6 layers and 4 stages \(got 3\)"):
        partition_layers(6, 4, num_transpose_layers=3)


@pytest.mark.parametrize("bad, error", [(-1, ValueError), (True, TypeError), (1.5, TypeError), ("1", TypeError)])
def test_the_number_of_block_layers_is_a_non_negative_int(bad, error):
    with pytest.raises(error, match="num_transpose_layers must be"):
        partition_layers(6, 4, num_transpose_layers=bad)


JOB = {"num_ranks": 2, "num_chunks": 1, "num_micro_batches": 3}


def test_a_name_is_built_with_the_frameworks_defaults():
    plan = choose_plan("mpipe", **JOB, block_layers=1, frozen=False, explicit_backward=True)
    assert plan == Plan.build("mpipe", 2, 1, 3, num_layers=1, frozen=False, explicit_backward=True)
    assert choose_plan("mpipe", **JOB).transpose.frozen


def test_options_go_before_the_defaults():
    options = {"explicit_backward": False, "frozen": False}
    plan = choose_plan("mpipe", **JOB, block_layers=1, explicit_backward=True, transpose_options=options)
    assert (plan.transpose.explicit_backward, plan.transpose.frozen) == (False, False)


def test_a_plan_or_file_of_the_same_shape_is_taken(tmp_path):
    plan = Plan.build("1f1b", 2, 1, 3)
    plan.save(tmp_path / "plan.json")
    assert choose_plan(plan, **JOB) == plan
    assert choose_plan(str(tmp_path / "plan.json"), **JOB) == plan
    assert choose_plan(tmp_path / "plan.json", **JOB) == plan


def test_a_plan_for_another_shape_is_an_error(tmp_path):
    Plan.build("1f1b", 2, 1, 4).save(tmp_path / "plan.json")
    with pytest.raises(ValueError, match=r"plan.json is for P=2 V=1 M=4, the job has P=2 V=1 M=3"):
        choose_plan(tmp_path / "plan.json", **JOB)


def test_a_plan_with_another_block_is_an_error():
    plan = Plan.build("mpipe", 2, 1, 3, num_layers=2)
    with pytest.raises(ValueError, match="the plan has a preprocess block of 2 layers, the job's has 1"):
        choose_plan(plan, **JOB, block_layers=1)
    with pytest.raises(ValueError, match="the plan has no preprocess block, but the job has one"):
        choose_plan(Plan.build("1f1b", 2, 1, 3), **JOB, block_layers=1)
    with pytest.raises(ValueError, match="transpose_options are for building a schedule"):
        choose_plan(plan, **JOB, block_layers=2, transpose_options={"frozen": True})


def test_an_unknown_schedule_or_option_is_an_error_that_lists_the_known():
    with pytest.raises(ValueError, match=r"unknown schedule '2f2b' \(known: gpipe, 1f1b, interleaved"):
        choose_plan("2f2b", **JOB)
    with pytest.raises(ValueError, match=r"mpipe has no option speed \(it takes: num_layers, frozen"):
        choose_plan("mpipe", **JOB, transpose_options={"speed": 1})


def test_a_block_needs_a_schedule_that_has_one():
    with pytest.raises(ValueError, match=r"schedule 1f1b has no preprocess block, but got num_transpose_layers=2"):
        choose_plan("1f1b", **JOB, block_layers=2)
    with pytest.raises(ValueError, match="schedule interleaved has no preprocess block, but got a preprocess cell"):
        choose_plan("interleaved", **JOB, block_layers=None)


def test_a_file_that_is_not_there_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        choose_plan(tmp_path / "none.json", **JOB)
