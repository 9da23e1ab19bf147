"""scripts/environment.sh against stand-ins for Python and pip: the real installation takes minutes and 3 GB."""
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"

# Records its arguments; makes "environments" that hold a copy of itself; runs short -c programs for real.
FAKE_PYTHON = f"""#!/bin/bash
echo "$*" >>"$FAKE_LOG"
case "$1 $2 $3" in
  "-m venv "*) [ -z "$FAKE_NO_VENV" ] || exit 1; mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  "-m pip install") sleep "$FAKE_PIP_SECONDS"; [ ! -e "$FAKE_LOG.offline" ] ;;
  "-m pip "*) ;;
  "-c import mindspore "*) ;;
  "-c import sys, urllib.request"*) exit 1 ;;
  "--version "*) echo "Python $FAKE_VERSION" ;;
  "-c import sys"*) [ -z "$FAKE_VERSION" ] || exit 1; exec {sys.executable} "$@" ;;
esac
"""


class Machine:
    """A home, a cache and a Python that are all in a temporary folder."""

    def __init__(self, folder: Path):
        self.folder, self.log, self.cache = folder, folder / "log", folder / "my cache"
        self.python = self.tool("fakes/python-under-test", FAKE_PYTHON)
        self.tool("fakes/sleep", '#!/bin/bash\n[ "$1" = 30 ] && exec /bin/sleep 30\ntrue\n')
        self.disk(9000)
        self.variables = {
            "PATH": f"{folder / 'fakes'}:/usr/bin:/bin", "HOME": str(folder), "HYPER_PP_CACHE": str(self.cache),
            "PYTHON": str(self.python), "FAKE_LOG": str(self.log), "FAKE_PIP_SECONDS": "0", "FAKE_NO_VENV": "",
            "FAKE_VERSION": "",
        }  # fmt: skip

    def tool(self, name, text):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def disk(self, free_mb):
        self.tool("fakes/df", f"#!/bin/bash\necho header\necho /dev/x 1 1 {free_mb} 1% /\n")

    def start(self, root=ROOT, **variables):
        program = f'set -euo pipefail; source "{root}/scripts/environment.sh"; echo "$HYPER_PP_PYTHON|$PYTHONPATH"'
        return subprocess.Popen(
            ["bash", "-c", program, "bash", "an", "argument"], env={**self.variables, **variables},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def run(self, root=ROOT, **variables):
        process = self.start(root, **variables)
        out, err = process.communicate(timeout=60)
        return process.returncode, out.strip(), err

    def installs(self):
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line.split("constraints.txt ", 1)[1] for line in lines if line.startswith("-m pip install")]


BASE = "mindspore numpy safetensors pytest hypothesis ruff mypy setuptools wheel"
TORCH = "torch"
NPU = "torch-npu pyyaml"


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_first_run_installs_the_pinned_names_and_puts_this_clone_first(machine):
    status, out, err = machine.run()
    assert status == 0, err
    python, path = out.split("|")
    assert Path(python).parent.parent.parent == machine.cache
    assert Path(python).parent.parent.name.endswith(f"-py{MINOR}")
    assert path == str(ROOT)
    assert machine.installs() == [BASE]
    assert "2 to 4 minutes" in err


def test_second_run_installs_nothing_and_says_nothing(machine):
    first = machine.run()[1]
    assert machine.run() == (0, first, "")
    assert machine.installs() == [BASE]


def test_another_clone_with_the_same_pins_uses_the_same_environment(machine):
    clone = machine.folder / "another clone"
    (clone / "scripts").mkdir(parents=True)
    for name in ("environment.sh", "constraints.txt"):
        (clone / "scripts" / name).write_text((ROOT / "scripts" / name).read_text())
    python = machine.run()[1].split("|")[0]
    assert machine.run(clone) == (0, f"{python}|{clone}", "")


def test_other_pins_make_another_environment(machine):
    clone = machine.folder / "clone"
    (clone / "scripts").mkdir(parents=True)
    (clone / "scripts" / "environment.sh").write_text((ROOT / "scripts" / "environment.sh").read_text())
    pins = (ROOT / "scripts" / "constraints.txt").read_text()
    (clone / "scripts" / "constraints.txt").write_text(pins.replace("mindspore==2.10.0", "mindspore==2.9.0"))
    assert machine.run()[1].split("|")[0] != machine.run(clone)[1].split("|")[0]
    assert machine.installs() == [BASE, BASE]


def test_torch_is_a_layer_added_to_the_same_environment_once(machine):
    python = machine.run()[1].split("|")[0]
    for _ in range(2):
        status, out, err = machine.run(HYPER_PP_LAYERS="base torch", HYPER_PP_PYTHON=python)
        assert (status, out.split("|")[0]) == (0, python), err
    assert machine.installs() == [BASE, TORCH]


def test_torch_npu_is_a_layer_on_top_of_torch(machine):
    python = machine.run(HYPER_PP_LAYERS="base torch")[1].split("|")[0]
    for _ in range(2):
        status, out, err = machine.run(HYPER_PP_LAYERS="base torch npu", HYPER_PP_PYTHON=python)
        assert (status, out.split("|")[0]) == (0, python), err
    assert machine.installs() == [BASE, TORCH, NPU]


