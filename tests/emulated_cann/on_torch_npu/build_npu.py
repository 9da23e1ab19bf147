"""Builds libascendcl, libhccl and their companions, so that torch_npu loads without CANN.

What the wheel needs is read off its undefined symbols. What the C++ sources here don't define is generated as functions
that return 0.
"""

from pathlib import Path

from compiling import EXPORTS, RETURNS_ZERO, RUNTIME_HEADERS, RUNTIME_SOURCES, assemble, compile_all, link, symbols

HERE = Path(__file__).resolve().parent
SOURCES = [*RUNTIME_SOURCES, HERE / "device.cpp", HERE / "operators.cpp"]
HEADERS = RUNTIME_HEADERS
# A look-up through any of these libraries must find everything.
ALIASES = ["acl_op_compiler", "graph", "acl_tdt_channel", "atb"]
WANTED = ("acl", "rt", "Msprof", "Hccl", "_ZN3atb")


def build(torch_npu: Path, out: Path) -> None:
    """Compile everything.

    Args:
        torch_npu: Folder of the installed package.
        out: Receives ``lib``.

    Raises:
        RuntimeError: A compiler or linker failed; the text holds what it said.
    """
    libraries, objects = out / "lib", out / "objects"
    for folder in (libraries, objects):
        folder.mkdir(parents=True, exist_ok=True)
    headers = torch_npu / "include" / "third_party" / "acl" / "inc"
    compiled = compile_all(SOURCES, objects, {name: [f"-I{headers}"] for name in ("device", "operators")})
    defined = set().union(*(symbols(path, "--defined-only") for path in compiled.values()))
    own = [*torch_npu.glob("lib/*.so"), *torch_npu.glob("_C*.so")]
    needed = set().union(*(symbols(path, "-D", "--undefined-only") for path in own))
    provided = set().union(*(symbols(path, "-D", "--defined-only") for path in own))
    others = sorted(name for name in needed - defined - provided if name.startswith(WANTED))
    zeros = assemble(objects / "zeros", ".text\n" + "".join(RETURNS_ZERO.format(name=name) for name in others))
    empty = assemble(objects / "empty", "")
    hccl = [path for name, path in compiled.items() if name.startswith("hccl_")]
    link(libraries, "ascendcl", [path for path in compiled.values() if path not in hccl], (), EXPORTS)
    link(libraries, "hccl", hccl, ["ascendcl"], EXPORTS)
    link(libraries, "ge_runner", [zeros])
    for name in ALIASES:
        link(libraries, name, [empty], ["ascendcl"])
