"""Real text for the demo: bytes of files, cut into reproducible training batches."""
from __future__ import annotations

import pathlib
import sysconfig
from collections.abc import Sequence

import numpy as np

DEFAULT_BYTES = 4_000_000
"""How much of the standard library's sources is read when no file is named."""


def read_text(paths: Sequence[str] = ()) -> np.ndarray:
    """Reads files one after the other as bytes.

    Args:
        paths: Files to read; none means the sources of Python's standard library, in alphabetical order, up to
            `DEFAULT_BYTES`.

    Returns:
        (length,) uint8.

    Raises:
        ValueError: A path is not a readable file, or all of them are empty.
    """
    pieces: list[bytes] = []
    limit = None if paths else DEFAULT_BYTES
    files = [pathlib.Path(path) for path in paths] or _standard_library()
    for file in files:
        try:
            pieces.append(file.read_bytes())
        except OSError as error:
            raise ValueError(f"text file {str(file)!r} can't be read: {error.strerror}") from error
        if limit is not None and sum(map(len, pieces)) >= limit:
            break
    text = b"".join(pieces)[:limit]
    if not text:
        raise ValueError(f"text files must hold at least one byte (got 0 bytes in {len(files)} files)")
    return np.frombuffer(text, np.uint8)


def _standard_library() -> list[pathlib.Path]:
    # Top-level modules only: they are there in every build of Python, test suites and bundled packages are not.
    return sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py"))


class Batches:
    """Draws the same batches from a text on every rank and in every run.

    Args:
        text: (length,) uint8.
        batch_size: Sequences per step.
        context: Bytes per sequence.
        seed: Seed of the positions drawn.

    Raises:
        ValueError: The text is shorter than one sequence and the byte that follows it.
    """

    def __init__(self, text: np.ndarray, batch_size: int, context: int, seed: int) -> None:
        if len(text) < context + 1:
            raise ValueError(f"text must be longer than context (got {len(text)} bytes and context {context})")
        self._text, self._batch_size, self._context, self._seed = text, batch_size, context, seed

    def __call__(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Draws one step's batch.

        Args:
            step: Number of the step; the same number gives the same batch.

        Returns:
            Inputs and targets, both (batch_size, context) int32; a target is the byte after its input.
        """
        starts = np.random.default_rng([self._seed, step]).integers(
            0, len(self._text) - self._context, self._batch_size
        )
        windows = np.stack([self._text[start : start + self._context + 1] for start in starts]).astype(np.int32)
        return windows[:, :-1], windows[:, 1:]
