"""What the actions of a plan cost, in any one unit of time."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from hyper_pp.actions import Action, Op
from hyper_pp.dependencies import Dependencies

Cost = float | Sequence[float]  # the same for all stages, or one number per stage


@dataclass(frozen=True)
class Costs:
    """Durations of compute ops, messages and collectives, all in the same unit.

    Args:
        F: Forward of a stage: a number, or one number per stage.
        B: Full backward of a stage, likewise.
        I: Input-gradient half of a split backward, likewise.
        W: Weight-gradient half, likewise.
        TF: Forward of the preprocess block.
        TB: Backward of the preprocess block, without the recompute.
        comm: Latency of a message from one rank to another.
        collective: BCAST_T or REDUCE_T, from the last rank's arrival.

    Raises:
        ValueError: A cost is negative, infinite or not a number.
    """

    F: Cost = 1.0
    B: Cost = 2.0
    I: Cost = 1.0  # noqa: E741 - the op's name
    W: Cost = 1.0
    TF: float = 1.0
    TB: float = 2.0
    comm: float = 0.0
    collective: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _PER_STAGE and isinstance(value, Sequence) and not isinstance(value, str):
                checked: float | tuple[float, ...] = tuple(_check(field.name, item) for item in value)
            else:
                checked = _check(field.name, value)
            object.__setattr__(self, field.name, checked)

    @classmethod
    def parse(cls, text: str) -> "Costs":
        """Read costs from text such as ``F=1,B=2,comm=.01``; stages apart: ``F=1:1:2:1``.

        Raises:
            ValueError: A name is unknown or twice, or a value isn't a number of at least 0.
        """
        names = [field.name for field in fields(cls)]
        values: dict[str, float | tuple[float, ...]] = {}
        for item in text.split(","):
            name, equals, value = (part.strip() for part in item.partition("="))
            if not equals:
                raise ValueError(f"costs are NAME=NUMBER pairs joined by commas, such as F=1,B=2 (got {item!r})")
            if name not in names:
                raise ValueError(f"costs are {', '.join(names)} (got {name!r})")
            if name in values:
                raise ValueError(f"cost {name} is given twice")
            numbers = tuple(_number(name, part) for part in value.split(":"))
            if len(numbers) > 1 and name not in _PER_STAGE:
                raise ValueError(f"cost {name} is the same for all stages: one number (got {value!r})")
            values[name] = numbers if len(numbers) > 1 else numbers[0]
        return cls(**values)  # type: ignore[arg-type]

    def of_stages(self, op: Op, num_stages: int) -> tuple[float, ...]:
        """Return the cost of F, B, I or W for each stage.

        Raises:
            ValueError: It was given for another number of stages.
        """
        cost = getattr(self, op.value)
        if not isinstance(cost, tuple):
            return (cost,) * num_stages
        if len(cost) != num_stages:
            raise ValueError(f"cost {op} holds one number per stage (stages: {num_stages}, numbers: {len(cost)})")
        return cost

    def text(self, names: Iterable[str]) -> str:
        """Return some of the costs as text, in the form that :meth:`parse` reads, but with blanks."""
        values = {name: getattr(self, name) for name in names}
        return " ".join(
            f"{name}={':'.join(f'{number:g}' for number in (value if isinstance(value, tuple) else (value,)))}"
            for name, value in values.items()
        )

    def __str__(self) -> str:
        return self.text(field.name for field in fields(self))


_PER_STAGE = ("F", "B", "I", "W")


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"cost {name} must be a number of at least 0 (got {text!r})") from None


def _check(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"cost {name} must be a number of at least 0 (got {value!r})")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"cost {name} must be a finite number of at least 0 (got {number:g})")
    return number


class Prices:
    """The price of each compute action of one plan.

    Args:
        costs: Durations of the ops.
        dependencies: Of the plan; they say where the preprocess block runs inside another action, and what it repeats.
    """

    def __init__(self, costs: Costs, dependencies: Dependencies) -> None:
        num_stages = dependencies.shape.num_stages
        self._costs = costs
        self._dependencies = dependencies
        self._of_stage = {op: costs.of_stages(op, num_stages) for op in (Op.F, Op.B, Op.I, Op.W)}
        transpose = dependencies.transpose
        # A central backward starts from the block's input; so does an owner that kept only the input.
        self.recomputes = transpose is not None and (transpose.backward == "central" or transpose.recompute)

    def duration(self, action: Action) -> float:
        """Return how long a compute action takes."""
        stage, op, m = action
        if op is Op.TF:
            return self._costs.TF
        if op is Op.TB:
            return self._costs.TB + self.repeated(action)
        assert isinstance(op, Op)
        duration = self._of_stage[op][stage]
        if stage == 0 and self._dependencies.transpose is not None and m is not None:
            if op is Op.F and self._dependencies.runs_in_forward(m):
                duration += self._costs.TF
            elif op in (Op.B, Op.I) and self._dependencies.is_connected(m):
                duration += self._costs.TB
        return duration

    def repeated(self, action: Action) -> float:
        """Return how much of an action's duration only repeats what was computed before."""
        return self._costs.TF if action.op is Op.TB and self.recomputes else 0.0
