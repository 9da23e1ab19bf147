"""The shape of a pipeline: ranks, chunks, stages, micro-batches and who holds which stage."""

from dataclasses import dataclass
from typing import Literal

Placement = Literal["loop", "v"]
PLACEMENTS: tuple[Placement, ...] = ("loop", "v")


def check_count(name: str, value: object, minimum: int = 1) -> int:
    """Return ``value`` if it is an int (not a bool) of at least ``minimum``.

    Raises:
        TypeError: It isn't an int.
        ValueError: It is too small.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int (got {value!r})")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum} (got {value})")
    return value


@dataclass(frozen=True)
class PipelineShape:
    """How many ranks, chunks and micro-batches there are, and where the stages live.

    Args:
        num_ranks: P, ranks of one pipeline.
        num_chunks: V, model chunks per rank; there are S = P·V stages.
        num_micro_batches: M, micro-batches of one step.
        placement: ``"loop"``: stage s lives on rank s mod P. ``"v"`` (V = 2): rank r holds stages r and 2P−1−r.

    Raises:
        TypeError: A count isn't an int.
        ValueError: A count is below 1, the placement is unknown, or ``"v"`` comes with other than 2 chunks.
    """

    num_ranks: int
    num_chunks: int
    num_micro_batches: int
    placement: Placement = "loop"

    def __post_init__(self) -> None:
        for name in ("num_ranks", "num_chunks", "num_micro_batches"):
            check_count(name, getattr(self, name))
        if self.placement not in PLACEMENTS:
            raise ValueError(f"placement must be one of {', '.join(PLACEMENTS)} (got {self.placement!r})")
        if self.placement == "v" and self.num_chunks != 2:
            raise ValueError(f"placement v needs num_chunks 2 (got {self.num_chunks})")

    @property
    def num_stages(self) -> int:
        """S = P·V."""
        return self.num_ranks * self.num_chunks

    def rank_of(self, stage: int) -> int:
        """Return the rank that holds ``stage``."""
        lap, position = divmod(stage, self.num_ranks)
        return self.num_ranks - 1 - position if self.placement == "v" and lap == 1 else position

    def stage_of(self, rank: int, chunk: int) -> int:
        """Return the stage that is chunk ``chunk`` of rank ``rank``."""
        position = self.num_ranks - 1 - rank if self.placement == "v" and chunk == 1 else rank
        return chunk * self.num_ranks + position

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the stages that ``rank`` holds, one per chunk, ascending."""
        return tuple(self.stage_of(rank, chunk) for chunk in range(self.num_chunks))

    def __str__(self) -> str:
        text = f"P={self.num_ranks} V={self.num_chunks} M={self.num_micro_batches}"
        return text if self.placement == "loop" else f"{text} placement={self.placement}"
