"""Runs torch scripts on the emulated CANN: builds it once, and starts torchrun so that it is found."""

import sys
from importlib import metadata, util
from pathlib import Path

HERE = Path(__file__).resolve().parent
TWIN = HERE.parents[1] / "on_torch_npu"
sys.path[:0] = [str(HERE), str(HERE.parent), str(TWIN)]

import build_npu  # noqa: E402 - found on the path above
import compiling  # noqa: E402 - likewise
import torchrun_launch  # noqa: E402 - likewise

TORCH_NPU = "2.13"


def why_not() -> str | None:
    """Return why the emulation can't run here; None if it can."""
    reason = compiling.why_not_here()
    if reason is not None:
        return reason
    for name in ("torch", "torch_npu", "yaml"):
        if util.find_spec(name) is None:
            return f"the emulated CANN needs torch {TORCH_NPU}, torch-npu and pyyaml: {name} isn't installed"
    found = metadata.version("torch_npu")
    return None if found.startswith(TORCH_NPU) else f"the emulated CANN fits torch-npu {TORCH_NPU} (found {found})"


def built() -> Path:
    """Build the libraries, unless these sources have been built before; return their folder."""
    package = Path(util.find_spec("torch_npu").origin).parent
    sources = [Path(build_npu.__file__), *build_npu.SOURCES, *build_npu.HEADERS]
    name, version = "emulated_cann_npu", metadata.version("torch_npu")
    return compiling.built_once(name, version, sources, lambda out: build_npu.build(package, out))


def launch(script: Path, num_ranks: int, folder: Path, *args: str, timeout: float = 240.0, **env: str):
    """Run a script under torchrun on emulated NPUs; see :func:`torchrun_launch.launch`."""
    library = built() / "lib"
    paths = [torchrun_launch.ROOT, torchrun_launch.ROOT / "tests", TWIN, HERE.parent, HERE]
    variables = {
        "LD_LIBRARY_PATH": str(library),
        "PYTHONPATH": ":".join(map(str, paths)),
        "FAKE_NPU_POISON": "1",
        "HCCL_EXEC_TIMEOUT": "60",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",  # emulated_npu imports torch_npu, with its kernels replaced
        **env,
    }
    return torchrun_launch.launch(script, num_ranks, folder, *args, timeout=timeout, **variables)
