"""The demo's parts: data, model, reference, comparison, launcher."""
import ast
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import text_data  # noqa: E402  the scripts' folder has to be on the path first


def script(*command, timeout=120):
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


# ------------------------------------------------------------------------------------------------------------- data


def test_files_are_read_one_after_the_other(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "b").write_bytes(b"\xff\x00")
    text = text_data.read_text([str(tmp_path / "a"), str(tmp_path / "b")])
    assert text.tobytes() == b"abc\xff\x00"


def test_the_default_text_is_the_standard_librarys_sources():
    text = text_data.read_text()
    assert len(text) == text_data.DEFAULT_BYTES
    assert b"\nimport " in text.tobytes()


def test_a_missing_file_and_an_empty_one_are_errors(tmp_path):
    with pytest.raises(ValueError, match=r"text file '.*nowhere' can't be read: No such file or directory"):
        text_data.read_text([str(tmp_path / "nowhere")])
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match=r"text files must hold at least one byte \(got 0 bytes in 1 files\)"):
        text_data.read_text([str(tmp_path / "empty")])


def test_a_batch_depends_on_seed_and_step_only_and_targets_are_the_next_bytes():
    text = np.arange(200, dtype=np.uint8)
    batches = text_data.Batches(text, 3, 5, seed=7)
    batches(0)
    inputs, targets = batches(4)
    again = text_data.Batches(text, 3, 5, seed=7)(4)
    assert np.array_equal(inputs, again[0]) and np.array_equal(targets, again[1])
    assert (inputs.shape, inputs.dtype) == ((3, 5), np.int32)
    assert np.array_equal(targets, inputs + 1)
    assert not np.array_equal(inputs, text_data.Batches(text, 3, 5, seed=8)(4)[0])


def test_a_text_of_one_window_gives_that_window_and_a_shorter_one_is_an_error():
    inputs, targets = text_data.Batches(np.array([9, 8, 7], np.uint8), 2, 2, seed=0)(0)
    assert inputs.tolist() == [[9, 8], [9, 8]] and targets.tolist() == [[8, 7], [8, 7]]
    with pytest.raises(ValueError, match=r"text must be longer than context \(got 2 bytes and context 2\)"):
        text_data.Batches(np.array([9, 8], np.uint8), 2, 2, seed=0)


# ------------------------------------------------------------------------------------------------------------ model


@pytest.fixture(scope="module")
def model():
    mindspore = pytest.importorskip("mindspore")
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE, device_target="CPU")
    import gpt_model

    return gpt_model


def test_the_demos_model_is_as_large_as_promised(model):
    config = model.GptConfig()
    layers = model.build_layers(config)
    assert (config.num_blocks, config.context, len(layers)) == (9, 128, 11)
    # 9 blocks of 12 h² + 7 h, two tables of 256 h, 128 positions, the last norm; h = 96
    assert model.count_parameters(layers) == 9 * (12 * 96 * 96 + 7 * 96) + (2 * 256 + 128 + 1) * 96 == 1_062_912


def test_a_layers_weights_do_not_depend_on_what_else_is_built(model):
    config = model.GptConfig(num_blocks=3, hidden=8, num_heads=2, context=4)
    whole = model.build_layers(config)[2].qkv.asnumpy()
    assert np.array_equal(whole, model.Block(config, 2).qkv.asnumpy())
    assert not np.array_equal(whole, model.Block(config, 1).qkv.asnumpy())


def test_logits_do_not_see_later_bytes_and_an_untrained_model_guesses_evenly(model):
    import mindspore as ms

    net = ms.nn.SequentialCell(model.build_layers(model.GptConfig(num_blocks=2, hidden=8, num_heads=2, context=6)))
    ids = np.array([[1, 2, 3, 4, 5, 6]], np.int32)
    changed = np.array([[1, 2, 3, 200, 5, 6]], np.int32)
    logits, other = (net(ms.Tensor(x)).asnumpy() for x in (ids, changed))
    assert np.array_equal(logits[:, :3], other[:, :3])
    assert not np.array_equal(logits[:, 3:], other[:, 3:])
    loss = float(model.next_byte_loss(ms.Tensor(logits), ms.Tensor(changed)).asnumpy())
    assert loss == pytest.approx(math.log(256), abs=0.02)


