"""The package as users install it, not as it lies in the clone."""
import email
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    # Built from a copy: setuptools writes build/ and *.egg-info beside setup.py.
    source = folder / "source"
    source.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "hyper_pp", source / "hyper_pp", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests" / "repository", source / "tests" / "repository")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, source]
    subprocess.run(command, check=True, timeout=120)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", folder, wheel]
    subprocess.run(command, check=True, timeout=120)
    return folder


def run(site, *command):
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run(command, cwd=site, env=environment, capture_output=True, text=True, timeout=60)


def test_metadata_states_version_pythons_and_extras(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    line = next(text for text in (ROOT / "hyper_pp" / "__init__.py").read_text().splitlines() if "__version__" in text)
    assert f'__version__ = "{metadata["Version"]}"' == line
    assert metadata["Name"] == "hyper_pp"
    assert set(metadata["Requires-Python"].split(",")) == {">=3.10", "<3.13"}
    assert metadata.get_all("Provides-Extra") == ["mindspore", "torch", "npu", "test"]
    assert all("extra ==" in requirement for requirement in metadata.get_all("Requires-Dist"))


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"hyper_pp"}
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "hyper_pp").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules


def test_the_console_script_runs_the_installed_package(site):
    result = run(site, site / "bin" / "hyper-pp", "schedules")
    assert result.returncode == 0, result.stderr
    assert {"gpipe", "1f1b", "interleaved", "mpipe"} <= {line.split()[0] for line in result.stdout.splitlines()}
    where = run(site, sys.executable, "-c", "import hyper_pp; print(hyper_pp.__file__)")
    assert where.stdout.strip() == str(site / "hyper_pp" / "__init__.py")


def test_python_m_hyper_pp_does_the_same_as_the_console_script(site):
    arguments = ["build", "1f1b", "--ranks", "2", "--micro-batches", "3"]
    by_name = run(site, site / "bin" / "hyper-pp", *arguments)
    by_module = run(site, sys.executable, "-m", "hyper_pp", *arguments)
    assert by_name.returncode == 0, by_name.stderr
    assert by_module.stdout == by_name.stdout
