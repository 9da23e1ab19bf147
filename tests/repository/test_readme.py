"""What README.md and the other pages say is true."""
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def blocks(language, text=README):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page):
    text = page.read_text()
    links = [page.parent / target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
    named = re.findall(r"\b(?:scripts|ci|tests|docs)/[\w./-]*\w", text)
    assert [name for name in links + named if not (ROOT / name).exists()] == []


def test_the_set_up_is_two_commands():
    commands = [line.split("#")[0].strip() for line in blocks("bash")[0].splitlines()]
    assert commands == ["bash scripts/demo.sh", "bash scripts/test.sh"]


def test_printed_timetables_are_what_the_command_prints():
    shown = [block for block in blocks("text") if block.startswith("$ hyper-pp ")]
    assert shown
    for block in shown:
        command, _, expected = block.partition("\n")
        arguments = shlex.split(command.removeprefix("$ hyper-pp "))
        result = subprocess.run(
            [sys.executable, "-m", "hyper_pp", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        assert result.stdout.rstrip() == expected.rstrip(), command


def test_the_picture_is_what_the_command_draws():
    result = subprocess.run(
        [sys.executable, "-m", "hyper_pp", *shlex.split(
            "show interleaved zbv --ranks 4 --chunks 2 --micro-batches 8 --cost F=1,B=2,I=1,W=1 --format svg"
        )],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert result.stdout == (ROOT / "docs" / "schedules.svg").read_text()


def test_the_table_of_schedules_lists_those_that_exist():
    result = subprocess.run(
        [sys.executable, "-m", "hyper_pp", "schedules"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    exist = {line.split()[0] for line in result.stdout.splitlines()}
    assert set(re.findall(r"^\| `([\w-]+)` \|", README, re.MULTILINE)) == exist


@pytest.mark.msrun
@pytest.mark.slow
def test_the_example_trains_on_four_ranks(tmp_path):
    pytest.importorskip("mindspore")
    (example,) = blocks("python")
    data = (
        "import numpy as np\n"
        "labels = np.arange(16, dtype=np.int32) % 10\n"
        "batches = [(np.eye(16, dtype=np.float32), labels)] * 4\n"
    )
    (tmp_path / "train.py").write_text(data + example)
    launcher = ["bash", ROOT / "scripts" / "msrun_train.sh", "--ranks", "4", "--log-dir", tmp_path / "logs"]
    result = subprocess.run(
        [*launcher, "--timeout", "150", "--script", tmp_path / "train.py"], capture_output=True, text=True, timeout=180
    )
    assert result.returncode == 0, result.stdout + result.stderr
    losses = [float(line) for line in result.stdout.splitlines()]
    assert len(losses) == 4
    assert losses == sorted(losses, reverse=True)


@pytest.mark.msrun
@pytest.mark.slow
def test_the_mindspore_page_runs_and_its_parts_make_up_the_whole_model(tmp_path):
    pytest.importorskip("mindspore")
    (example,) = blocks("python", (ROOT / "docs" / "mindspore.md").read_text())
    whole = """
from mindspore import mint

saved = ms.Tensor([1.0])
mint.distributed.all_reduce(saved)
if saved.asnumpy() == 2 and get_rank() == 0:
    one = nn.SequentialCell([nn.Dense(8, 8, activation="tanh") for _ in range(5)] + [nn.Dense(8, 2)])
    parts = {name: value for rank in (0, 1) for name, value in ms.load_checkpoint(f"rank{rank}.ckpt").items()}
    assert ms.load_param_into_net(one, parts)[0] == []
    print(abs(float(nn.MSELoss()(one(inputs), targets)) - float(loss)) < 1e-6)
"""
    (tmp_path / "train.py").write_text(example + whole)
    launcher = ["bash", ROOT / "scripts" / "msrun_train.sh", "--ranks", "2", "--log-dir", tmp_path / "logs"]
    result = subprocess.run(
        [*launcher, "--timeout", "150", "--script", tmp_path / "train.py"],
        capture_output=True,
        text=True,
        timeout=180,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.split() == ["True"]