def test_the_loss_is_the_mean_negative_log_likelihood(model):
    import mindspore as ms

    logits = np.zeros((1, 2, 256), np.float32)
    logits[0, 0, 65] = math.log(255)  # probability 1/2
    loss = model.next_byte_loss(ms.Tensor(logits), ms.Tensor(np.array([[65, 3]], np.int32)))
    assert float(loss.asnumpy()) == pytest.approx((math.log(2) + math.log(256)) / 2, rel=1e-6)


def test_sizes_that_do_not_fit_are_errors(model):
    with pytest.raises(ValueError, match=r"num_blocks must be at least 1 \(got 0\)"):
        model.GptConfig(num_blocks=0)
    with pytest.raises(ValueError, match=r"hidden must be a multiple of num_heads \(got 10 and 4\)"):
        model.GptConfig(hidden=10)


# -------------------------------------------------------------------------------------------------------- reference


def test_the_reference_does_not_import_hyper_pp():
    seen, waiting = set(), ["train_gpt_single"]
    while waiting:
        name = waiting.pop()
        seen.add(name)
        for node in ast.walk(ast.parse((SCRIPTS / f"{name}.py").read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert not any(module.split(".")[0] == "hyper_pp" for module in names), name
            waiting += [module for module in names if (SCRIPTS / f"{module}.py").exists() and module not in seen]
    assert seen == {"train_gpt_single", "gpt_common", "gpt_model", "gpt_options", "text_data"}


def test_the_reference_trains_and_writes_its_losses(tmp_path):
    pytest.importorskip("mindspore")
    (tmp_path / "text").write_bytes(b"abcdefgh" * 20)
    sizes = ["--layers", "1", "--hidden", "16", "--heads", "2", "--context", "8", "--lr", "0.03", "--device", "CPU"]
    command = [sys.executable, SCRIPTS / "train_gpt_single.py", tmp_path / "text", *sizes, "--steps", "30"]
    result = script(*command, "--losses-out", tmp_path / "losses.json")
    assert result.returncode == 0, result.stderr
    losses = json.loads((tmp_path / "losses.json").read_text())["losses"]
    assert len(losses) == 30
    assert losses[0] == pytest.approx(math.log(256), abs=0.1)
    assert losses[-1] < 3


# ------------------------------------------------------------------------------------------------------- comparison


def compare(folder, *runs):
    paths = []
    for index, losses in enumerate(runs):
        paths.append(folder / f"{index}.json")
        paths[-1].write_text(json.dumps({"label": f"run {index}", "seconds": 1.0, "losses": losses}))
    return script(sys.executable, SCRIPTS / "compare_losses.py", *paths)


def test_losses_that_agree_and_fall_pass(tmp_path):
    result = compare(tmp_path, [5.0, 3.0], [5.0, 3.0], [5.0, 3.0001])
    assert result.returncode == 0
    assert result.stdout.splitlines()[-1] == (
        "OK: the loss fell by 2.00 nats (at least 1 wanted); largest relative difference from one process 3.3e-05 "
        "at step 2 (at most 1e-04 allowed)"
    )


@pytest.mark.parametrize(
    "runs",
    [([5.0, 3.0], [5.0, 3.001]), ([5.0, 4.1], [5.0, 4.1]), ([5.0, math.nan], [5.0, math.nan])],
    ids=["differs", "falls too little", "not a number"],
)
def test_losses_that_differ_or_do_not_fall_or_are_no_numbers_fail(tmp_path, runs):
    result = compare(tmp_path, *runs)
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1].startswith("FAILED: ")


def test_a_run_that_stopped_early_fails(tmp_path):
    result = compare(tmp_path, [5.0, 3.0], [5.0])
    assert result.returncode == 1
    assert "must hold as many steps as the reference (1 and 2)" in result.stdout


# --------------------------------------------------------------------------------------------------------- launcher


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "0"], "--ranks must be a whole number of at least 1 (got 0)"),
        (["--timeout", "soon"], "--timeout must be a whole number of at least 1 (got soon)"),
        (["--ranks"], "--ranks needs a value"),
    ],
)
def test_the_launcher_refuses_bad_numbers(arguments, message):
    result = script("bash", SCRIPTS / "msrun_train.sh", *arguments)
    assert (result.returncode, result.stderr) == (2, f"msrun_train.sh: {message}\n")


