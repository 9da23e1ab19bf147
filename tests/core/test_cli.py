"""The command line: what it prints where, and its exit status."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import SHAPE, run_in

from hyper_pp import Costs, Plan, simulate

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    return run_in(tmp_path, capsys, monkeypatch)


# ---- commands ----


def test_schedules_lists_every_schedule_with_a_line(run):
    status, out, err = run("schedules")
    assert (status, err) == (0, "")
    names = [line.split()[0] for line in out.splitlines()]
    assert names[:7] == ["gpipe", "1f1b", "interleaved", "interleaved_zb", "zbv", "mpipe", "transpose"]
    assert out.splitlines()[0] == "gpipe           F-then-B: all forwards, then all backwards"


def test_build_prints_a_lowered_plan_as_json(run):
    status, out, err = run("build", "interleaved", *SHAPE, "--chunks", 2)
    assert (status, err) == (0, "")
    assert Plan.from_json(out) == Plan.build("interleaved", 2, 2, 3)


def test_build_compute_only_leaves_out_the_bodys_transfers(run):
    _, out, _ = run("build", "gpipe", *SHAPE, "--compute-only")
    assert Plan.from_json(out) == Plan.build("gpipe", 2, 1, 3, compute_only=True)


@pytest.mark.parametrize("name", ["plan.json", "plan.csv", "PLAN.CSV"])
def test_build_writes_the_form_that_the_files_name_ends_in(run, name):
    status, out, err = run("build", "gpipe", *SHAPE, "-o", name)
    assert (status, out, err) == (0, f"{name}: gpipe   P=2 V=1 M=3   24 actions\n", "")
    assert Plan.load(name).orders == Plan.build("gpipe", 2, 1, 3).orders


@pytest.mark.parametrize(
    "words, options",
    [
        (["--frozen"], {"frozen": True}),
        (["--explicit-backward"], {"explicit_backward": True}),
        (["--num-layers", 0], {"num_layers": 0}),
        (["--num-layers", 2, "--backward", "central", "--less-memory"], {"num_layers": 2, "less_memory": True}),
    ],
)
def test_build_hands_the_schedules_options_on(run, words, options):
    _, out, _ = run("build", "mpipe", *SHAPE, *words)
    assert Plan.from_json(out) == Plan.build("mpipe", 2, 1, 3, **options)


@pytest.mark.parametrize(
    "words, options",
    [
        (["--backward", "central"], {"backward": "central"}),
        (["--recompute", "--max-live", 1], {"recompute": True, "max_live": 1}),
        (["--owners", "round_robin", "--num-layers", 2], {"owners": "round_robin", "num_layers": 2}),
        (["--owners", "inline", "--less-memory"], {"owners": "inline", "less_memory": True}),
        (["--cost", "F=1:3,B=2,TF=.5", "--cost", "comm=.1"], {"costs": Costs(F=(1, 3), B=2, TF=0.5, comm=0.1)}),
    ],
)
def test_build_hands_the_options_of_transpose_on(run, words, options):
    _, out, _ = run("build", "transpose", *SHAPE, *words)
    assert Plan.from_json(out) == Plan.build("transpose", 2, 1, 3, **options)


def test_verify_says_in_a_line_that_a_plan_holds(run):
    run("build", "1f1b", *SHAPE, "-o", "plan.json")
    assert run("verify", "plan.json") == (
        0,
        "plan.json: holds   1f1b   P=2 V=1 M=3   24 actions   peak activations 2 1\n",
        "",
    )


def test_verify_shows_the_fault_of_a_plan_that_does_not_hold(run):
    text = Plan.build("1f1b", 2, 1, 3).to_json().replace('"1SEND_B0",', "")
    Path("plan.json").write_text(text)
    status, out, err = run("verify", "plan.json")
    assert (status, err) == (1, "")
    assert out.splitlines()[0] == (
        "plan.json: 1SEND_B0 is missing in rank 1's order: 0RECV_B0 on rank 0 has no partner"
    )
    assert [line.split(",")[0] for line in out.splitlines()[1:]] == ["rank 0", "rank 1"]


@pytest.mark.parametrize("command", ["simulate", "show"])
def test_a_plan_that_does_not_hold_is_neither_priced_nor_drawn(run, command):
    Path("plan.csv").write_text("0F0,0B0,0SEND_F0,0RECV_B0\n1RECV_F0,1F0,1B0,1SEND_B0\n")
    status, out, err = run(command, "plan.csv")
    assert (status, out) == (1, "")
    assert err.splitlines()[0].startswith("hyper-pp: error: plan.csv: 0B0 comes before 0RECV_B0, which it needs")
    assert "[0B0]" in err.splitlines()[1]


def test_simulate_prints_the_numbers_as_text(run):
    assert run("simulate", "1f1b", *SHAPE) == (
        0,
        "1f1b   P=2 V=1 M=3\n"
        "step time 12   ideal 9   efficiency 75.0%   bubble 25.0%   lower bound 12 (ratio 1.000)\n"
        "costs F=1 B=2\n"
        "rank   busy   idle   peak activations   peak preprocess graphs\n"
        "   0      9      3                  2                        0\n"
        "   1      9      3                  1                        0\n",
        "",
    )


def test_simulate_prints_one_input_as_a_json_object(run):
    _, out, _ = run("simulate", "1f1b", "--ranks", 1, "--micro-batches", 2, "--format", "json")
    assert json.loads(out) == {
        "schedule": "1f1b",
        "step_time": 6,
        "ideal": 6,
        "efficiency": 1,
        "lower_bound": 6,
        "ratio": 1,
        "bubble_ratio": 0,
        "ranks": [{"busy": 6, "idle": 0, "peak_activations": 1, "peak_preprocess": 0}],
    }


def test_simulate_prints_several_inputs_as_a_json_list(run):
    run("build", "gpipe", *SHAPE, "-o", "plan.json")
    _, out, _ = run("simulate", "plan.json", "1f1b", *SHAPE, "--format", "json")
    assert [(item["schedule"], item["ranks"][0]["peak_activations"]) for item in json.loads(out)] == [
        ("gpipe", 3),
        ("1f1b", 2),
    ]


def test_simulate_takes_every_cost(run):
    cost = "F=1,B=2,I=3,W=4,TF=.5,TB=1,comm=.25,collective=.125"
    _, out, _ = run("simulate", "mpipe", *SHAPE, "--cost", cost, "--format", "json")
    (status, again, _) = run(
        "simulate", "mpipe", *SHAPE, "--cost", "F=1,B=2,I=3,W=4,TF=.5", "--cost", "TB=1,comm=.25,collective=.125",
        "--format", "json",
    )  # fmt: skip
    # The longest path: BCAST_T to .125, TF0 .625, 0F0 1.625, message 1.875, 1F0 2.875, 1B0 4.875, message 5.125, and
    # then on rank 0: 0B0 7.125, TB0 with its recompute 8.625, 0B1 10.625, TB1 12.125, 0B2 with the block's own 15.125.
    assert json.loads(out)["step_time"] == 15.125
    assert (status, out) == (0, again)


def test_an_option_of_one_of_several_schedules_is_no_error(run):
    status, out, _ = run("simulate", "interleaved", "mpipe", *SHAPE, "--frozen", "--format", "json")
    assert status == 0
    assert [item["schedule"] for item in json.loads(out)] == ["interleaved", "mpipe"]


def test_inputs_and_options_may_come_in_any_order(run):
    first = run("simulate", "gpipe", "--ranks", 2, "1f1b", "--micro-batches", 3)
    assert first == run("simulate", "--micro-batches", 3, "--ranks", 2, "gpipe", "1f1b")
    assert first[0] == 0


def test_show_draws_a_timetable(run):
    assert run("show", "1f1b", *SHAPE) == (
        0,
        "1f1b   P=2 V=1 M=3\n"
        "step time 12   ideal 9   efficiency 75.0%   bubble 25.0%   lower bound 12 (ratio 1.000)\n"
        "peak activations 2 1\n"
        "costs F=1 B=2\n"
        "time    0       2       4       6       8       10\n"
        "rank 0  0F0 0F1 .   .   0B0---- 0F2 0B1---- .   0B2----\n"
        "rank 1  .   1F0 1B0---- 1F1 1B1---- 1F2 1B2---- .   .\n",
        "",
    )


def test_show_writes_to_a_file(run):
    _, shown, _ = run("show", "gpipe", "1f1b", *SHAPE)
    assert run("show", "gpipe", "1f1b", *SHAPE, "-o", "out.txt") == (0, "", "")
    assert Path("out.txt").read_text() == shown


@pytest.mark.parametrize(("name", "start"), [
    ("a.svg", "<svg "), ("a.html", "<!DOCTYPE html>"), ("a.JSON", '{"displayTimeUnit": "ms"'), ("a.txt", "gpipe   P="),
])  # fmt: skip
def test_show_takes_the_format_that_the_files_name_tells_unless_it_is_given(run, name, start):
    assert run("show", "gpipe", "1f1b", *SHAPE, "-o", name) == (0, "", "")
    assert Path(name).read_text().startswith(start)
    assert run("show", "gpipe", *SHAPE, "-o", name, "--format", "perfetto") == (0, "", "")
    assert Path(name).read_text().startswith('{"displayTimeUnit": "ms"')


@pytest.mark.parametrize("form", ["svg", "html", "perfetto"])
def test_show_prints_pictures_of_several_plans(run, form):
    status, out, err = run("show", "gpipe", "1f1b", *SHAPE, "--format", form)
    assert (status, err) == (0, "")
    assert out.isascii()
    assert run("show", "gpipe", "1f1b", *SHAPE, "--format", form, "-o", "out") == (0, "", "")
    assert Path("out").read_text() == out
    assert "gpipe" in out and "1f1b" in out


@pytest.mark.parametrize("p", [1, 3])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "mpipe"])
def test_what_was_built_verifies_simulates_and_shows(run, schedule, p):
    for name in ("plan.json", "plan.csv"):
        assert run("build", schedule, "--ranks", p, "--micro-batches", 5, "-o", name)[0] == 0
        assert run("verify", name)[0] == 0
        status, out, _ = run("simulate", name, "--format", "json")
        assert json.loads(out)["step_time"] == simulate(Plan.build(schedule, p, 1, 5)).step_time
        assert run("show", name)[0] == status == 0


def test_help_names_the_commands(run):
    status, out, err = run("--help")
    assert (status, err) == (0, "")
    for command in ("schedules", "build", "verify", "simulate", "show"):
        assert f"\n  {command}" in out
        assert run(command, "--help")[0] == 0
    assert run("--version") == (0, "hyper-pp 0.1.0\n", "")


# ---- as a process ----


def process(*words, **options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=60, env=environment, **options
    )


def test_the_package_runs_as_a_module():
    result = process("-m", "hyper_pp", "schedules")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("gpipe ")
    result = process("-m", "hyper_pp", "nonsense")
    assert result.returncode == 2
    assert result.stderr == (
        "hyper-pp: error: unknown command 'nonsense'; commands: schedules, build, verify, simulate, show\n"
    )


def test_importing_the_core_and_running_commands_loads_no_framework():
    result = process(
        "-c",
        "import sys, hyper_pp, hyper_pp.engine\n"
        "from hyper_pp.cli import main\n"
        "assert main(['show', 'mpipe', '--ranks', '2', '--micro-batches', '3']) == 0\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(loaded & {'numpy', 'mindspore', 'torch', 'torch_npu'}), 'hyper_pp' in loaded)",
    )
    assert result.stderr == ""
    assert result.stdout.splitlines()[-1] == "[] True"


def test_a_reader_that_stops_early_is_no_error():
    command = f"{sys.executable} -m hyper_pp show gpipe --ranks 8 --micro-batches 400 | head -1"
    result = process("-c", f"import subprocess; print(subprocess.getoutput({command!r}))")
    assert result.stdout == "gpipe   P=8 V=1 M=400\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_an_error_in_one_line():
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "hyper_pp", "schedules"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    assert (result.returncode, result.stderr) == (
        2,
        "hyper-pp: error: can't write to stdout: No space left on device\n",
    )


def test_names_that_the_terminals_encoding_lacks_are_escaped(tmp_path):
    plan = tmp_path / "plän.json"
    Plan.build("gpipe", 1, 1, 1).save(plan)
    result = subprocess.run(
        [sys.executable, "-m", "hyper_pp", "verify", plan.name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"},
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(r"pl\xe4n.json: holds   gpipe")
