"""Bad input on the command line: one line that names option, value and what is accepted, and exit status 2."""

import os
from pathlib import Path

import pytest
from command_line import SHAPE, run_in

from hyper_pp import Plan


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    return run_in(tmp_path, capsys, monkeypatch)


def error_of(result):
    """Return the text of the one line that bad input prints."""
    status, out, err = result
    assert (status, out) == (2, "")
    assert err.startswith("hyper-pp: error: ") and err.endswith("\n") and err.count("\n") == 1
    return err.removeprefix("hyper-pp: error: ").rstrip()


KNOWN = "gpipe, 1f1b, interleaved, interleaved_zb, zbv, mpipe, transpose"


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "a command is missing; commands: schedules, build, verify, simulate, show"),
        (["biuld"], "unknown command 'biuld'; commands: schedules, build"),
        (["--ranks"], "unrecognized arguments: --ranks"),
        (["build"], "the following arguments are required: NAME"),
        (["verify"], "the following arguments are required: FILE"),
        (["simulate"], "the following arguments are required: FILE or NAME"),
        (["verify", "a", "b"], "unrecognized arguments: b"),
        (["schedules", "--format", "json"], "unrecognized arguments: --format json"),
        (["build", "zigzag", *SHAPE], f"unknown schedule 'zigzag'; schedules: {KNOWN}"),
        (["build", "plan.json"], f"unknown schedule 'plan.json'; schedules: {KNOWN}"),
        (["show", "zigzag", *SHAPE], f"zigzag: no such file, and no schedule (schedules: {KNOWN}"),
        (["verify", "zigzag"], "zigzag: no such file"),
        (["verify", "."], ".: can't be read: Is a directory"),
        (["build", "gpipe", "--ranks", 2], "--micro-batches is missing: schedule gpipe needs an int of at least 1"),
        (["build", "gpipe", "--micro-batches", 2], "--ranks is missing: schedule gpipe needs an int of at least 1"),
        (["build", "gpipe", "--ranks", 0], "--ranks: must be an int of at least 1, in digits (got '0')"),
        (["build", "gpipe", "--ranks", -1], "--ranks: must be an int of at least 1, in digits (got '-1')"),
        (["build", "gpipe", "--ranks", "2.0"], "--ranks: must be an int of at least 1, in digits (got '2.0')"),
        (["build", "gpipe", "--ranks", "1_0"], "--ranks: must be an int of at least 1, in digits (got '1_0')"),
        (["build", "gpipe", "--ranks", "٢"], "--ranks: must be an int of at least 1, in digits (got '"),
        (["build", "gpipe", "--ranks", "9" * 5000], "--ranks: must be an int of at least 1, in digits (got '999"),
        (["build", "gpipe", "--ranks"], "--ranks: expected one argument"),
        (["build", "gpipe", *SHAPE, "--chunks", "x"], "--chunks: must be an int of at least 1, in digits (got 'x')"),
        (["build", "1f1b", *SHAPE, "--chunks", 2], "--chunks 2: 1f1b takes 1 only"),
        (["build", "mpipe", *SHAPE, "--num-layers", -1], "--num-layers: must be an int of at least 0, in digits"),
        (["build", "gpipe", *SHAPE, "--frozen"], "--frozen: gpipe doesn't take it (it takes: no options)"),
        (
            ["build", "interleaved", *SHAPE, "--num-layers", 0],
            "--num-layers 0: interleaved doesn't take it (it takes: --less-memory)",
        ),
        (["build", "mpipe", *SHAPE, "--owners", "inline"], "--owners inline: mpipe doesn't take it (it takes: --num-l"),
        (
            ["build", "mpipe", *SHAPE, "--backward", "owner"],
            "--backward owner: mpipe runs the preprocess backward centrally: backward must be central (got 'owner')",
        ),
        (["build", "mpipe", *SHAPE, "--backward", "both"], "--backward: invalid choice: 'both' (choose from "),
        (["build", "gpipe", "--ranks", 999, "--micro-batches", 9999], "--micro-batches 9999: ranks x chunks x micro-b"),
        (["build", "gpipe", *SHAPE, "-o", "plan.txt"], "-o plan.txt: the name must end in .json or .csv"),
        (["build", "gpipe", *SHAPE, "-o", "no/plan.csv"], "-o no/plan.csv: can't be written: No such file"),
        (["show", "gpipe", *SHAPE, "-o", "."], "-o .: can't be written: Is a directory"),
        (["show", "gpipe", *SHAPE, "--format", "png"], "--format: invalid choice: 'png' (choose from "),
        (["simulate", "gpipe", *SHAPE, "--format", "xml"], "--format: invalid choice: 'xml' (choose from "),
        (["simulate", "gpipe", *SHAPE, "--cost", "F"], "--cost F: costs are NAME=NUMBER pairs joined by commas"),
        (["simulate", "gpipe", *SHAPE, "--cost", "G=1"], "--cost G=1: costs are F, B, I, W, TF, TB, comm, collective"),
        (["simulate", "gpipe", *SHAPE, "--cost", "F=-1"], "--cost F=-1: cost F must be a finite number of at least 0"),
        (["simulate", "gpipe", *SHAPE, "--cost", "F=nan"], "--cost F=nan: cost F must be a finite number"),
        (["simulate", "gpipe", *SHAPE, "--cost", "F=inf"], "--cost F=inf: cost F must be a finite number"),
        (["build", "gpipe", *SHAPE, "--cost", "F=x"], "--cost F=x: cost F must be a number of at least 0 (got 'x')"),
        (["build", "gpipe", *SHAPE, "--cost", "F=1:2:3"], "--cost F=1:2:3: cost F holds one number per stage (stages:"),
        (["simulate", "gpipe", *SHAPE, "--cost", "F=1e308"], "--cost F=1e308: the costs are so large"),
        (["simulate", "gpipe", *SHAPE, "--cost", "F=1", "--cost", "F=2"], "--cost F=1,F=2: cost F is given twice"),
        (["build", "transpose", *SHAPE, "--cost", "F=1:2:3"], "--cost F=1:2:3: cost F holds one number per stage ("),
        (["build", "transpose", *SHAPE, "--cost", "F=1e308"], "--cost F=1e308: the costs are so large"),
        (
            ["build", "transpose", *SHAPE, "--explicit-backward"],
            "--explicit-backward: transpose doesn't take it (it takes: --num-layers, --frozen, --backward, "
            "--recompute, --max-live, --owners, --less-memory)",
        ),
        (
            ["build", "transpose", *SHAPE, "--backward", "central", "--recompute"],
            "--backward central: --recompute: recompute is for backward owner",
        ),
        (["build", "transpose", *SHAPE, "--max-live", 0], "--max-live: must be an int of at least 1"),
        (["build", "line\nbreak"], r"unknown schedule 'line\nbreak'; schedules: "),
        (["schedules", "line\nbreak"], r"unrecognized arguments: line\nbreak"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_that_names_option_value_and_what_is_accepted(run, words, message):
    assert error_of(run(*words)).startswith(message)


def test_options_of_schedules_are_refused_for_plan_files(run):
    run("build", "gpipe", *SHAPE, "-o", "plan.json")
    assert error_of(run("simulate", "plan.json", "--ranks", 2)) == (
        "--ranks 2: plan files hold this already; it is for schedules by name"
    )
    assert error_of(run("show", "plan.json", "--less-memory")).startswith("--less-memory: plan files hold this already")
    assert error_of(run("show", "plan.json", "--compute-only")).startswith("--compute-only: plan.json is a plan file")


@pytest.mark.parametrize("command", ["verify", "simulate", "show"])
@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "broken.json: not a complete JSON file"),
        (b'{"format":', "broken.json: not a complete JSON file"),
        (b"\xff", "broken.json: a plan file is UTF-8 text"),
        (b"[]", 'broken.json: a plan is a JSON object with "format": "hyper_pp.plan/1"'),
        (Plan.build("gpipe", 2, 1, 1).to_json().encode()[:-20], "broken.json: not a complete JSON file"),
        (
            Plan.build("gpipe", 2, 1, 1).to_json().replace("1F0", "1G0").encode(),
            "broken.json: unknown op G in action '1G0'",
        ),
    ],
)
def test_a_file_that_is_no_plan_is_bad_input(run, command, content, message):
    Path("broken.json").write_bytes(content)
    assert error_of(run(command, "broken.json")).startswith(message)


def test_an_unreadable_file_is_bad_input(run):
    if os.geteuid() == 0:
        # root may read everything; a loop of links nobody can.
        Path("plan.json").symlink_to("plan.json")
    else:
        Path("plan.json").touch(mode=0)
    assert error_of(run("verify", "plan.json")).startswith("plan.json: can't be read: ")
