"""Builds libascendcl, libhccl, libopapi and their companions, so that MindSpore's Ascend plugin loads without CANN.

Which functions are needed is read off the plugin itself: its undefined symbols, and the names in it that it looks up at
run time. What the C++ sources here don't define is generated: operators that are refused by name, and functions that
return 0.
"""

import re
from pathlib import Path

from compiling import EXPORTS, RETURNS_ZERO, RUNTIME_HEADERS, RUNTIME_SOURCES, assemble, compile_all, link, symbols

HERE = Path(__file__).resolve().parent
SOURCES = [
    *RUNTIME_SOURCES,
    HERE / "graph_engine.cpp",
    *sorted((HERE / "operators").glob("*.cpp")),
]
HEADERS = [*RUNTIME_HEADERS, *sorted((HERE / "operators").glob("*.h"))]
# A look-up through any of these libraries must find everything.
ALIASES = ["opapi", "graph", "acl_op_compiler", "acl_tdt_channel", "acl_tdt_queue", "acl_dvpp", "acl_dvpp_mpi"]
ALIASES += ["acl_dvpp_op", "msprofiler", "runtime", "platform", "c_sec", "nnopbase", "ascend_hal", "atb"]
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
    # The graph engine's classes are met by libraries that were built with the old string type.
    extra = {"": [f"-I{HERE / 'operators'}"], "graph_engine": ["-D_GLIBCXX_USE_CXX11_ABI=0"]}
    compiled = compile_all(SOURCES, objects, extra)
    defined = set().union(*(symbols(path, "--defined-only") for path in compiled.values()))
    needed, looked_up = _wanted_by(mindspore)
    operators = {name.removesuffix("GetWorkspaceSize") for name in looked_up if name.startswith("aclnn")}
    refused = sorted(operators - defined)
    others = sorted((needed | {name for name in looked_up if not name.startswith("aclnn")}) - defined)
    texts = "".join(f'text_{index}: .asciz "{name}"\n' for index, name in enumerate(refused))
    code = "".join(REFUSED.format(name=name, index=index) for index, name in enumerate(refused))
    refusing = assemble(objects / "refused", f".text\n{code}.section .rodata\n{texts}")
    zeros = assemble(objects / "zeros", ".text\n" + "".join(RETURNS_ZERO.format(name=name) for name in others))
    empty = assemble(objects / "empty", "")
    hccl = [path for name, path in compiled.items() if name.startswith("hccl_")]
    own = [path for path in compiled.values() if path not in [*hccl, compiled["graph_engine"]]]
    link(libraries, "ge_runner", [compiled["graph_engine"], zeros])
    link(libraries, "ascendcl", [*own, refusing], ["ge_runner"], EXPORTS)
    link(libraries, "hccl", hccl, ["ascendcl"], EXPORTS)
    for name in ALIASES:
        link(libraries, name, [empty], ["ascendcl"])


def _wanted_by(mindspore: Path) -> tuple[set[str], set[str]]:
    """Return the names MindSpore links against and those it looks up at run time."""
    plugins = [path for path in mindspore.glob("lib/plugin/**/lib*.so*") if "gpu" not in str(path)]
    ascend = [path for path in plugins if "ascend" in str(path)]
    needed = set().union(*(symbols(path, "-D", "--undefined-only") for path in plugins))
    own = {*mindspore.glob("lib/*.so*"), *plugins}
    provided = set().union(*(symbols(path, "-D", "--defined-only") for path in own))
    looked_up = {match.decode() for path in ascend for match in LOOKED_UP.findall(path.read_bytes())}
    return {name for name in needed - provided if WANTED.match(name)}, looked_up