def test_where_torch_npu_cannot_be_installed_the_layers_below_stay_usable(machine):
    python = machine.run(HYPER_PP_LAYERS="base torch")[1].split("|")[0]
    Path(f"{machine.log}.offline").touch()
    status, _, err = machine.run(HYPER_PP_LAYERS="base torch npu", HYPER_PP_PYTHON=python)
    assert status == 1
    assert "pip could not install torch-npu pyyaml" in err
    status, out, _ = machine.run(HYPER_PP_LAYERS="base torch", HYPER_PP_PYTHON=python)
    assert (status, out.split("|")[0]) == (0, python)
    assert machine.installs() == [BASE, TORCH, NPU, NPU, NPU]


def test_an_interrupted_installation_is_made_anew(machine):
    process = machine.start(FAKE_PIP_SECONDS="30")
    until = time.monotonic() + 30
    while not machine.installs() and time.monotonic() < until:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    (half_built,) = machine.cache.glob("venv-*")
    (half_built / "left-over").touch()

    status, _, err = machine.run()
    assert status == 0, err
    assert machine.installs() == [BASE, BASE]
    assert not (half_built / "left-over").exists()


def test_two_clones_at_once_install_once(machine):
    machine.tool("fakes/sleep", "#!/bin/bash\nexec /bin/sleep 1\n")
    processes = [machine.start(FAKE_PIP_SECONDS="1") for _ in range(3)]
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    assert len({out for out, _ in outputs}) == 1
    assert machine.installs() == [BASE]


def test_without_flock_two_clones_at_once_install_once(machine):
    tools = machine.folder / "tools"
    tools.mkdir()
    for folder in ("/bin", "/usr/bin"):
        for tool in Path(folder).iterdir():
            if tool.name != "flock" and not tool.name.startswith("python") and not (tools / tool.name).exists():
                (tools / tool.name).symlink_to(tool)
    machine.tool("fakes/sleep", "#!/bin/bash\nexec /bin/sleep 1\n")
    path = f"{machine.folder / 'fakes'}:{tools}"
    processes = [machine.start(FAKE_PIP_SECONDS="1", PATH=path) for _ in range(3)]
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    assert machine.installs() == [BASE]


def test_pip_is_tried_three_times_and_nothing_is_trusted_after_it_fails(machine):
    Path(f"{machine.log}.offline").touch()
    status, _, err = machine.run()
    assert status == 1
    assert machine.installs() == [BASE] * 3
    assert "pip could not install" in err
    Path(f"{machine.log}.offline").unlink()
    assert machine.run()[0] == 0


def test_a_python_without_venv_names_the_one_package_to_install(machine):
    machine.tool("fakes/id", "#!/bin/bash\necho 1000\n")
    machine.tool("fakes/apt-cache", "#!/bin/bash\ntrue\n")
    status, _, err = machine.run(FAKE_NO_VENV="1")
    assert (status, err.splitlines()) == (1, [
        f"[environment] Python {MINOR} is there, but its venv module is not complete.",
        "[environment] Run this one command, then try again:",
        f"[environment]     sudo apt-get install -y python{MINOR}-venv",
    ])  # fmt: skip
    assert not list(machine.cache.glob("venv-*"))


def test_a_machine_without_package_lists_is_told_to_fetch_them_as_well(machine):
    machine.tool("fakes/id", "#!/bin/bash\necho 0\n")
    machine.tool("fakes/apt-cache", "#!/bin/bash\nfalse\n")
    err = machine.run(FAKE_NO_VENV="1")[2]
    assert err.endswith(f"    apt-get update && apt-get install -y python{MINOR}-venv\n")


def test_an_unsupported_python_is_named_with_its_version(machine):
    status, _, err = machine.run(FAKE_VERSION="3.13.0")
    assert status == 1
    assert f"PYTHON must name a Python 3.10, 3.11 or 3.12 (got {machine.python}: Python 3.13.0)" in err


def test_a_machine_without_python_is_told_what_to_install(machine):
    tools = machine.folder / "tools"
    tools.mkdir()
    for folder in ("/bin", "/usr/bin"):
        for tool in Path(folder).iterdir():
            if not tool.name.startswith(("python", "apt")) and not (tools / tool.name).exists():
                (tools / tool.name).symlink_to(tool)
    bare = {"PATH": str(tools), "PYTHON": ""}
    status, _, err = machine.run(**bare)
    assert status == 1
    assert "Python 3.10, 3.11 or 3.12 is needed (found: no python3)" in err
    assert "`uv python install 3.11` or `pyenv install 3.11` brings one" in err

    machine.tool("tools/apt-cache", '#!/bin/bash\n[ "$2" = python3.10-venv ]\n')
    status, _, err = machine.run(**bare)
    assert status == 1
    assert re.search(r"apt-get install -y python3\.1[012]-venv$", err), err


def test_too_little_disk_space_is_said_before_anything_is_made(machine):
    machine.disk(1200)
    status, _, err = machine.run()
    assert status == 1
    assert f"4500 MB of free disk space are needed in {machine.cache} (got 1200 MB)" in err
    assert machine.installs() == []


def test_an_interpreter_given_by_the_user_is_used_as_it_is(machine):
    status, out, err = machine.run(HYPER_PP_PYTHON=str(machine.python), PYTHONPATH="/opt/cann")
    assert (status, out) == (0, f"{machine.python}|{ROOT}:/opt/cann"), err
    assert machine.installs() == []
