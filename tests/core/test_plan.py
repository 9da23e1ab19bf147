"""Plans and their files."""

import csv
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from independent import random_plan

from hyper_pp import Action, Costs, Op, PipelineShape, Plan, PlanFormatError, Transpose, simulate, verify
from hyper_pp.plan_files import from_csv, load, to_csv

seeds = st.integers(0, 10**9)


def actions(text):
    return tuple(Action.parse(word) for word in text.split())


# ---- plans ----


def test_a_plan_is_lowered_unless_told_otherwise():
    assert Plan.build("gpipe", 2, 1, 1).orders == (
        actions("0F0 0SEND_F0 0RECV_B0 0B0"),
        actions("1RECV_F0 1F0 1B0 1SEND_B0"),
    )
    assert Plan.build("gpipe", 2, 1, 1, compute_only=True).orders == (actions("0F0 0B0"), actions("1F0 1B0"))


def test_lowering_a_lowered_plan_changes_nothing():
    plan = Plan.build("gpipe", 2, 1, 3)
    assert plan.lowered() is plan


@pytest.mark.parametrize(
    "orders, options, message",
    [
        (("0F0",), {}, r"one order per rank \(ranks: 2, orders: 1\)"),
        (("2F0", ""), {}, r"action 2F0 is outside the plan's shape \(P=2 V=1 M=3\)"),
        (("0F3", ""), {}, r"action 0F3 is outside the plan's shape"),
        (("0TF0", ""), {}, "action 0TF0 is of the preprocess block, but the plan has no transpose"),
        (("1TF0", ""), {"transpose": Transpose((0, 0, 0))}, "1TF0 is of .* but the block belongs to stage 0"),
        (("", ""), {"transpose": Transpose((0, 1))}, r"one rank per micro-batch \(micro-batches: 3, owners: 2\)"),
        (("", ""), {"transpose": Transpose((0, 1, 2))}, r"owners are ranks below 2 \(got 2\)"),
        (("0SEND_F0", ""), {"compute_only": True}, "a compute-only plan holds no SEND_F"),
    ],
)
def test_a_plan_that_contradicts_itself_is_an_error(orders, options, message):
    with pytest.raises(ValueError, match=message):
        Plan("by hand", PipelineShape(2, 1, 3), tuple(map(actions, orders)), **options)


@pytest.mark.parametrize(
    "fields, error, message",
    [
        ({"owners": (0, -1)}, ValueError, r"every owner must be at least 0 \(got -1\)"),
        ({"owners": (0, True)}, TypeError, r"every owner must be an int \(got True\)"),
        ({"num_layers": -1}, ValueError, r"num_layers must be at least 0 \(got -1\)"),
        ({"max_live": 0}, ValueError, r"max_live must be at least 1 \(got 0\)"),
        ({"frozen": 1}, TypeError, r"frozen must be true or false \(got 1\)"),
        ({"backward": "both"}, ValueError, r"backward must be owner or central \(got 'both'\)"),
        ({"num_layers": 0}, ValueError, "frozen must be true"),
    ],
)
def test_a_block_that_contradicts_itself_is_an_error(fields, error, message):
    with pytest.raises(error, match=message):
        Transpose(**{"owners": (0, 0), **fields})


# ---- JSON ----


def test_the_json_form_holds_shape_options_and_orders():
    assert json.loads(Plan.build("gpipe", 2, 1, 1).to_json()) == {
        "format": "hyper_pp.plan/1",
        "schedule": "gpipe",
        "num_ranks": 2,
        "num_chunks": 1,
        "num_micro_batches": 1,
        "placement": "loop",
        "compute_only": False,
        "orders": [["0F0", "0SEND_F0", "0RECV_B0", "0B0"], ["1RECV_F0", "1F0", "1B0", "1SEND_B0"]],
    }


def test_the_json_form_of_a_plan_with_a_block_tells_all_about_it():
    plan = Plan.build("mpipe", 2, 1, 3, num_layers=2, explicit_backward=True)
    assert json.loads(plan.to_json())["transpose"] == {
        "num_layers": 2,
        "frozen": False,
        "backward": "central",
        "explicit_backward": True,
        "recompute": False,
        "max_live": None,
        "owners": [0, 1, 0],
    }


@settings(max_examples=80, deadline=None)
@given(seeds, st.booleans())
def test_every_plan_survives_json(seed, lowered):
    plan = random_plan(random.Random(seed))
    plan = plan.lowered() if lowered else plan
    assert Plan.from_json(plan.to_json()) == plan


