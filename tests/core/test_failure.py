"""The side channel that ends all ranks: real processes, real sockets."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PRELUDE = """
import json, os, signal, sys, threading, time
from pathlib import Path
from hyper_pp.failure import FailureChannel
rank, num_ranks, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])

def exchange(value):
    (folder / f"{rank}.tmp").write_text(json.dumps(value))
    (folder / f"{rank}.tmp").rename(folder / f"{rank}.json")
    files = [folder / f"{other}.json" for other in range(num_ranks)]
    while not all(file.exists() for file in files):
        time.sleep(0.01)
    return [json.loads(file.read_text()) for file in files]

channel = FailureChannel(rank, num_ranks, exchange, host="127.0.0.1")
def wait_for_ever():  # as the native receives do: no Python signal handler can interrupt it
    threading.Event().wait()
"""


class Job:
    def __init__(self, folder, body, num_ranks):
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.started = time.monotonic()
        self.ranks = [
            subprocess.Popen(
                [sys.executable, "-c", PRELUDE + body, str(rank), str(num_ranks), str(folder)],
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(num_ranks)
        ]

    def finish(self, timeout=20):
        results = []
        try:
            for process in self.ranks:
                out, err = process.communicate(timeout=max(0.1, self.started + timeout - time.monotonic()))
                results.append((process.returncode, out, err))
        finally:
            for process in self.ranks:
                if process.poll() is None:
                    process.kill()
        self.seconds = time.monotonic() - self.started
        return results


@pytest.fixture
def run(tmp_path):
    jobs = []

    def start(body, num_ranks=3):
        jobs.append(Job(tmp_path, body, num_ranks))
        return jobs[-1]

    yield start
    for job in jobs:
        for process in job.ranks:
            if process.poll() is None:
                process.kill()
                process.wait()


def test_no_thread_is_left_when_the_interpreter_is_taken_down(run):
    body = """
import atexit
atexit.unregister(channel._at_exit)
atexit.register(lambda: print([thread.name for thread in threading.enumerate()]))  # after what is registered later
atexit.register(channel._at_exit)
"""
    results = run(body).finish()
    assert results == [(0, "['MainThread']\n", "")] * 3


@pytest.mark.parametrize("failing", [0, 2])
def test_an_aborting_rank_ends_all_others_with_its_reason(run, failing):
    body = f"""
if rank == {failing}:
    channel.abort("rank {failing}: 5F3 (action 17 of 96, step 41) failed: ValueError: no")
    raise SystemExit("own traceback")
wait_for_ever()
"""
    results = run(body).finish()
    assert [code for code, _, _ in results] == [1, 1, 1]
    for rank, (_, _, err) in enumerate(results):
        if rank == failing:
            assert err == "own traceback\n"
        else:
            assert err == (
                f"hyper_pp: rank {rank} ends, first cause: rank {failing}: 5F3 (action 17 of 96, step 41) failed: "
                "ValueError: no\n"
            )


def test_all_ranks_end_within_seconds_of_the_abort(run):
    body = """
if rank == 1:
    channel.abort("reason")
    print(time.time())
wait_for_ever()
"""
    job = run(body)
    results = job.finish()
    assert [code for code, _, _ in results] == [1, 1, 1]
    assert time.time() - float(results[1][1]) < 10.0


def test_an_uncaught_exception_ends_all_ranks(run):
    body = """
if rank == 1:
    raise KeyError("nowhere")
wait_for_ever()
"""
    results = run(body).finish()
    assert [code for code, _, _ in results] == [1, 1, 1]
    assert "Traceback" in results[1][2]
    for rank in (0, 2):
        assert results[rank][2] == f"hyper_pp: rank {rank} ends, first cause: rank 1: KeyError: 'nowhere'\n"


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_is_reported(run, victim):
    results = run(f"""
if rank == {victim}:
    os.kill(os.getpid(), signal.SIGKILL)
wait_for_ever()
""").finish()
    assert [code for code, _, _ in results] == [-signal.SIGKILL if rank == victim else 1 for rank in range(3)]
    for rank in {0, 1, 2} - {victim}:
        assert results[rank][2] == f"hyper_pp: rank {rank} ends, first cause: rank {victim} ended without a word\n"


def test_ranks_that_finish_at_different_times_end_with_zero(run):
    results = run("time.sleep(rank * 0.4)").finish()
    assert results == [(0, "", "")] * 3


def test_rank_zero_may_finish_last(run):
    assert run("time.sleep(1.0 - rank * 0.4)").finish() == [(0, "", "")] * 3


def test_a_rank_that_ends_too_early_is_found_by_the_one_that_waits_for_it(run):
    results = run("""
if rank == 1:
    channel.count(0, to_it=3)
else:
    if rank == 0:
        channel.count(1, from_it=4)
    wait_for_ever()
""").finish()
    assert [code for code, _, _ in results] == [1, 1, 1]
    assert results[2][2] == (
        "hyper_pp: rank 2 ends, first cause: rank 1 ended its script, while rank 0 waits for transfer 4 from it: did "
        "rank 1 make fewer steps, with a shorter data set?\n"
    )


def test_a_transfer_started_after_the_goodbye_is_found_too(run):
    results = run("""
if rank == 2:
    channel.count(1, from_it=1)
elif rank == 1:
    channel.count(2, to_it=1)
    time.sleep(1.0)
    channel.count(2, to_it=1)
    wait_for_ever()
else:
    wait_for_ever()
""").finish()
    assert [code for code, _, _ in results] == [1, 1, 1]
    assert "rank 2 ended its script, while rank 1 waits for transfer 2 to it" in results[0][2]


def test_equal_counts_are_no_failure(run):
    results = run("""
if rank == 0:
    time.sleep(0.6)
    channel.count(1, to_it=2, from_it=1)
if rank == 1:
    channel.count(0, to_it=1, from_it=2)
""").finish()
    assert results == [(0, "", "")] * 3


def test_the_first_of_two_causes_wins_everywhere(run):
    results = run("""
if rank == 1:
    channel.abort("first")
    time.sleep(0.5)
elif rank == 2:
    while channel._cause is None: time.sleep(0.001)
wait_for_ever()
""").finish()
    assert "first cause: first" in results[0][2]
    assert "first cause: first" in results[2][2]


def test_a_forked_worker_neither_keeps_its_parents_connection_nor_speaks_for_it(run):
    results = run("""
if rank == 1:
    if os.fork() == 0:
        time.sleep(3)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)
wait_for_ever()
""").finish(timeout=10)
    assert results[0][2] == "hyper_pp: rank 0 ends, first cause: rank 1 ended without a word\n"
