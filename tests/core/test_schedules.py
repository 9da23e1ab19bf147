"""The schedules' orders: literal timetables, the golden files, and what must hold for all shapes."""

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyper_pp import Costs, Plan, simulate, verify
from hyper_pp.schedules import SCHEDULES

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.json"))


def order_texts(plan):
    return [" ".join(map(str, order)) for order in plan.orders]


def orders_of(name, p, v, m, **options):
    return order_texts(Plan.build(name, p, v, m, compute_only=True, **options))


# ---- literal timetables ----


def test_gpipe_runs_all_forwards_then_all_backwards():
    assert orders_of("gpipe", 2, 1, 3) == [
        "0F0 0F1 0F2 0B0 0B1 0B2",
        "1F0 1F1 1F2 1B0 1B1 1B2",
    ]


def test_gpipe_takes_chunks_one_after_another_and_backwards_in_reverse_chunk_order():
    assert orders_of("gpipe", 2, 2, 2) == [
        "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1",
        "1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1",
    ]


def test_1f1b_warms_up_with_p_minus_r_forwards_then_alternates():
    assert orders_of("1f1b", 3, 1, 5) == [
        "0F0 0F1 0F2 0B0 0F3 0B1 0F4 0B2 0B3 0B4",
        "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1F4 1B3 1B4",
        "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3 2F4 2B4",
    ]


def test_1f1b_with_fewer_micro_batches_than_ranks_is_all_forwards_then_all_backwards_up_front():
    assert orders_of("1f1b", 3, 1, 1) == ["0F0 0B0", "1F0 1B0", "2F0 2B0"]


def test_interleaved_walks_rounds_of_p_micro_batches_chunk_by_chunk():
    assert orders_of("interleaved", 2, 2, 4) == [
        "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3",
        "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3",
    ]


def test_interleaved_with_uneven_rounds_runs_the_larger_round_first():
    # Five micro-batches on two ranks are rounds of three and two.
    assert orders_of("interleaved", 2, 2, 5) == [
        "0F0 0F1 0F2 2F0 2F1 2F2 2B0 0F3 2B1 0F4 2B2 2F3 0B0 2F4 0B1 0B2 2B3 2B4 0B3 0B4",
        "1F0 1F1 1F2 3F0 3B0 3F1 3B1 3F2 3B2 1F3 1B0 1F4 1B1 3F3 1B2 3F4 3B3 3B4 1B3 1B4",
    ]


def test_less_memory_warms_up_with_one_forward_per_later_rank_instead_of_two():
    assert orders_of("interleaved", 2, 2, 2, less_memory=True) == [
        "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1",
        "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1",
    ]
    full, less = (
        verify(Plan.build("interleaved", 4, 2, 16, less_memory=less)).peak_activations for less in (False, True)
    )
    assert (full, less) == ((11, 9, 7, 5), (8, 7, 6, 5))


def test_interleaved_zb_holds_back_as_many_weight_gradients_as_there_are_ranks_before():
    assert orders_of("interleaved_zb", 3, 1, 4) == [
        "0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3",
        "1F0 1F1 1I0 1F2 1I1 1W0 1F3 1I2 1W1 1I3 1W2 1W3",
        "2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3",
    ]


def test_interleaved_zb_takes_less_time_than_interleaved_with_less_memory():
    costs = Costs(F=1, B=2, I=1, W=1)
    zero_bubble = simulate(Plan.build("interleaved_zb", 4, 1, 8), costs)
    whole = simulate(Plan.build("interleaved", 4, 1, 8, less_memory=True), costs)
    assert (zero_bubble.step_time, whole.step_time) == (27, 33)
    assert zero_bubble.peak_activations == (4, 4, 4, 4)


def test_zbv_lays_out_2p_minus_1_micro_batches_and_leaves_out_what_is_missing():
    assert orders_of("zbv", 2, 2, 3) == [
        "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2",
        "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2",
    ]
    assert orders_of("zbv", 2, 2, 1) == ["0F0 3F0 3I0 3W0 0I0 0W0", "1F0 2F0 2I0 2W0 1I0 1W0"]


def test_zbv_has_bubbles_only_where_it_fills_and_drains():
    simulation = simulate(Plan.build("zbv", 4, 2, 8))
    assert simulation.idle == (3, 3, 3, 3)
    assert simulation.peak_activations == (8, 8, 8, 8)


def test_mpipe_spreads_the_first_forwards_of_the_block_and_recomputes_them_on_rank_0():
    assert orders_of("mpipe", 2, 1, 3) == [
        "0BCAST_T 0TF0 0RECV_TF1 0RECV_TX1 0F0 0F1 0TF2 0F2 0B0 0TB0 0B1 0TB1 0B2",
        "0BCAST_T 0TF1 0SEND_TF1 0SEND_TX1 1F0 1B0 1F1 1B1 1F2 1B2",
    ]


def test_mpipe_with_explicit_backward_recomputes_rank_0s_own_micro_batches_too():
    assert orders_of("mpipe", 2, 1, 3, explicit_backward=True)[0] == (
        "0BCAST_T 0TF0 0RECV_TF1 0RECV_TX1 0F0 0F1 0TF2 0F2 0B0 0TB0 0B1 0TB1 0B2 0TB2"
    )


@pytest.mark.parametrize("options", [{"frozen": True}, {"num_layers": 0}])
def test_mpipe_with_nothing_to_train_ships_outputs_only(options):
    assert orders_of("mpipe", 2, 1, 3, **options) == [
        "0TF0 0RECV_TF1 0F0 0F1 0F2 0B0 0B1 0B2",
        "0TF1 0SEND_TF1 1F0 1B0 1F1 1B1 1F2 1B2",
    ]