def test_a_plan_is_saved_and_loaded_in_the_form_its_name_ends_in(tmp_path):
    plan = Plan.build("interleaved", 2, 2, 5)
    plan.save(tmp_path / "plan.json")
    plan.save(tmp_path / "plan.csv")
    assert Plan.load(tmp_path / "plan.json") == plan
    assert Plan.load(str(tmp_path / "plan.csv")).orders == plan.orders
    assert (tmp_path / "plan.csv").read_text().startswith("0F0,0SEND_F0,")


def valid():
    return json.loads(Plan.build("mpipe", 2, 1, 2).to_json())


@pytest.mark.parametrize(
    "change, message",
    [
        ({"format": "hyper_pp.plan/2"}, r'"format": "hyper_pp.plan/1" \(got \'hyper_pp.plan/2\'\)'),
        ({"extra": 1}, r"wrong keys \(missing: \[\], unknown: \['extra'\]\)"),
        ({"orders": None}, "orders must be a list of lists"),
        ({"orders": [["0F0"], "1F0"]}, "orders must be a list of lists"),
        ({"orders": [["0F0"], [7]]}, r"an action is <stage><OP><micro_batch>, for example 3F0 \(got 7\)"),
        ({"orders": [["0F0"]]}, r"one order per rank \(ranks: 2, orders: 1\)"),
        ({"num_ranks": "2"}, r"num_ranks must be an int \(got '2'\)"),
        ({"num_micro_batches": 0}, r"num_micro_batches must be at least 1 \(got 0\)"),
        ({"placement": "z"}, r"placement must be one of loop, v \(got 'z'\)"),
        ({"compute_only": 1}, "compute_only true or false"),
        ({"schedule": None}, "schedule must be a text"),
        ({"transpose": None}, r"transpose must be an object \(got None\)"),
        ({"transpose": {"owners": [0, 1]}}, "transpose needs the keys backward, explicit_backward, frozen"),
    ],
)
def test_a_json_file_that_is_no_plan_is_an_error_that_names_the_fault(change, message):
    with pytest.raises(PlanFormatError, match=message):
        Plan.from_json(json.dumps({**valid(), **change}))


@pytest.mark.parametrize("owners", ["01", 5, None, {"0": 1}])
def test_owners_must_be_a_list(owners):
    data = valid()
    data["transpose"]["owners"] = owners
    with pytest.raises(PlanFormatError, match="owners must be a list of ranks"):
        Plan.from_json(json.dumps(data))


def test_a_missing_key_is_named():
    data = valid()
    del data["num_chunks"]
    with pytest.raises(PlanFormatError, match=r"wrong keys \(missing: \['num_chunks'\], unknown: \[\]\)"):
        Plan.from_json(json.dumps(data))


def test_a_key_that_is_there_twice_is_an_error():
    text = Plan.build("1f1b", 2, 1, 2).to_json().replace('"num_ranks": 2', '"num_ranks": 2, "num_ranks": 3')
    with pytest.raises(PlanFormatError, match=r'every key is there once \(got "num_ranks" 2 times\)'):
        Plan.from_json(text)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "3", "nonsense", "[" * 100_000])
def test_a_text_that_is_not_json_or_no_object_is_an_error(text):
    with pytest.raises(PlanFormatError, match=r"not a complete JSON file|a plan is a JSON object"):
        Plan.from_json(text)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_truncated_file_is_an_error_wherever_it_ends(data):
    text = Plan.build("mpipe", 2, 1, 2).to_json().rstrip()
    length = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(PlanFormatError):
        Plan.from_json(text[:length])


def test_an_error_in_a_file_names_the_file(tmp_path):
    path = tmp_path / "broken.json"
    path.write_text("{")
    with pytest.raises(PlanFormatError, match=r"broken\.json: not a complete JSON file"):
        Plan.load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(PlanFormatError, match=r"broken\.json: a plan file is UTF-8 text"):
        Plan.load(path)


# ---- CSV ----


@settings(max_examples=80, deadline=None)
@given(seeds, st.booleans())
def test_the_orders_of_every_plan_without_a_block_survive_csv(seed, lowered):
    plan = random_plan(random.Random(seed), with_block=False)
    plan = plan.lowered() if lowered else plan
    found = from_csv(to_csv(plan))
    assert found.orders == plan.orders
    assert (found.shape.num_ranks, found.shape.num_micro_batches) == (
        plan.shape.num_ranks,
        plan.shape.num_micro_batches,
    )
    assert [found.shape.rank_of(s) for s in range(found.shape.num_stages)] == [
        plan.shape.rank_of(s) for s in range(plan.shape.num_stages)
    ]


