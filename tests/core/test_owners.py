"""Which rank owns which micro-batch."""

import random
from itertools import product

import pytest

from hyper_pp import Plan, balanced_owners, owned_micro_batches


@pytest.mark.parametrize(
    "num_ranks, num_micro_batches, owners, expected",
    [
        (3, 7, "round_robin", [(0, 3, 6), (1, 4), (2, 5)]),
        (4, 2, "round_robin", [(0,), (1,), (), ()]),
        (3, 7, "mpipe", [(0, 3, 4, 5, 6), (1,), (2,)]),
        (4, 2, "mpipe", [(0,), (1,), (), ()]),
        (2, 3, "inline", [(0, 1, 2), ()]),
        (2, 4, [1, 0, 1, 1], [(1,), (0, 2, 3)]),
        (2, 3, (0, 0, 0), [(0, 1, 2), ()]),
        (1, 2, "round_robin", [(0, 1)]),
    ],
)
def test_each_rank_owns_its_part(num_ranks, num_micro_batches, owners, expected):
    found = [owned_micro_batches(num_ranks, num_micro_batches, rank, owners) for rank in range(num_ranks)]
    assert found == expected


def test_round_robin_is_the_default():
    assert owned_micro_batches(2, 5, 1) == (1, 3)


@pytest.mark.parametrize("num_ranks, num_micro_batches", list(product((1, 2, 4, 5), (1, 3, 4, 8))))
@pytest.mark.parametrize("name, options", [
    ("mpipe", {}),
    ("mpipe", {"num_layers": 0}),
    ("transpose", {}),
    ("transpose", {"num_layers": 0, "owners": "round_robin"}),
    ("transpose", {"backward": "central", "owners": "inline"}),
    ("interleaved", {}),
])  # fmt: skip
def test_a_plans_owners_are_those_whose_ranks_run_the_first_forward(num_ranks, num_micro_batches, name, options):
    plan = Plan.build(name, num_ranks, 1, num_micro_batches, **options)
    first = "0F" if plan.transpose is None else "0TF"
    for rank, order in enumerate(plan.orders):
        runs = {m for m in range(num_micro_batches) if f"{first}{m}" in map(str, order)}
        owned = set(owned_micro_batches(num_ranks, num_micro_batches, rank, plan))
        if name == "mpipe" and plan.transpose.frozen and rank == 0:
            assert owned - runs == set(range(num_ranks, num_micro_batches))  # run unrecorded inside 0F
        else:
            assert owned == runs


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((0, 1, 0), r"num_ranks must be at least 1 \(got 0\)"),
        ((1, 0, 0), r"num_micro_batches must be at least 1 \(got 0\)"),
        ((2, 4, 2), r"rank must be below num_ranks \(got rank 2 of 2 ranks\)"),
        ((2, 4, -1), r"rank must be at least 0 \(got -1\)"),
        ((2, 4, 0, "spread"), r"owners must be round_robin, mpipe, inline, .* or a plan \(got 'spread'\)"),
        ((2, 4, 0, [0, 1]), r"one rank per micro-batch \(micro-batches: 4, owners: 2\)"),
        ((2, 2, 0, [0, 2]), r"owners are ranks from 0 to 1 \(got 2\)"),
        ((2, 4, 0, Plan.build("mpipe", 2, 1, 3)), r"the plan is for P=2 M=3 \(asked for P=2 M=4\)"),
    ],
)
def test_what_is_outside_the_pipeline_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        owned_micro_batches(*arguments)


def test_a_rank_is_an_int():
    with pytest.raises(TypeError, match=r"rank must be an int \(got '0'\)"):
        owned_micro_batches(2, 4, "0")


# ---------------------------------------------------------------------------------------------------------- balanced


@pytest.mark.parametrize(
    "costs, num_ranks, expected",
    [
        ([5, 5, 5, 5, 5], 2, (0, 1, 0, 1, 0)),
        ([9, 7, 6, 5, 4, 3], 3, (0, 1, 2, 2, 1, 0)),
        ([1, 1, 1, 8], 2, (1, 1, 1, 0)),
        ([0, 0, 0, 0], 2, (0, 1, 0, 1)),
        ([2.5, 0, 0, 0], 2, (0, 1, 1, 1)),
        ([3], 4, (0,)),
        ([3, 2], 1, (0, 0)),
    ],
)
def test_the_largest_cost_goes_first_to_whoever_has_least(costs, num_ranks, expected):
    assert balanced_owners(costs, num_ranks) == expected


def test_no_rank_has_more_than_four_thirds_of_the_least_possible():
    numbers = random.Random(4)
    for _ in range(40):
        num_ranks, costs = numbers.choice([2, 3]), [numbers.randint(0, 30) for _ in range(6)]
        least = min(
            max(sum(cost for cost, owner in zip(costs, owners) if owner == rank) for rank in range(num_ranks))
            for owners in product(range(num_ranks), repeat=6)
        )
        owners = balanced_owners(costs, num_ranks)
        loads = [sum(cost for cost, owner in zip(costs, owners) if owner == rank) for rank in range(num_ranks)]
        assert max(loads) <= (4 / 3 - 1 / (3 * num_ranks)) * least + 1e-9


def test_balanced_owners_build_a_plan():
    plan = Plan.build("transpose", 2, 1, 4, owners=balanced_owners([8, 4, 2, 1], 2))
    assert plan.transpose.owners == (0, 1, 1, 1)


@pytest.mark.parametrize(
    "costs, num_ranks, error, message",
    [
        ([], 2, ValueError, r"costs must hold one number per micro-batch \(got none\)"),
        ([1, -2], 2, ValueError, r"costs must be finite numbers of at least 0 \(got -2 for micro-batch 1\)"),
        ([float("nan")], 2, ValueError, r"\(got nan for micro-batch 0\)"),
        (["1"], 2, TypeError, r"costs must be numbers \(got '1' for micro-batch 0\)"),
        ([1], 0, ValueError, r"num_ranks must be at least 1 \(got 0\)"),
    ],
)
def test_costs_that_are_none_are_refused(costs, num_ranks, error, message):
    with pytest.raises(error, match=message):
        balanced_owners(costs, num_ranks)
