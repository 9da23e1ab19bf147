"""What goes into one training or evaluation step on one rank, and what comes out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hyper_pp.protocols import Tensor, Value


@dataclass
class StepInputs:
    """What one rank puts into a step.

    Args:
        inputs: (args, kwargs) of the micro-batches whose first forward runs on this rank.
        targets: Targets by micro-batch; needed on the rank of the last stage. In an evaluation they may be left out,
            and no loss is computed.
        weights: Each micro-batch's share of the loss.
        training: Run backwards too.
        keep_outputs: Keep the last stage's outputs.
        stage_kwargs: Keyword inputs of this rank's stages beyond stage 0, by (stage, micro-batch).
        loss_kwargs: Keyword inputs of the loss function.
    """

    inputs: Mapping[int, tuple[tuple[Value, ...], Mapping[str, Value]]]
    targets: Mapping[int, Value]
    weights: Sequence[float]
    training: bool = True
    keep_outputs: bool = False
    stage_kwargs: Mapping[tuple[int, int], Mapping[str, Value]] = field(default_factory=dict)
    loss_kwargs: Mapping[str, Value] = field(default_factory=dict)


@dataclass
class StepResult:
    """What one rank gets out of a step; filled on the rank of the last stage.

    Args:
        losses: Unweighted loss of each micro-batch.
        outputs: The last stage's outputs by micro-batch, if they were kept.
    """

    losses: dict[int, Tensor] = field(default_factory=dict)
    outputs: dict[int, Value] = field(default_factory=dict)
