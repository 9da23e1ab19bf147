"""The shape of a pipeline: ranks, chunks, stages, micro-batches and who holds which stage."""

from collections.abc import Sequence
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

    def chunk_of(self, stage: int) -> int:
        """Return which chunk of its rank ``stage`` is."""
        return stage // self.num_ranks

    @staticmethod
    def of_stages(ranks: Sequence[int], num_micro_batches: int) -> "PipelineShape":
        """Return the shape of a pipeline whose stages live on given ranks.

        Args:
            ranks: Rank of every stage; every rank from 0 to the largest holds at least one.
            num_micro_batches: M.

        Returns:
            The loop or the V where the stages form one, else a :class:`MappedShape`.

        Raises:
            ValueError: A rank holds no stage.
        """
        num_ranks = max(ranks) + 1
        idle = sorted(set(range(num_ranks)) - set(ranks))
        if idle:
            raise ValueError(f"every rank holds a stage (ranks: {num_ranks}, without one: {idle})")
        num_chunks, rest = divmod(len(ranks), num_ranks)
        for placement in PLACEMENTS:
            if not rest and (placement == "loop" or num_chunks == 2):
                shape = PipelineShape(num_ranks, num_chunks, num_micro_batches, placement)
                if [shape.rank_of(stage) for stage in range(shape.num_stages)] == list(ranks):
                    return shape
        most = max(list(ranks).count(rank) for rank in range(num_ranks))
        return MappedShape(num_ranks, most, num_micro_batches, ranks=tuple(ranks))

    def __str__(self) -> str:
        text = f"P={self.num_ranks} V={self.num_chunks} M={self.num_micro_batches}"
        return text if self.placement == "loop" else f"{text} placement={self.placement}"


@dataclass(frozen=True)
class MappedShape(PipelineShape):
    """The shape of orders that somebody wrote down for stages in neither a loop nor a V; no schedule builds one.

    Args:
        num_ranks: P.
        num_chunks: Stages of the rank that holds most.
        num_micro_batches: M.
        placement: Of no meaning here.
        ranks: Rank of every stage.
    """

    ranks: tuple[int, ...] = ()

    @property
    def num_stages(self) -> int:
        """S."""
        return len(self.ranks)

    def rank_of(self, stage: int) -> int:
        """Return the rank that holds ``stage``."""
        return self.ranks[stage]

    def stage_of(self, rank: int, chunk: int) -> int:
        """Return the stage that is chunk ``chunk`` of rank ``rank``."""
        return self.stages_of(rank)[chunk]

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the stages that ``rank`` holds, ascending."""
        return tuple(stage for stage, home in enumerate(self.ranks) if home == rank)

    def chunk_of(self, stage: int) -> int:
        """Return which chunk of its rank ``stage`` is."""
        return self.stages_of(self.ranks[stage]).index(stage)

    def __str__(self) -> str:
        ranks = ",".join(map(str, self.ranks))
        return f"P={self.num_ranks} M={self.num_micro_batches} stages on ranks {ranks}"
