"""What ranks must agree on before anything runs; plans of one's own; micro-batches that leave rounds uneven."""

import json
import tempfile
from pathlib import Path

from case_list import case, close
from mindspore.communication import get_group_size, get_rank
from small_models import batch, gradients_by_name, mean_square, one_process, residual_layers

from hyper_pp import Plan
from hyper_pp.actions import Action, Op
from hyper_pp.mindspore import PipelineCell
from hyper_pp.shape import PipelineShape


def pipeline(**options):
    """One layer per rank."""
    options = {"micro_size": 4, "schedule": "1f1b", **options}
    return PipelineCell(residual_layers(get_group_size()), mean_square, **options)


def refusal(build):
    """Return the text of the error that ``build`` raises."""
    try:
        build()
    except ValueError as error:
        return str(error)
    raise AssertionError("nothing was refused")


@case
def a_job_of_another_size_than_the_plan_is_refused_on_every_rank():
    text = refusal(lambda: pipeline(schedule=Plan.build("1f1b", 3, 1, 4)))
    assert f"the job has P={get_group_size()} V=1 M=4" in text, text


@case
def a_plan_whose_order_deadlocks_or_sits_on_the_wrong_rank_is_refused_on_every_rank():
    def edited(edit):
        data = json.loads(Plan.build("1f1b", get_group_size(), 1, 4).to_json())
        edit(data["orders"])
        return refusal(lambda: pipeline(schedule=Plan.from_json(json.dumps(data))))

    def cross(orders):  # rank 0 sends micro-batch 1 before rank 1, which waits for micro-batch 0, can take it
        first, second = orders[0].index("0SEND_F0"), orders[0].index("0SEND_F1")
        orders[0].insert(first, orders[0].pop(second))
        orders[0].insert(first, orders[0].pop(orders[0].index("0F1")))

    def move(orders):
        orders[1].insert(0, orders[0].pop(0))

    assert "deadlock" in (text := edited(cross)), text
    assert "0F0" in (text := edited(move)), text
    assert "rank 1" in text, text


@case
def ranks_that_were_given_different_plans_are_told():
    schedule = "gpipe" if get_rank() == 1 else "1f1b"
    text = refusal(lambda: pipeline(schedule=schedule))
    assert "all ranks need the same arguments" in text, text
    plan = Plan.build(schedule, get_group_size(), 1, 4)
    text = refusal(lambda: pipeline(schedule=plan))
    assert "all ranks need the same plan (rank 0: 1f1b of " in text, text
    assert "rank 1: gpipe of " in text, text


@case
def a_parameter_on_two_ranks_is_refused_by_name():
    layers = residual_layers(get_group_size())
    layers[1].weight = layers[0].weight
    text = refusal(lambda: PipelineCell(layers, mean_square, micro_size=4, schedule="1f1b"))
    assert "is shared by stage 0 on rank 0 and stage 1 on rank 1" in text, text


def is_as_one_process(schedule, num_chunks, count):
    inputs, target = batch(11)
    expected_loss, expected = one_process(count, inputs, target)
    layers = residual_layers(count)
    net = PipelineCell(layers, mean_square, micro_size=4, schedule=schedule, num_chunks=num_chunks)
    close(net(inputs, target), expected_loss)
    gradients = gradients_by_name(net)
    for name, gradient in gradients.items():
        close(gradient, expected[int(name.split(".")[0])])
    return {int(name.split(".")[0]) for name in gradients}


@case
def a_plan_file_places_the_stages():
    num_ranks = get_group_size()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("zbv.json", "zbv.csv"):
            path = Path(folder) / name
            Plan.build("zbv", num_ranks, 2, 4).save(path)
            held = is_as_one_process(path, 2, 2 * num_ranks)
            assert held == {get_rank(), 2 * num_ranks - 1 - get_rank()}, held


@case
def stages_live_where_a_plan_of_ones_own_has_them():
    homes = [0, *range(get_group_size()), 0]
    shape = PipelineShape.of_stages(homes, 4)
    orders = []
    for rank in range(get_group_size()):
        forwards = [Action(stage, Op.F, m) for stage in shape.stages_of(rank) for m in range(4)]
        orders.append((*forwards, *(action._replace(op=Op.B) for action in reversed(forwards))))
    held = is_as_one_process(Plan("own", shape, tuple(orders), compute_only=True), 1, len(homes))
    assert held == {stage for stage, home in enumerate(homes) if home == get_rank()}, held


@case
def any_number_of_micro_batches_is_right():
    count = get_group_size() + 1
    inputs, target = batch(11)
    expected_loss, expected = one_process(count, inputs, target)
    for micro_size in (5, 10, 11):
        for schedule in ("gpipe", "1f1b", "interleaved", "mpipe"):
            net = PipelineCell(
                residual_layers(count),
                mean_square,
                micro_size=micro_size,
                schedule=schedule,
                num_transpose_layers=1 if schedule == "mpipe" else 0,
            )
            close(net(inputs, target), expected_loss)
            for name, gradient in gradients_by_name(net).items():
                close(gradient, expected[int(name.split(".")[0])])