def workers_of(folder):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if str(folder / "train.py").encode() in words and b"python" in words[0]:
            found.append(path.parent.name)
    return found


@pytest.mark.msrun
@pytest.mark.slow
def test_the_launcher_shows_the_failing_ranks_error_and_leaves_no_process(tmp_path):
    pytest.importorskip("mindspore")
    (tmp_path / "train.py").write_text(
        "import sys, time\n"
        "import mindspore as ms\n"
        "from mindspore.communication import get_rank, init\n"
        "ms.set_context(mode=ms.PYNATIVE_MODE, device_target='CPU')\n"
        "init()\n"
        "print('arguments', sys.argv[1:], flush=True)\n"
        "if get_rank() == 1: raise ValueError('no third act')\n"
        "time.sleep(300)\n"
    )
    command = ["bash", SCRIPTS / "msrun_train.sh", "--ranks", "2", "--script", tmp_path / "train.py"]
    result = script(*command, "--log-dir", tmp_path / "logs", "--steps", "2 3", timeout=100)
    assert result.returncode == 1
    assert result.stdout == "arguments ['--steps', '2 3']\n"
    assert "ValueError: no third act" in result.stderr
    assert f"logs: {tmp_path / 'logs'}" in result.stderr
    assert workers_of(tmp_path) == []


@pytest.mark.msrun
@pytest.mark.slow
def test_the_launcher_names_the_signal_that_ended_a_rank(tmp_path):
    pytest.importorskip("mindspore")
    (tmp_path / "train.py").write_text(
        "import os, signal, time\n"
        "import mindspore as ms\n"
        "from mindspore.communication import get_rank, init\n"
        "ms.set_context(mode=ms.PYNATIVE_MODE, device_target='CPU')\n"
        "init()\n"
        "if get_rank() == 1: os.kill(os.getpid(), signal.SIGSEGV)\n"
        "time.sleep(300)\n"
    )
    command = ["bash", SCRIPTS / "msrun_train.sh", "--ranks", "2", "--script", tmp_path / "train.py"]
    result = script(*command, "--log-dir", tmp_path / "logs", timeout=100)
    assert result.returncode == 1
    assert result.stderr == (
        f"msrun_train.sh: the run failed; a rank was ended by signal 11 (SIGSEGV)\nlogs: {tmp_path / 'logs'}\n"
    )
    assert workers_of(tmp_path) == []


@pytest.mark.msrun
@pytest.mark.slow
def test_the_launcher_ends_a_run_that_takes_too_long(tmp_path):
    pytest.importorskip("mindspore")
    (tmp_path / "train.py").write_text("import time\ntime.sleep(300)\n")
    command = ["bash", SCRIPTS / "msrun_train.sh", "--ranks", "2", "--script", tmp_path / "train.py"]
    result = script(*command, "--log-dir", tmp_path / "logs", "--timeout", "8", timeout=100)
    assert result.returncode == 1
    assert "not finished after 8 s (--timeout); all ranks were ended" in result.stderr
    assert workers_of(tmp_path) == []


@pytest.mark.parametrize(("arguments", "message"), [
    (["--fast"], "demo.sh: takes text files only (got --fast)"),
    (["/nowhere/text"], "demo.sh: /nowhere/text is not a readable file"),
])  # fmt: skip
def test_the_demo_refuses_what_it_cannot_read(arguments, message):
    result = script("bash", SCRIPTS / "demo.sh", *arguments)
    assert (result.returncode, result.stderr) == (2, f"{message}\n")


@pytest.mark.parametrize("name", ["demo.sh", "test.sh", "msrun_train.sh"])
def test_help_names_the_command(name):
    result = script("bash", SCRIPTS / name, "--help")
    assert result.returncode == 0
    assert f"bash scripts/{name}" in result.stdout
    assert "set -euo" not in result.stdout


def test_an_unknown_stage_is_refused():
    result = subprocess.run(
        ["bash", SCRIPTS / "test.sh", "everything"], capture_output=True, text=True, timeout=60, env=os.environ
    )
    assert result.returncode == 2
    assert "must be one of lint core mindspore torch emulated emulated_npu repository (got everything)" in result.stderr
