"""Runs MindSpore scripts on the emulated CANN: builds it once, and starts msrun so that it is found."""

import os
import subprocess
import sys
from importlib import metadata, util
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "on_mindspore"), str(HERE.parent / "on_mindspore")]

import build_mindspore  # noqa: E402 - found on the path above
import compiling  # noqa: E402 - likewise
import msrun_launch  # noqa: E402 - likewise

MINDSPORE = "2.10"


def why_not() -> str | None:
    """Return why the emulation can't run here; None if it can."""
    reason = compiling.why_not_here()
    if reason is not None:
        return reason
    if util.find_spec("mindspore") is None:
        return "MindSpore isn't installed"
    found = metadata.version("mindspore")
    if not found.startswith(MINDSPORE + "."):
        return f"the emulated CANN fits MindSpore {MINDSPORE} (found {found})"
    return None


def built() -> Path:
    """Build the libraries, unless these sources have been built before; return their folder."""
    package = Path(util.find_spec("mindspore").origin).parent
    sources = [Path(build_mindspore.__file__), *build_mindspore.SOURCES, *build_mindspore.HEADERS]
    return compiling.built_once(
        "emulated_cann", metadata.version("mindspore"), sources, lambda out: build_mindspore.build(package, out)
    )


def environment() -> dict[str, str]:
    """Return the variables with which MindSpore finds the emulated CANN."""
    root = built() / "cann"
    paths = [str(HERE / "on_mindspore" / "python"), os.environ.get("PYTHONPATH", "")]
    libraries = [str(root / "lib64"), os.environ.get("LD_LIBRARY_PATH", "")]
    return {
        "ASCEND_HOME_PATH": str(root),
        "ASCEND_OPP_PATH": str(root / "opp"),
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
        "EMULATED_PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "FAKE_NPU_POISON": "1",
        "HCCL_EXEC_TIMEOUT": "60",
    }


def launch(script: Path, num_workers: int, folder: Path, *args: str, timeout: float = 240.0, **env: str):
    """Run a script under msrun on the emulated Ascend; see :func:`msrun_launch.launch`."""
    variables = environment()
    path = variables.pop("EMULATED_PYTHONPATH")
    extra = os.pathsep.join([str(msrun_launch.ROOT), str(HERE.parent / "on_mindspore"), path])
    return msrun_launch.launch(
        script, num_workers, folder, *args, timeout=timeout, **{**variables, "PYTHONPATH": extra, **env}
    )


def run_alone(script: Path, *args: str, timeout: float = 240.0) -> subprocess.CompletedProcess[str]:
    """Run a script in one process on the emulated Ascend."""
    variables = environment()
    path = variables.pop("EMULATED_PYTHONPATH")
    extra = os.pathsep.join([str(msrun_launch.ROOT), str(HERE.parent / "on_mindspore"), path])
    full = {**os.environ, **variables, "PYTHONPATH": extra, "RANK_SIZE": "1", "RANK_ID": "0", "GLOG_v": "3"}
    return subprocess.run(
        [sys.executable, str(script), *args], env=full, capture_output=True, text=True, timeout=timeout, check=False
    )
