"""Packaging of hyper_pp; tool settings are in pyproject.toml."""
import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent


def read_version() -> str:
    """Reads the version without importing the package, which needs nothing installed that way.

    Returns:
        The version, such as "0.1.0".

    Raises:
        RuntimeError: hyper_pp/__init__.py has no line `__version__ = "…"`.
    """
    text = (ROOT / "hyper_pp" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if found is None:
        raise RuntimeError('hyper_pp/__init__.py must hold a line __version__ = "…" (found none)')
    return found.group(1)


setup(
    name="hyper_pp",
    version=read_version(),
    description="Pipeline-parallel training for MindSpore and torch_npu: schedules as data, proved before they run",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    packages=find_packages(include=["hyper_pp", "hyper_pp.*"]),
    python_requires=">=3.10,<3.13",
    # The core needs the standard library only; a framework is the user's choice.
    install_requires=[],
    extras_require={
        # MindSpore 2.8 is the first whose backward can run for many outstanding forwards; numpy 2 breaks its bf16.
        "mindspore": ["mindspore>=2.8", "numpy<2"],
        "torch": ["torch>=2.13"],
        # torch-npu makes `import torch` fail where CANN is missing, so it is for hosts with an NPU only.
        "npu": ["torch>=2.13", "torch-npu>=2.13", "pyyaml"],
        "test": ["pytest", "hypothesis", "ruff", "mypy", "numpy<2", "safetensors"],
    },
    entry_points={"console_scripts": ["hyper-pp=hyper_pp.cli:main"]},
)
