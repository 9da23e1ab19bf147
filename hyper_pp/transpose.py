"""What a plan says of its preprocess block: owners of the micro-batches and how its backward runs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hyper_pp.errors import PlanFormatError
from hyper_pp.shape import check_count

Backward = Literal["owner", "central"]


@dataclass(frozen=True)
class Transpose:
    """The preprocess block of a plan: the first layers, a vision tower or only the data loading.

    Args:
        owners: Rank that runs the block's forward, for each micro-batch.
        num_layers: T, how many of the model's first layers the block holds; 0 for data only, None if the block is a
            module of its own.
        frozen: The block has nothing to train (always so for T = 0), so no backward, and no parameters travel.
        backward: ``"central"``: rank 0 runs the block's backward, by recompute. ``"owner"``: each owner runs it.
        explicit_backward: Central only: micro-batches that rank 0 runs inline get an explicit recompute backward too,
            instead of staying connected to stage 0 through autograd.
        recompute: Owner only: the owner keeps the block's inputs and recomputes, instead of keeping its graph.
        max_live: Most micro-batches of the block that one rank may hold at a time; None for no limit.
    """

    owners: tuple[int, ...]
    num_layers: int | None = None
    frozen: bool = False
    backward: Backward = "central"
    explicit_backward: bool = False
    recompute: bool = False
    max_live: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "owners", tuple(self.owners))
        for owner in self.owners:
            check_count("transpose: every owner", owner, minimum=0)
        if self.num_layers is not None:
            check_count("transpose: num_layers", self.num_layers, minimum=0)
        if self.max_live is not None:
            check_count("transpose: max_live", self.max_live)
        for name in ("frozen", "explicit_backward", "recompute"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"transpose: {name} must be true or false (got {getattr(self, name)!r})")
        if self.backward not in ("owner", "central"):
            raise ValueError(f"transpose: backward must be owner or central (got {self.backward!r})")
        if self.num_layers == 0 and not self.frozen:
            raise ValueError("transpose: num_layers 0 spreads data only and has nothing to train: frozen must be true")

    def to_json(self) -> dict[str, Any]:
        """Return the ``transpose`` object of the plan's JSON form."""
        fields = asdict(self)
        owners = list(fields.pop("owners"))
        return {**fields, "owners": owners}

    @classmethod
    def from_json(cls, data: object) -> "Transpose":
        """Read the ``transpose`` object of a plan's JSON form.

        Raises:
            PlanFormatError: A key is missing or unknown, or a value is of the wrong kind.
        """
        if not isinstance(data, Mapping):
            raise PlanFormatError(f"transpose must be an object (got {data!r})")
        expected = set(cls.__dataclass_fields__)
        if set(data) != expected:
            difference = ", ".join(sorted(expected ^ set(data)))
            raise PlanFormatError(
                f"transpose needs the keys {', '.join(sorted(expected))} (missing or unknown: {difference})"
            )
        if not isinstance(data["owners"], Sequence) or isinstance(data["owners"], str):
            raise PlanFormatError(f"transpose: owners must be a list of ranks (got {data['owners']!r})")
        try:
            return cls(**data)
        except (TypeError, ValueError) as error:
            raise PlanFormatError(str(error)) from error