def test_mpipe_with_fewer_micro_batches_than_ranks_leaves_the_other_ranks_without_a_forward_of_the_block():
    assert orders_of("mpipe", 3, 1, 2) == [
        "0BCAST_T 0TF0 0RECV_TF1 0RECV_TX1 0F0 0F1 0B0 0TB0 0B1 0TB1",
        "0BCAST_T 0TF1 0SEND_TF1 0SEND_TX1 1F0 1F1 1B0 1B1",
        "0BCAST_T 2F0 2B0 2F1 2B1",
    ]


def test_the_owner_of_a_transposed_micro_batch_is_its_rank_and_rank_0_owns_the_others():
    plan = Plan.build("mpipe", 3, 1, 5, num_layers=2)
    assert plan.transpose.owners == (0, 1, 2, 0, 0)
    assert (plan.transpose.num_layers, plan.transpose.frozen, plan.transpose.backward) == (2, False, "central")


# ---- golden files ----


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_orders_equal_the_golden_file_action_for_action(path):
    golden = json.loads(path.read_text())
    options = {}
    if golden["schedule"] == "mpipe":
        options = {"frozen": not golden["trainable"], "explicit_backward": golden["explicit_backward"]}
    plan = Plan.build(
        golden["schedule"],
        golden["num_ranks"],
        golden["num_chunks"],
        golden["num_micro_batches"],
        compute_only=True,
        **options,
    )
    assert [[str(action) for action in order] for order in plan.orders] == golden["orders"]


def test_the_golden_files_of_every_schedule_were_found():
    names = {"1f1b": 4, "gpipe": 4, "interleaved": 5, "interleaved_zb": 5, "mpipe": 15, "zbv": 3}
    found = [json.loads(path.read_text())["schedule"] for path in GOLDEN]
    assert {name: found.count(name) for name in names} == names


# ---- all shapes ----

OPTIONS = {
    "interleaved": [{}, {"less_memory": True}],
    "mpipe": [{}, {"explicit_backward": True}, {"frozen": True}, {"less_memory": True, "frozen": True}],
}
NAMES = ("gpipe", "1f1b", "interleaved", "interleaved_zb", "zbv", "mpipe")  # transpose has a file of its own
CASES = [(name, options) for name in NAMES for options in OPTIONS.get(name, [{}])]
shapes = st.tuples(st.integers(1, 8), st.integers(1, 4), st.integers(1, 24))


@settings(max_examples=100, deadline=None)
@given(shapes, st.sampled_from(CASES))
def test_every_rank_runs_each_forward_and_backward_of_its_stages_once(shape, case):
    (name, options), (p, v, m) = case, shape
    v = SCHEDULES[name].num_chunks or v
    plan = Plan.build(name, p, v, m, compute_only=True, **options)
    ops = "FIW" if name in ("interleaved_zb", "zbv") else "FB"
    for rank, order in enumerate(plan.orders):
        body = [str(action) for action in order if action.op.value in ("F", "B", "I", "W")]
        stages = [rank, 2 * p - 1 - rank] if name == "zbv" else [chunk * p + rank for chunk in range(v)]
        assert sorted(body) == sorted(f"{s}{op}{n}" for s in stages for op in ops for n in range(m))


@pytest.mark.parametrize("name, options", CASES)
def test_plans_of_a_spread_of_shapes_verify(name, options):
    chunks = [SCHEDULES[name].num_chunks] if SCHEDULES[name].num_chunks else [1, 2, 4]
    for p, v, m in itertools.product((1, 2, 3, 5, 8), chunks, (1, 2, 3, 4, 7, 11, 16, 24)):
        plan = Plan.build(name, p, v, m, **options)
        assert verify(plan).num_actions == plan.num_actions


@settings(max_examples=50, deadline=None)
@given(shapes)
def test_1f1b_holds_at_most_p_minus_r_stage_inputs(shape):
    p, _, m = shape
    peaks = verify(Plan.build("1f1b", p, 1, m)).peak_activations
    assert peaks == tuple(min(m, p - rank) for rank in range(p))


def test_the_same_arguments_give_the_same_plan():
    assert Plan.build("mpipe", 4, 2, 7) == Plan.build("mpipe", 4, 2, 7)


# ---- bad arguments ----


@pytest.mark.parametrize(
    "arguments, options, message",
    [
        (("nope", 2, 1, 2), {}, r"unknown schedule 'nope' \(known: gpipe, 1f1b, interleaved, interleaved_zb, zbv"),
        (("1f1b", 2, 2, 2), {}, r"1f1b takes num_chunks=1 \(got 2\)"),
        (("gpipe", 2, 1, 2), {"frozen": True}, r"gpipe has no option frozen \(it takes: none\)"),
        (("interleaved", 2, 1, 2), {"owners": 1}, r"interleaved has no option owners \(it takes: less_memory\)"),
        (("gpipe", 0, 1, 2), {}, r"num_ranks must be at least 1 \(got 0\)"),
        (("gpipe", 2, 1, 0), {}, r"num_micro_batches must be at least 1 \(got 0\)"),
        (("mpipe", 2, 1, 2), {"backward": "owner"}, r"backward must be central \(got 'owner'\)"),
        (("mpipe", 2, 1, 2), {"num_layers": -1}, r"num_layers must be at least 0 \(got -1\)"),
        (("mpipe", 2, 1, 2), {"num_layers": 0, "frozen": False}, "frozen must be true"),
    ],
)
def test_arguments_that_make_no_plan_are_errors(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        Plan.build(*arguments, **options)


@pytest.mark.parametrize("value", [True, 1.5, "1"])
def test_a_number_of_layers_must_be_an_int(value):
    with pytest.raises(TypeError, match=rf"num_layers must be an int \(got {value!r}\)"):
        Plan.build("mpipe", 2, 1, 2, num_layers=value)
