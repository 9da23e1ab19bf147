"""Schedules that torch has not: transpose, MPipe Transpose, and any plan from a file."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hyper_pp import plan_files
from hyper_pp.choose import choose_plan
from hyper_pp.costs import Costs
from hyper_pp.engine import PipelineEngine
from hyper_pp.plan import Plan
from hyper_pp.protocols import Value
from hyper_pp.schedules.transpose import Owners
from hyper_pp.shards import SizeAgreement
from hyper_pp.torch_npu.data_parallel import Sharded, gradient_sync
from hyper_pp.torch_npu.schedule_base import PipelineSchedule, PlanMaker
from hyper_pp.transpose import Backward
from hyper_pp.tree import flatten


class BlockSchedule(PipelineSchedule):
    """Base of the schedules that may have a preprocess block; see :class:`ScheduleTranspose`."""

    def __init__(
        self,
        stages: Sequence[Any],
        n_microbatches: int,
        loss_fn: Callable[..., torch.Tensor] | None,
        make_plan: Callable[[int, int, int], Plan],
        *,
        preprocess: nn.Module | None = None,
        sharded_inputs: bool = False,
        weight_fn: Callable[[Any], Any] | None = None,
        dynamic_shapes: bool = False,
        overlap_p2p: bool = True,
        **options: Any,
    ) -> None:
        _check_block(preprocess)
        super().__init__(stages, n_microbatches, loss_fn, make_plan, preprocess=preprocess, **options)
        self._sharded_inputs = sharded_inputs
        self.configure(dynamic_shapes=dynamic_shapes, weight_fn=weight_fn, overlap_p2p=overlap_p2p)

    def _make_engine(self) -> PipelineEngine:
        engine = super()._make_engine()
        block = engine.preprocess.stage if engine.preprocess is not None else None
        if block is not None:
            # Trainable parameters follow with every step; the rest of the state is rank 0's from here on.
            self._transport.broadcast(block.buffers(), 0)
        self._agreement = SizeAgreement(
            self._transport, self._input_micro_batches, self._n_microbatches, every_step=self.dynamic_shapes
        )
        self._block_buffers = [] if self._preprocess is None else list(self._preprocess.buffers())
        return engine

    def _before_run(self) -> None:
        # Only rank 0's forwards count in the block's buffers; the replicas follow.
        if self._block_buffers:
            self._transport.broadcast(self._block_buffers, 0)

    def _cut_inputs(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Mapping[int, tuple[Any, Any]], Mapping[tuple[int, int], Mapping[str, Value]]]:
        if self.plan.transpose is not None:
            _check_leaves(args, kwargs)
        if not self._sharded_inputs:
            return super()._cut_inputs(args, kwargs)
        self._sizes = self._agreement.of_step(lambda: self._cutter.batch_size(args, kwargs))
        return self._cutter.cut_shard(args, kwargs, self._input_micro_batches, self._sizes), {}

    def _cut_target(self, target: Any, training: bool) -> tuple[Mapping[int, Any], Sequence[float]]:
        if self._sharded_inputs and self.engine.has_last_stage:
            size = self._cutter.target_size(target)
            if size is not None and size != sum(self._sizes):
                raise ValueError(f"inputs and target disagree on the batch size: {sum(self._sizes)} and {size}")
        return super()._cut_target(target, training)


class ScheduleTranspose(BlockSchedule):
    """Interleaved 1F1B whose preprocess block fills the time in which the ranks would idle.

    Every micro-batch of the block has an owner, which runs its forward, ships the output to rank 0, keeps the graph and
    runs the backward when rank 0 sends the output's gradient. The gradients are summed onto rank 0, where the block
    trains; the modules of other ranks are replicas that follow, and what their buffers count there is dropped. Random
    numbers of a block that trains are drawn from one seed per micro-batch. Every rank passes the whole batch.

    Args:
        stages: This rank's stages, in the loop placement.
        n_microbatches: M.
        loss_fn: Called with (output, target) of a micro-batch; None runs forwards only.
        preprocess: Module in front of stage 0; None spreads the data only.
        num_transpose_layers: How many of the model's layers it holds; None if it is a module of its own. 0: data only.
        backward: ``"owner"`` as above. ``"central"``: rank 0 gets the block's inputs too, and recomputes.
        frozen: The block has nothing to train; None: as its parameters say.
        recompute: Owner backward only: keep the block's inputs and run its forward again, instead of keeping the graph.
        max_live: Owner backward only: most micro-batches of the block that a rank may hold from forward to backward.
        owners: ``"round_robin"``, ``"inline"`` (all on rank 0) or the rank of each micro-batch; None: the faster one.
        costs: Durations to plan for; see :class:`hyper_pp.Costs`.
        less_memory: Hold no more stage inputs than interleaved 1F1B with ``less_memory``.
        sharded_inputs: Each rank passes only the micro-batches it owns, joined in index order; see
            :func:`hyper_pp.owned_micro_batches`. The target stays whole, on the last stage's rank.
        args_chunk_spec: How positional arguments are split; None: along dimension 0.
        kwargs_chunk_spec: How keyword arguments are split, by keyword; they go to the block.
        output_merge_spec: How outputs are joined; None: along dimension 0.
        scale_grads: As for the other schedules.
        weight_fn: Target of a micro-batch → its weight in the mean.
        dynamic_shapes: Shapes that cross stages may change at every micro-batch.
        overlap_p2p: False waits at each transfer.

    Raises:
        ValueError: Stages, block and options don't fit together.
    """

    def __init__(
        self,
        stages: Sequence[Any],
        n_microbatches: int,
        loss_fn: Callable[..., torch.Tensor] | None = None,
        *,
        preprocess: nn.Module | None,
        num_transpose_layers: int | None = None,
        backward: Backward = "owner",
        frozen: bool | None = None,
        recompute: bool = False,
        max_live: int | None = None,
        owners: Owners | None = None,
        costs: Costs | None = None,
        less_memory: bool = False,
        **options: Any,
    ) -> None:
        chosen = {
            "backward": backward,
            "recompute": recompute,
            "max_live": max_live,
            "owners": owners,
            "costs": costs,
            "less_memory": less_memory,
        }
        make_plan = _plan_maker("transpose", preprocess, num_transpose_layers, frozen, chosen)
        super().__init__(stages, n_microbatches, loss_fn, make_plan, preprocess=preprocess, **options)


class ScheduleMPipeTranspose(BlockSchedule):
    """Interleaved 1F1B whose preprocess block runs on all ranks at once for the first min(P, M) micro-batches.

    Rank m runs the block for micro-batch m < min(P, M) and ships input and output to rank 0, which recomputes it for
    its backward. For the other micro-batches rank 0 runs the block in front of stage 0, connected through autograd.
    The block trains on rank 0; the modules of other ranks are replicas that follow. Every rank passes the whole batch.

    Args:
        stages: This rank's stages, in the loop placement.
        n_microbatches: M.
        loss_fn: Called with (output, target) of a micro-batch; None runs forwards only.
        preprocess: Module in front of stage 0; None spreads the data only.
        num_transpose_layers: How many of the model's layers it holds; None if it is a module of its own. 0: data only.
        explicit_backward: Recompute the block's backward for all micro-batches instead.
        less_memory: Fewer live micro-batches, more bubble; as for interleaved 1F1B.
        frozen: The block has nothing to train; None: as its parameters say.
        sharded_inputs: Each rank passes only the micro-batches it owns, joined in index order: rank 0 those of index 0
            and from min(P, M) on, rank m that of index m. The target stays whole, on the last stage's rank.
        args_chunk_spec: How positional arguments are split; None: along dimension 0.
        kwargs_chunk_spec: How keyword arguments are split, by keyword; they go to the block.
        output_merge_spec: How outputs are joined; None: along dimension 0.
        scale_grads: As for the other schedules.
        weight_fn: Target of a micro-batch → its weight in the mean.
        dynamic_shapes: Shapes that cross stages may change at every micro-batch.
        overlap_p2p: False waits at each transfer.

    Raises:
        ValueError: Stages, block and options don't fit together.
    """

    def __init__(
        self,
        stages: Sequence[Any],
        n_microbatches: int,
        loss_fn: Callable[..., torch.Tensor] | None = None,
        *,
        preprocess: nn.Module | None,
        num_transpose_layers: int | None = None,
        explicit_backward: bool = False,
        less_memory: bool = False,
        frozen: bool | None = None,
        **options: Any,
    ) -> None:
        chosen = {"explicit_backward": explicit_backward, "less_memory": less_memory}
        make_plan = _plan_maker("mpipe", preprocess, num_transpose_layers, frozen, chosen)
        super().__init__(stages, n_microbatches, loss_fn, make_plan, preprocess=preprocess, **options)


class ScheduleFromPlan(BlockSchedule):
    """Runs a plan, or a plan file in our JSON or torch's CSV form.

    Args:
        stages: This rank's stages, where the plan has them.
        plan_or_file: A plan or the path of a file.
        loss_fn: Called with (output, target) of a micro-batch; None runs forwards only.
        preprocess: Module of the preprocess block, for plans that have one.
        **options: As for :class:`ScheduleTranspose`: chunk and merge specs, ``scale_grads``, ``sharded_inputs``,
            ``weight_fn``, ``dynamic_shapes``, ``overlap_p2p``.

    Raises:
        PlanFormatError: The file isn't a plan.
        ScheduleError: The plan doesn't hold.
        ValueError: Plan and stages don't fit together.
    """

    def __init__(
        self,
        stages: Sequence[Any],
        plan_or_file: "Plan | str | os.PathLike[str]",
        loss_fn: Callable[..., torch.Tensor] | None = None,
        *,
        preprocess: nn.Module | None = None,
        **options: Any,
    ) -> None:
        plan = plan_or_file if isinstance(plan_or_file, Plan) else plan_files.load(plan_or_file, any_placement=True)
        block_layers = 0 if plan.transpose is None else plan.transpose.num_layers

        def make_plan(num_ranks: int, num_chunks: int, num_micro_batches: int) -> Plan:
            return choose_plan(
                plan,
                num_ranks=num_ranks,
                num_chunks=num_chunks,
                num_micro_batches=num_micro_batches,
                block_layers=block_layers,
            )

        super().__init__(stages, plan.shape.num_micro_batches, loss_fn, make_plan, preprocess=preprocess, **options)


def _plan_maker(
    schedule: str,
    preprocess: nn.Module | None,
    num_transpose_layers: int | None,
    frozen: bool | None,
    chosen: dict[str, Any],
) -> PlanMaker:
    """Return what makes a schedule's plan for this block and these options of the schedule."""
    _check_block(preprocess)
    if preprocess is None and num_transpose_layers is None:
        num_transpose_layers = 0
    trains = preprocess is not None and any(parameter.requires_grad for parameter in preprocess.parameters())
    if frozen is not None:
        chosen = {**chosen, "frozen": frozen}

    def make_plan(num_ranks: int, num_chunks: int, num_micro_batches: int) -> Plan:
        return choose_plan(
            schedule,
            num_ranks=num_ranks,
            num_chunks=num_chunks,
            num_micro_batches=num_micro_batches,
            block_layers=num_transpose_layers,
            frozen=not trains,
            transpose_options=chosen,
        )

    return make_plan


def _check_leaves(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse inputs whose gradient would be lost: the block runs, and runs again, on other ranks than the user's."""
    for leaf in flatten((args, dict(kwargs)), lambda value: isinstance(value, torch.Tensor))[0]:
        if leaf.requires_grad:
            raise ValueError(
                f"an input of shape {list(leaf.shape)} requires a gradient, which stops at the preprocess block: pass "
                "it detached; a layer in front that shall train belongs into the block"
            )


def _check_block(preprocess: object) -> None:
    if preprocess is not None and not isinstance(preprocess, nn.Module):
        raise TypeError(f"preprocess must be a module (got {type(preprocess).__name__})")
    if isinstance(gradient_sync(preprocess), Sharded):
        raise ValueError(
            "preprocess is sharded by fully_shard, but every rank of the pipeline runs a replica of the block: leave "
            "it whole, or wrap it in DistributedDataParallel"
        )
