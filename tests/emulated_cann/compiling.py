"""What both emulations share: compiling, linking, generating what isn't written, and keeping the result."""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

RUNTIME = Path(__file__).resolve().parent / "runtime"
RUNTIME_SOURCES = sorted(RUNTIME.glob("*.cpp"))  # acl_… are for libascendcl, hccl_… for libhccl
RUNTIME_HEADERS = sorted(RUNTIME.glob("*.h"))
COMPILER = ["g++", "-std=c++17", "-O2", "-fPIC", "-pthread", "-Wall", "-Wno-misleading-indentation"]
COMPILER += ["-Wno-unused-function", "-fvisibility=hidden", f"-I{RUNTIME}"]
EXPORTS = "{ global: acl*; Hccl*; fake*; local: *; };\n"
RETURNS_ZERO = """\
.globl {name}
.type {name},@function
{name}:
    xor %eax,%eax
    ret
"""


def why_not_here() -> str | None:
    """Return why nothing can be emulated on this machine; None if it can."""
    if platform.machine() != "x86_64" or sys.platform != "linux":
        return f"the emulated CANN needs Linux on x86-64 (got {sys.platform} on {platform.machine()})"
    missing = [tool for tool in ("g++", "gcc", "nm") if shutil.which(tool) is None]
    return f"the emulated CANN needs {', '.join(missing)} to be built" if missing else None


def built_once(name: str, version: str, sources: Iterable[Path], build: Callable[[Path], None]) -> Path:
    """Build into the cache folder, unless these sources have been built there before.

    Args:
        name: Of the emulation.
        version: Of the framework that the build fits.
        sources: Everything the build is made from.
        build: Fills the folder it is given.

    Returns:
        The folder.
    """
    digest = hashlib.sha256(version.encode())
    for source in [Path(__file__), *sources]:
        digest.update(source.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hyper_pp"
    cache.mkdir(parents=True, exist_ok=True)
    out = cache / f"{name}-{digest.hexdigest()[:12]}"
    with open(cache / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (out / "complete").exists():
            shutil.rmtree(out, ignore_errors=True)
            build(out)
            (out / "complete").touch()
    return out


def compile_all(sources: Sequence[Path], objects: Path, extra: Mapping[str, Sequence[str]] = {}) -> dict[str, Path]:
    """Compile C++ sources side by side.

    Args:
        sources: Files of different stems.
        objects: Receives the object files.
        extra: Further options, by stem; those under ``""`` are for all.

    Returns:
        The object files, by stem.

    Raises:
        RuntimeError: The compiler refused something; the text holds what it said.
    """
    compiled = {source.stem: objects / f"{source.stem}.o" for source in sources}
    running = []
    for source in sources:
        options = [*extra.get("", ()), *extra.get(source.stem, ())]
        command = [*COMPILER, *options, "-c", source, "-o", compiled[source.stem]]
        running.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
    errors = [process.communicate()[1] for process in running]
    failed = [error for process, error in zip(running, errors) if process.returncode]
    if failed:
        raise RuntimeError("\n".join(failed))
    return compiled


def link(libraries: Path, name: str, parts: Iterable[Path], needs: Iterable[str] = (), exports: str = "") -> None:
    """Link object files to ``lib<name>.so``, which finds the libraries it needs beside itself."""
    command: list[object] = ["g++", "-shared", "-pthread", "-o", libraries / f"lib{name}.so", *parts]
    command += [f"-Wl,-soname,lib{name}.so", f"-L{libraries}", "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed"]
    command += [f"-l{other}" for other in needs]
    if exports:
        script = libraries / "exports.map"
        script.write_text(exports)
        command.append(f"-Wl,--version-script={script}")
    run(command)


def symbols(path: Path, *flags: str) -> set[str]:
    """Return the symbols that ``nm`` lists."""
    lines = subprocess.run(["nm", *flags, path], capture_output=True, text=True, check=False).stdout.splitlines()
    return {line.split()[-1].partition("@")[0] for line in lines if line.split()}


def assemble(stem: Path, code: str) -> Path:
    """Assemble code; return the object file."""
    source = stem.with_suffix(".S")
    source.write_text(code + '.section .note.GNU-stack,"",@progbits\n')
    run(["gcc", "-c", source, "-o", stem.with_suffix(".o")])
    return stem.with_suffix(".o")


def run(command: Iterable[object]) -> None:
    """Run a command; raise RuntimeError with what it said if it failed."""
    command = [str(part) for part in command]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{command[0]} failed: {result.stderr}")
