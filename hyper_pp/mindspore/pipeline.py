"""PipelineCell: a network cut into stages, one training or evaluation step per call."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mindspore import Parameter, Tensor, get_seed, nn

from hyper_pp.choose import ScheduleChoice, check_same_plan, choose_plan, open_schedule
from hyper_pp.engine import PipelineEngine
from hyper_pp.microbatch import merge
from hyper_pp.mindspore import autograd
from hyper_pp.mindspore.batches import BatchSplitter
from hyper_pp.mindspore.model import Network, name_fresh, take_apart
from hyper_pp.mindspore.profile import NamedRange
from hyper_pp.mindspore.random import seeded
from hyper_pp.mindspore.stage import CellStage
from hyper_pp.mindspore.tensors import MindSporeTensors, on_cpu
from hyper_pp.mindspore.transport import MindSporeTransport
from hyper_pp.plan import Plan
from hyper_pp.shape import check_count
from hyper_pp.step import StepInputs, StepResult


class PipelineCell(nn.Cell):
    r"""
    Wraps a network so that a call runs one pipeline-parallel training step: all micro-batches forwards and backwards.

    Every rank constructs it with the same arguments. Gradients accumulate until :meth:`clear_gradients`; use
    :class:`PipelineTrainOneStepCell` for a step that also updates the parameters.

    Args:
        network (Union[SequentialCell, CellList, list[Cell], Callable]): The layers of the whole model, which are split
            over the stages, or a function ``stage_index -> Cell`` so that a rank builds only what it holds. A tuple
            that a layer returns becomes the positional inputs of the next.
        loss_fn (Callable): Takes the network's output and the target of one micro-batch, returns a tensor of shape
            :math:`()`, the mean over the micro-batch.
        micro_size (int): Number of micro-batches :math:`M`, at least 1.
        schedule (Union[str, Plan, os.PathLike]): A name of ``hyper-pp schedules``, a plan, or a plan file.
            Default: ``"interleaved"``.
        num_chunks (int): Model chunks per rank, :math:`V`. Default: ``1``.
        num_transpose_layers (int): The first :math:`T` layers form the preprocess block, which runs for different
            micro-batches on all ranks at once; with 0, schedules that have a block spread only the data.
            Default: ``0``.
        preprocess (Cell): A preprocess block of its own, for example a vision tower. Default: ``None``.
        partition (list[int]): Layers per stage, after the first :math:`T`; they sum to :math:`L-T`.
            Default: ``None``, an even split.
        weight_fn (Callable): Takes a target micro-batch, returns its weight, for example its number of valid tokens.
            Default: ``None``, micro-batches are weighted by their number of samples.
        args_batch_dim (Union[int, list]): Batch dimension of all positional inputs, or one entry per input (and one for
            the target, if wished); ``None`` entries go whole to every micro-batch. Default: ``None``, dimension 0.
        kwargs_batch_dim (dict): Batch dimension by keyword, dimension 0 where left out. Default: ``None``.
        output_concat_dim (Union[int, tuple, dict]): Dimension along which :meth:`eval_step` joins outputs.
            Default: ``0``.
        transpose_options (dict): Options of the preprocess block, the keys of a plan's ``transpose``: ``frozen``,
            ``explicit_backward``, ... Default: ``None``.
        sharded_inputs (bool): Each rank passes only the micro-batches it owns, joined in index order; the target is
            passed whole on the last stage's rank. Default: ``False``, every rank passes the whole batch.
        overlap_p2p (bool): Wait for a received tensor at its first use instead of at the transfer. Default: ``False``.
        dynamic_shapes (bool): Shapes may change from step to step; costs a small message per transfer.
            Default: ``False``.
        data_parallel (int): Number of pipelines side by side; only 1 is supported. Default: ``1``.
        layout (str): ``"pp"``: consecutive ranks form a pipeline. Default: ``"pp"``.
        group (Union[list[int], str]): Global ranks of the pipeline, or the name of a group of them.
            Default: ``None``, all ranks.

    Inputs:
        - **\*inputs** (Any) - Inputs of the whole batch, any nesting of tensors and plain values; the last one is the
          target. Inputs go to the preprocess block, or to stage 0 without one.
        - **\*\*kwargs** (Any) - Keyword inputs of the preprocess block, or of stage 0 without one.

    Outputs:
        Tensor, float32 of shape :math:`()`, the mean loss of the batch, on every rank.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: Arguments contradict each other, the job or the plan.
        RuntimeError: MindSpore is in graph mode, or too old.
        PipelineError: While running: an action failed; the text names rank, action, micro-batch and step.

    Supported Platforms:
        ``Ascend`` ``CPU``

    Examples:
        >>> from mindspore import nn
        >>> from hyper_pp.mindspore import PipelineCell, PipelineTrainOneStepCell
        >>> layers = nn.SequentialCell(nn.Dense(16, 32), nn.ReLU(), nn.Dense(32, 10))
        >>> net = PipelineCell(layers, nn.CrossEntropyLoss(), micro_size=4, schedule="1f1b")
        >>> step = PipelineTrainOneStepCell(net, nn.Adam(net.trainable_params()))
        >>> loss = step(x, y)
    """

    def __init__(
        self,
        network: Network,
        loss_fn: Callable[[Any, Any], Tensor],
        *,
        micro_size: int,
        schedule: ScheduleChoice = "interleaved",
        num_chunks: int = 1,
        num_transpose_layers: int = 0,
        preprocess: nn.Cell | None = None,
        partition: Sequence[int] | None = None,
        weight_fn: Callable[[Any], Any] | None = None,
        args_batch_dim: int | Sequence[Any] | None = None,
        kwargs_batch_dim: Mapping[str, Any] | None = None,
        output_concat_dim: Any = 0,
        transpose_options: Mapping[str, Any] | None = None,
        sharded_inputs: bool = False,
        overlap_p2p: bool = False,
        dynamic_shapes: bool = False,
        data_parallel: int = 1,
        layout: str = "pp",
        group: Sequence[int] | str | None = None,
    ) -> None:
        super().__init__(auto_prefix=False)
        check_count("micro_size", micro_size)
        check_count("num_chunks", num_chunks)
        if layout not in ("pp", "dp"):
            raise ValueError(f'layout must be "pp" or "dp" (got {layout!r})')
        if check_count("data_parallel", data_parallel) != 1:
            raise ValueError(f"data_parallel must be 1: pipelines side by side aren't supported (got {data_parallel})")
        if not callable(loss_fn):
            raise TypeError(f"loss_fn must be callable: loss_fn(output, target) -> scalar (got {loss_fn!r})")
        autograd.require_support()
        self._transport = MindSporeTransport(group)
        rank, num_ranks = self._transport.rank, self._transport.num_ranks
        shape, schedule = open_schedule(
            schedule, num_ranks=num_ranks, num_chunks=num_chunks, num_micro_batches=micro_size
        )
        seed = self._agree((shape, num_transpose_layers, schedule if isinstance(schedule, str) else None))
        model = take_apart(
            network,
            shape,
            rank,
            num_transpose_layers=num_transpose_layers,
            preprocess=preprocess,
            partition=partition,
            building=lambda stage: seeded(seed + stage),
        )
        block = None if model.block is None else CellStage(model.block, name="the preprocess block")
        plan = choose_plan(
            schedule,
            num_ranks=num_ranks,
            num_chunks=num_chunks,
            num_micro_batches=micro_size,
            block_layers=model.block_layers,
            frozen=block is None or not block.trainable(),
            explicit_backward=True,
            transpose_options=transpose_options,
        )
        check_same_plan(plan, self._transport)
        self._tensors = MindSporeTensors()
        self._last_rank = shape.rank_of(shape.num_stages - 1)
        if isinstance(loss_fn, nn.Cell):
            name_fresh([loss_fn], ["loss_fn"])
        loss = CellStage(loss_fn, name="the loss function")
        self._engine = PipelineEngine(
            plan,
            rank,
            {stage: CellStage(chain, name=f"stage {stage}") for stage, chain in model.stages.items()},
            self._transport,
            self._tensors,
            loss=loss if rank == self._last_rank else None,
            preprocess=block,
            overlap_p2p=overlap_p2p,
            dynamic_shapes=dynamic_shapes,
            seed=seed,
            named_range=None if on_cpu() else NamedRange,
        )
        self._batches = BatchSplitter(
            self._engine,
            weight_fn=weight_fn,
            args_batch_dim=args_batch_dim,
            kwargs_batch_dim=kwargs_batch_dim,
            sharded_inputs=sharded_inputs,
            dynamic_shapes=dynamic_shapes,
        )
        self._output_concat_dim = output_concat_dim
        # Plain attributes, not sub-cells: what this rank owns is told by parameters_and_names, replicas aside.
        owned_block = [model.block] if model.block is not None and rank == 0 else []
        self._owned = (*owned_block, *model.stages.values(), *([loss_fn] if rank == self._last_rank else []))
        self._replica = model.block if rank != 0 else None
        self._block = block
        if block is not None and num_ranks > 1:
            self._transport.broadcast(block.buffers(), 0)

    # -- steps ---------------------------------------------------------------------------------------------------

    def construct(self, *inputs: Any, **kwargs: Any) -> Tensor:
        """Run one training step; return the mean loss."""
        autograd.require_support()
        step = self._batches.split(inputs, kwargs, training=True)
        self._follow_buffers()
        return self._mean_loss(self._engine.run(step), step)

    def eval_step(self, *inputs: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        """Run the forwards only, in evaluation mode.

        Args:
            *inputs: As for a training step, the target last.
            **kwargs: As for a training step.

        Returns:
            The mean loss on every rank, and the joined outputs on the last stage's rank, elsewhere None. No gradient,
            graph or changed state is left.
        """
        autograd.require_support()
        step = self._batches.split(inputs, kwargs, training=False)
        self._follow_buffers()
        modes = [(cell, cell.training) for top in self._cells_here() for _, cell in top.cells_and_names()]
        for cell, _ in modes:
            cell.training = False
        try:
            result = self._engine.run(step)
        finally:
            for cell, mode in modes:
                cell.training = mode
        loss = self._mean_loss(result, step)
        outputs = [result.outputs[m] for m in sorted(result.outputs)]
        return loss, merge(outputs, self._output_concat_dim, self._tensors) if outputs else None

    def _follow_buffers(self) -> None:
        # Only rank 0's forwards count in the block's buffers; the replicas follow.
        if self._block is not None and self._transport.num_ranks > 1:
            self._transport.broadcast(self._block.small_buffers(), 0)

    def _mean_loss(self, result: StepResult, step: StepInputs) -> Tensor:
        order = sorted(result.losses)
        weighted = [(result.losses[m], step.weights[m]) for m in order if step.weights[m]]
        loss = self._tensors.weighted_sum([loss for loss, _ in weighted], [weight for _, weight in weighted])
        if self._transport.num_ranks > 1:
            self._transport.broadcast([loss], self._last_rank)
        return loss

    # -- parameters and gradients --------------------------------------------------------------------------------

    def trainable_params(self, recurse: bool = True) -> list[Parameter]:
        """Return the trainable parameters this rank updates, under the names they have in the whole model.

        The preprocess block's are on rank 0; its replicas elsewhere follow.
        """
        return [parameter for parameter in self.get_parameters() if parameter.requires_grad]

    def parameters_and_names(self, name_prefix: str = "", expand: bool = True) -> Iterator[tuple[str, Parameter]]:
        """Yield (name, parameter) of this rank's part of the model, each once."""
        seen: set[int] = set()
        for cell in self._owned:
            for parameter in cell.get_parameters() if isinstance(cell, nn.Cell) else ():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield name_prefix + parameter.name, parameter

    def get_parameters(self, expand: bool = True) -> Iterator[Parameter]:
        """Yield this rank's part of the model's parameters, each once."""
        return (parameter for _, parameter in self.parameters_and_names())

    def gradients(self) -> tuple[Tensor, ...]:
        """Return the accumulated gradients, aligned with :meth:`trainable_params`; zeros where none arrived."""
        found: dict[int, Tensor] = {}  # a parameter that two stages of this rank share has two gradients
        for stage in self._engine.all_stages():
            for parameter, gradient in zip(stage.parameters(), stage.gradients()):
                if gradient is not None:
                    known = found.get(id(parameter))
                    found[id(parameter)] = gradient if known is None else self._tensors.add(known, gradient)
        return tuple(
            found[id(parameter)] if id(parameter) in found else self._zeros_like(parameter)
            for parameter in self.trainable_params()
        )

    def _zeros_like(self, parameter: Parameter) -> Tensor:
        return self._tensors.full(self._tensors.spec(parameter), 0.0)

    def clear_gradients(self) -> None:
        """Forget the accumulated gradients."""
        for stage in self._engine.all_stages():
            stage.set_gradients([None] * len(stage.parameters()))

    def set_train(self, mode: bool = True) -> "PipelineCell":
        """Set training or evaluation mode, also of the preprocess block's replicas."""
        super().set_train(mode)
        for cell in self._cells_here():
            cell.set_train(mode)
        return self

    def _cells_here(self) -> list[nn.Cell]:
        cells = [*self._owned, *([] if self._replica is None else [self._replica])]
        return [cell for cell in cells if isinstance(cell, nn.Cell)]

    # -- what can be looked at -----------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """The plan that runs."""
        return self._engine.plan

    @property
    def engine(self) -> PipelineEngine:
        """The engine that runs it."""
        return self._engine

    @property
    def num_transposed(self) -> int:
        """NT, the micro-batches whose block forward is spread over the ranks."""
        return self._engine.num_transposed

    @property
    def preprocess_trainable(self) -> bool:
        """Whether the preprocess block trains."""
        return self._engine.preprocess_trainable

    # -- inside --------------------------------------------------------------------------------------------------

    def _agree(self, settings: Any) -> int:
        """Check that all ranks were given the same settings; return the seed of rank 0, drawn where none was set."""
        own = get_seed()
        seed = int.from_bytes(os.urandom(3), "big") if own is None else int(own)
        gathered = self._transport.all_gather_object((settings, seed))
        for rank, (other, _) in enumerate(gathered):
            if other != gathered[0][0]:
                raise ValueError(f"all ranks need the same arguments (rank 0: {gathered[0][0]}, rank {rank}: {other})")
        return gathered[0][1]
