"""Loading torch, and torch_npu where it is meant to be used."""

import importlib
import importlib.util
import os

_HELP = (
    "source CANN's set_env.sh (for example /usr/local/Ascend/ascend-toolkit/set_env.sh) to use the NPU, "
    "or set TORCH_DEVICE_BACKEND_AUTOLOAD=0 to run on the CPU"
)


def load_torch() -> None:
    """Import torch; import torch_npu too where it is installed, unless TORCH_DEVICE_BACKEND_AUTOLOAD is 0.

    Raises:
        ImportError: torch is missing, or torch_npu is installed but CANN's libraries aren't found.
    """
    has_npu = importlib.util.find_spec("torch_npu") is not None
    wants_npu = has_npu and os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "0"
    try:
        importlib.import_module("torch")
        if wants_npu:
            importlib.import_module("torch_npu")
    except (ImportError, OSError, RuntimeError) as error:
        if has_npu:
            # torch wraps what went wrong while it loads the extension by itself.
            raise ImportError(
                f"torch_npu is installed, but it can't be loaded ({error.__cause__ or error}): {_HELP}"
            ) from error
        raise ImportError("hyper_pp.torch_npu needs torch 2.13 or newer: pip install 'hyper_pp[torch]'") from error