def test_empty_cells_are_bubbles_and_are_skipped():
    plan = from_csv("0F0,,,0B0\n,1F0,1B0,\n")
    assert plan.orders == (actions("0F0 0B0"), actions("1F0 1B0"))
    assert plan.compute_only
    assert plan.shape == PipelineShape(2, 1, 1)


def test_a_v_is_told_from_the_stages_of_the_rows():
    plan = from_csv("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n")
    assert plan.shape == PipelineShape(2, 2, 1, "v")


@pytest.mark.parametrize("options", [{}, {"explicit_backward": True}, {"frozen": True}])
@pytest.mark.parametrize("p, v, m", [(1, 1, 3), (2, 1, 5), (4, 2, 3)])
def test_what_a_plan_says_of_its_block_is_told_from_its_actions(p, v, m, options):
    plan = Plan.build("mpipe", p, v, m, **options)
    found = from_csv(to_csv(plan))
    assert found.orders == plan.orders
    assert found.transpose.owners == plan.transpose.owners
    assert found.transpose.frozen == plan.transpose.frozen
    assert found.transpose.backward == "central"
    # With no micro-batch of rank 0's own behind the first P there is nothing to be explicit about.
    assert found.transpose.explicit_backward == (plan.transpose.explicit_backward and m > p)


def test_an_owner_backward_is_told_from_its_gradients_messages():
    plan = from_csv(
        "0BCAST_T,0RECV_TF0,0F0,0B0,0SEND_TB0,0REDUCE_T\n0BCAST_T,0TF0,0SEND_TF0,1F0,1B0,0RECV_TB0,0TB0,0REDUCE_T\n"
    )
    assert plan.transpose == Transpose((1,), backward="owner")


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "one row of actions per rank"),
        ("hello\n", "an action is <stage><OP><micro_batch>"),
        ("0B0\n", "found no forward in it"),
        ("0F0,2F0\n1F0\n", r"every rank holds as many stages \(ranks: 2, stages: 3\)"),
        ("1F0\n0F0\n", "neither in a loop nor in a V over 2 ranks"),
        ("0F999999999\n", r"every stage and micro-batch has an action \(stages: 1, micro-batches: 1000000000"),
        ("999999999F0\n", r"every stage and micro-batch has an action \(stages: 1000000000"),
        ('"' + "x" * 200_000, "not a CSV file"),
    ],
)
def test_a_csv_file_that_is_no_plan_is_an_error(text, message):
    csv.field_size_limit(131_072)  # Python's own; frameworks raise it for the whole process
    with pytest.raises(PlanFormatError, match=message):
        from_csv(text)


UNBALANCED = "0F0,1F0,,,4F0,4B0,,,1B0,0B0\n,,2F0,3F0,,,3B0,2B0\n"


def test_stages_that_are_placed_otherwise_are_taken_where_asked_for(tmp_path):
    (tmp_path / "order.csv").write_text(UNBALANCED)
    with pytest.raises(PlanFormatError, match=r"every rank holds as many stages \(ranks: 2, stages: 5\)"):
        load(tmp_path / "order.csv")
    plan = load(tmp_path / "order.csv", any_placement=True).lowered()
    assert plan.shape == PipelineShape.of_stages([0, 0, 1, 1, 0], 1)
    verify(plan)
    # 5 stages in a row on a single micro-batch: nothing overlaps.
    assert simulate(plan, Costs(F=1, B=2)).step_time == 15
    assert from_csv(to_csv(plan), any_placement=True).orders == plan.orders


@pytest.mark.parametrize(
    "text, message",
    [
        ("0F0,1F0,1B0,0B0\n1F1,1B1\n", r"a stage lives on one rank \(stage 1 has forwards on ranks 0 and 1\)"),
        ("0F0,0B0\n2F0,2B0,1B0\n", r"every stage has a forward \(stages: 3, without one: \[1\]\)"),
        ("0F0,1F0,1B0,0B0\n\n2F0,2B0\n", r"every rank holds a stage \(ranks: 3, without one: \[1\]\)"),
    ],
)
def test_stages_without_a_place_are_an_error(text, message):
    with pytest.raises(PlanFormatError, match=message):
        from_csv(text, any_placement=True)


def test_the_orders_of_another_scheduler_are_read_as_they_are():
    # PyTorch writes its compute-only schedules with bubbles and, lowered, with these very names.
    text = "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n"
    plan = from_csv(text)
    assert plan.schedule == "custom" and not plan.compute_only
    assert plan.orders[0][1] == Action(0, Op.SEND_F, 0)
    assert to_csv(plan) == text
