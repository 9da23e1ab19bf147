"""Profiler ranges: in a trace of MindSpore's profiler (with ``mstx=True``) every action stands under its text form."""

from types import TracebackType

from mindspore.profiler import mstx


class NamedRange:
    """A range of the Ascend profiler; costs next to nothing while no profiler collects.

    Args:
        name: What the trace shows.
    """

    __slots__ = ("_id", "_name")

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> "NamedRange":
        self._id = mstx.range_start(self._name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        mstx.range_end(self._id)
