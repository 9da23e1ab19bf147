"""PipelineTrainOneStepCell: a pipeline step and the optimizer's update in one call."""

from collections.abc import Iterator
from typing import Any

from mindspore import Parameter, Tensor, nn

from hyper_pp.mindspore.pipeline import PipelineCell


class PipelineTrainOneStepCell(nn.Cell):
    r"""
    Runs one training step of a :class:`PipelineCell`, lets the optimizer update this rank's parameters and clears the
    gradients. It can be passed to ``mindspore.train.Model``.

    Args:
        network (PipelineCell): The pipeline.
        optimizer (Optimizer): Of ``network.trainable_params()``; ``None`` on a rank that trains nothing.

    Inputs:
        - **\*inputs** (Any) - As for the network, the target last.
        - **\*\*kwargs** (Any) - As for the network.

    Outputs:
        Tensor, float32 of shape :math:`()`, the mean loss of the batch, on every rank.

    Raises:
        TypeError: ``network`` isn't a :class:`PipelineCell`.
        ValueError: The optimizer's parameters aren't this rank's trainable parameters.

    Supported Platforms:
        ``Ascend`` ``CPU``
    """

    def __init__(self, network: PipelineCell, optimizer: nn.Optimizer | None) -> None:
        super().__init__(auto_prefix=False)
        if not isinstance(network, PipelineCell):
            raise TypeError(f"network must be a PipelineCell (got {type(network).__name__})")
        self.network = network
        self.optimizer = optimizer
        mine = network.trainable_params()
        updated = [] if optimizer is None else list(optimizer.parameters)
        position = {id(parameter): index for index, parameter in enumerate(mine)}
        foreign = [parameter.name for parameter in updated if id(parameter) not in position]
        if foreign or len(updated) != len(mine):
            left_out = {id(parameter) for parameter in updated}
            missing = [parameter.name for parameter in mine if id(parameter) not in left_out]
            raise ValueError(
                "the optimizer must be made of network.trainable_params() "
                f"(not this rank's: {foreign}, left out: {missing})"
            )
        # Parameter groups may have another order than trainable_params().
        self._positions = [position[id(parameter)] for parameter in updated]

    def parameters_and_names(self, name_prefix: str = "", expand: bool = True) -> Iterator[tuple[str, Parameter]]:
        """Yield (name, parameter) of this rank's part of the model and of the optimizer's state."""
        yield from self.network.parameters_and_names(name_prefix)
        mine = {id(parameter) for parameter in self.network.get_parameters()}
        for name, parameter in self.optimizer.parameters_and_names(name_prefix) if self.optimizer is not None else ():
            if id(parameter) not in mine:
                yield name, parameter

    def construct(self, *inputs: Any, **kwargs: Any) -> Tensor:
        """Run one step; return the mean loss."""
        loss = self.network(*inputs, **kwargs)
        if self.optimizer is not None:
            gradients = self.network.gradients()
            self.optimizer(tuple(gradients[index] for index in self._positions))
        self.network.clear_gradients()
        return loss
