"""Builds libascendcl, libhccl, libopapi and their companions, so that MindSpore's Ascend plugin loads without CANN.

Which functions are needed is read off the plugin itself: its undefined symbols, and the names in it that it looks up at
run time. What the C++ sources here don't define is generated: operators that are refused by name, and functions that
return 0.
"""

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
RUNTIME = HERE.parent / "runtime"
SOURCES = [
    RUNTIME / "runtime.cpp",
    RUNTIME / "hccl.cpp",
    HERE / "graph_engine.cpp",
    *sorted((HERE / "operators").glob("*.cpp")),
]
HEADERS = [RUNTIME / "cann.h", HERE / "operators" / "operators.h"]
# A look-up through any of these libraries must find everything.
ALIASES = ["opapi", "graph", "acl_op_compiler", "acl_tdt_channel", "acl_tdt_queue", "acl_dvpp", "acl_dvpp_mpi"]
ALIASES += ["acl_dvpp_op", "msprofiler", "runtime", "platform", "c_sec", "nnopbase", "ascend_hal", "atb"]
COMPILER = ["g++", "-std=c++17", "-O2", "-fPIC", "-pthread", "-Wall", "-Wno-misleading-indentation"]
COMPILER += ["-Wno-unused-function", "-fvisibility=hidden", f"-I{RUNTIME}", f"-I{HERE / 'operators'}"]
# Names of CANN's C and C++ interfaces; everything else that is undefined comes from the system.
WANTED = re.compile(
    r"acl|Acl|rt[A-Z]|hal[A-Z]|drv[A-Z]|Msprof|Hccl|Nnopbase|Dlog|Alog|CheckLogLevel|prof[A-Z]"
    r"|_Z\d+(DlogRecord|DlogInner|CheckLogLevel|Nnopbase)|_ZN13error_message|_ZNK?(2ge|2fe|3atb|10ge)"
)
LOOKED_UP = re.compile(rb"(?<![A-Za-z0-9_])acl[a-z]*[A-Z][A-Za-z0-9_]+(?=\0)")
REFUSED = """\
.globl {name}GetWorkspaceSize
.type {name}GetWorkspaceSize,@function
{name}GetWorkspaceSize:
    lea text_{index}(%rip),%rdi
    jmp fakeUnimplemented@PLT
.globl {name}
.type {name},@function
{name}:
    jmp fakeLaunch@PLT
"""
RETURNS_ZERO = """\
.globl {name}
.type {name},@function
{name}:
    xor %eax,%eax
    ret
"""


def build(mindspore: Path, out: Path) -> None:
    """Compile everything.

    Args:
        mindspore: Folder of the installed package.
        out: Receives ``cann/lib64``; MindSpore finds CANN by that word in the path of libascendcl.so.

    Raises:
        RuntimeError: A compiler or linker failed; the text holds what it said.
    """
    libraries, objects = out / "cann" / "lib64", out / "objects"
    for folder in (libraries, objects, out / "cann" / "opp"):
        folder.mkdir(parents=True, exist_ok=True)
    compiled = _compile(objects)
    defined = set().union(*(_symbols(path, "--defined-only") for path in compiled.values()))
    needed, looked_up = _wanted_by(mindspore)
    operators = {name.removesuffix("GetWorkspaceSize") for name in looked_up if name.startswith("aclnn")}
    refused = sorted(operators - defined)
    others = sorted((needed | {name for name in looked_up if not name.startswith("aclnn")}) - defined)
    texts = "".join(f'text_{index}: .asciz "{name}"\n' for index, name in enumerate(refused))
    code = "".join(REFUSED.format(name=name, index=index) for index, name in enumerate(refused))
    refusing = _assemble(objects / "refused", f".text\n{code}.section .rodata\n{texts}")
    zeros = _assemble(objects / "zeros", ".text\n" + "".join(RETURNS_ZERO.format(name=name) for name in others))
    empty = _assemble(objects / "empty", "")
    exports = objects / "exports.map"
    exports.write_text("{ global: acl*; Hccl*; fake*; local: *; };\n")

    def link(name: str, parts: Iterable[Path], needs: Iterable[str] = (), only_exports: bool = False) -> None:
        command = ["g++", "-shared", "-pthread", "-o", libraries / f"lib{name}.so", *parts, f"-Wl,-soname,lib{name}.so"]
        command += [f"-L{libraries}", "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed", *(f"-l{other}" for other in needs)]
        _run(command + ([f"-Wl,--version-script={exports}"] if only_exports else []))

    own = [path for name, path in compiled.items() if name not in ("graph_engine", "hccl")]
    link("ge_runner", [compiled["graph_engine"], zeros])
    link("ascendcl", [*own, refusing], ["ge_runner"], only_exports=True)
    link("hccl", [compiled["hccl"]], ["ascendcl"], only_exports=True)
    for name in ALIASES:
        link(name, [empty], ["ascendcl"])


def _compile(objects: Path) -> dict[str, Path]:
    """Compile the sources side by side; return the object files by name."""
    compiled = {source.stem: objects / f"{source.stem}.o" for source in SOURCES}
    running = []
    for source in SOURCES:
        # The graph engine's classes are met by libraries that were built with the old string type.
        extra = ["-D_GLIBCXX_USE_CXX11_ABI=0"] if source.stem == "graph_engine" else []
        command = [*COMPILER, *extra, "-c", source, "-o", compiled[source.stem]]
        running.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
    errors = [process.communicate()[1] for process in running]
    failed = [error for process, error in zip(running, errors) if process.returncode]
    if failed:
        raise RuntimeError("\n".join(failed))
    return compiled


def _wanted_by(mindspore: Path) -> tuple[set[str], set[str]]:
    """Return the names MindSpore links against and those it looks up at run time."""
    plugins = [path for path in mindspore.glob("lib/plugin/**/lib*.so*") if "gpu" not in str(path)]
    ascend = [path for path in plugins if "ascend" in str(path)]
    needed = set().union(*(_symbols(path, "-D", "--undefined-only") for path in plugins))
    own = {*mindspore.glob("lib/*.so*"), *plugins}
    provided = set().union(*(_symbols(path, "-D", "--defined-only") for path in own))
    looked_up = {match.decode() for path in ascend for match in LOOKED_UP.findall(path.read_bytes())}
    return {name for name in needed - provided if WANTED.match(name)}, looked_up


def _symbols(path: Path, *flags: str) -> set[str]:
    lines = subprocess.run(["nm", *flags, path], capture_output=True, text=True, check=False).stdout.splitlines()
    return {line.split()[-1].partition("@")[0] for line in lines if line.split()}


def _assemble(stem: Path, code: str) -> Path:
    source = stem.with_suffix(".S")
    source.write_text(code + '.section .note.GNU-stack,"",@progbits\n')
    _run(["gcc", "-c", source, "-o", stem.with_suffix(".o")])
    return stem.with_suffix(".o")


def _run(command: list[object]) -> None:
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{command[0]} failed: {result.stderr}")
