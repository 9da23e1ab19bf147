"""List scheduling of chains on machines: gaps, both directions, and that improvement never makes a schedule longer."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from hyper_pp.schedules.list_scheduling import JobShop, backwards, forwards, improve, made_consistent


def shop(jobs, lags=None, waits=(), sequence=()):
    """A job shop from rows of (machine, duration), all of one length."""
    operations = [operation for job in jobs for operation in job]
    wait_for, holds_up, follows, is_followed = ([-1] * len(operations) for _ in range(4))
    for before, after in waits:
        wait_for[after], holds_up[before] = before, after
    for before, after in sequence:
        follows[after], is_followed[before] = before, after
    return JobShop(
        length=len(jobs[0]),
        num_machines=max(machine for machine, _ in operations) + 1,
        machine=[machine for machine, _ in operations],
        duration=[duration for _, duration in operations],
        lag=[0] * len(operations) if lags is None else lags,
        wait_for=wait_for,
        holds_up=holds_up,
        follows=follows,
        is_followed=is_followed,
    )


def test_an_operation_of_low_priority_fills_a_gap_that_is_long_enough():
    # Machine 1 waits 3 for the first job's second operation: the second job's fits in front, exactly.
    found = forwards(shop([[(0, 3), (1, 2)], [(1, 3), (0, 1)]]), [0, 1, 2, 3])
    assert (found.starts, found.ends, found.span) == ([0, 3, 0, 3], [3, 5, 3, 4], 5)


def test_an_operation_that_does_not_fit_a_gap_comes_after_it():
    found = forwards(shop([[(0, 3), (1, 2)], [(1, 4), (0, 1)]]), [0, 1, 2, 3])
    assert (found.starts, found.span) == ([0, 3, 5, 9], 10)


def test_lags_and_waits_hold_operations_up():
    assert forwards(shop([[(0, 1), (1, 1)]], lags=[0, 5]), [0, 1]).starts == [0, 6]
    assert forwards(shop([[(0, 2), (1, 1)], [(1, 1), (0, 1)]], waits=[(0, 2)]), [0, 1, 2, 3]).starts == [0, 2, 3, 4]


def test_an_operation_that_follows_another_does_not_pass_it():
    jobs = [[(0, 1), (1, 3)], [(0, 1), (0, 1)]]
    assert forwards(shop(jobs), [2, 2, 1, 1]).starts == [2, 3, 0, 1]
    assert forwards(shop(jobs, sequence=[(0, 2)]), [1, 2, 1, 1]).starts == [0, 1, 1, 2]


def test_backwards_counts_from_the_end():
    jobs = shop([[(0, 3), (1, 2)], [(1, 3), (0, 1)]])
    found = backwards(jobs, forwards(jobs, [0, 1, 2, 3]).ends)
    # From the end: the first job's second operation takes 2, its first 3; the second job ends beside them.
    assert (found.starts, found.ends, found.span) == ([2, 0, 2, 0], [5, 2, 5, 1], 5)


def test_priorities_are_lowered_to_those_of_what_comes_later():
    jobs = shop([[(0, 1), (1, 1)], [(0, 1), (1, 1)]], waits=[(1, 2)])
    assert made_consistent(jobs, [9, 7, 5, 8]) == [5, 5, 5, 8]


def test_improvement_ends_at_the_bound():
    jobs = shop([[(0, 3), (1, 2)], [(1, 3), (0, 1)]])
    assert improve(jobs, [0, 1, 2, 3], most_rounds=8, bound=5)[1] == 1
    assert improve(jobs, [0, 1, 2, 3], most_rounds=8)[1] == 5  # two rounds without gain


@st.composite
def shops(draw, shortest):
    num_jobs, length, num_machines = draw(st.integers(1, 6)), draw(st.integers(1, 5)), draw(st.integers(1, 3))
    operation = st.tuples(st.integers(0, num_machines - 1), st.integers(shortest, 4))
    jobs = [[draw(operation) for _ in range(length)] for _ in range(num_jobs)]
    lags = [draw(st.sampled_from([0, 0, 1])) if op % length else 0 for op in range(num_jobs * length)]
    first, last = draw(st.integers(0, length - 1)), draw(st.integers(0, length - 1))
    waits = [(job * length + last, (job + 1) * length + first) for job in range(num_jobs - 1)]
    sequence = []
    if draw(st.booleans()):
        # The same operation of all jobs, on one machine.
        machine, _ = jobs[0][first]
        for job in jobs:
            job[first] = machine, job[first][1]
        sequence = [(op, op + length) for op in range(first, (num_jobs - 1) * length, length)]
    priority = draw(st.lists(st.integers(0, 20), min_size=len(lags), max_size=len(lags)))
    return shop(jobs, lags, waits if draw(st.booleans()) else [], sequence), priority


@settings(max_examples=100, deadline=None)
@given(shops(shortest=0))
def test_schedules_keep_to_all_rules(case):
    jobs, priority = case
    found, _ = improve(jobs, made_consistent(jobs, priority), most_rounds=2)
    for op in range(jobs.size):
        assert found.ends[op] == found.starts[op] + jobs.duration[op] <= found.span
        if op % jobs.length:
            assert found.starts[op] >= found.ends[op - 1] + jobs.lag[op]
        for other in (jobs.wait_for[op], jobs.follows[op]):
            assert other < 0 or found.starts[op] >= found.ends[other]
    for machine in range(jobs.num_machines):
        own = sorted((found.starts[op], found.ends[op]) for op in range(jobs.size) if jobs.machine[op] == machine)
        assert all(end <= start for (_, end), (start, _) in pairwise(own))


@settings(max_examples=100, deadline=None)
@given(shops(shortest=1))
def test_neither_direction_makes_a_schedule_longer(case):
    jobs, priority = case
    found = forwards(jobs, made_consistent(jobs, priority))
    for _ in range(3):
        late = backwards(jobs, found.ends)
        assert late.span <= found.span
        found = forwards(jobs, [-end for end in late.ends])
        assert found.span <= late.span
