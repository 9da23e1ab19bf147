"""Our transpose: the preprocess block's work goes where ranks would idle."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from hyper_pp.actions import Op, Orders
from hyper_pp.costs import Costs
from hyper_pp.schedules.block_orders import orders_of
from hyper_pp.schedules.block_step import BlockStep, Sequences, Times
from hyper_pp.schedules.block_templates import inline_sequences, spread_sequences
from hyper_pp.schedules.transpose_search import search
from hyper_pp.shape import PipelineShape
from hyper_pp.transpose import Backward, Transpose

Owners = Literal["round_robin", "inline"] | Sequence[int]


def transpose_orders(
    shape: PipelineShape,
    *,
    num_layers: int | None = None,
    frozen: bool | None = None,
    backward: Backward = "owner",
    recompute: bool = False,
    max_live: int | None = None,
    owners: Owners | None = None,
    less_memory: bool = False,
    costs: Costs | None = None,
) -> tuple[Orders, Transpose]:
    """Return orders in which all micro-batches of the preprocess block fill the ranks' idle time.

    P=2, V=1, M=4 at default costs, without any bubble (communication and collectives left out)::

        rank 0   TF0 0F0 0F1 TF2 0F2 0B0--- 0F3 TB0--- 0B1--- 0B2--- 0B3--- TB2---
        rank 1   TF1 TF3 1F0 1B0--- 1F1 1B1--- 1F2 1B2--- 1F3 1B3--- TB1--- TB3---

    A rank that would idle runs a forward of a micro-batch it owns, early enough that stage 0 never waits for it, or the
    backward of one whose output gradient has come back. Stage 0 starts as soon as the first output is there. The
    sequence of everything, forwards and backwards of the body included, is found by simulation (``transpose_search``),
    and plain orders are taken where they are shorter. No rank holds more stage inputs than a rank of ``interleaved``.
    The same arguments give the same orders on every rank.

    Args:
        shape: Any P, V and M.
        num_layers: T, the layers the block holds; 0 spreads only the data and is always frozen.
        frozen: The block has nothing to train: no backward, and neither parameters nor gradients travel.
        backward: ``"owner"``: the owner keeps its graph and runs the backward. ``"central"``: rank 0 runs it, by
            recompute.
        recompute: Owner backward only: keep the block's inputs and run its forward again, instead of keeping the graph.
        max_live: Owner backward only: most micro-batches of the block that a rank may hold from forward to backward.
        owners: ``"round_robin"``: micro-batch m belongs to rank m mod P. ``"inline"``: all belong to rank 0, which runs
            the block next to stage 0: the yardstick. A sequence: the rank of each micro-batch. None: round robin, but
            inline where that takes less time.
        less_memory: Hold no more stage inputs than ``interleaved`` with ``less_memory``.
        costs: Durations to plan for, by default F=1, B=2, TF=1, TB=2 and nothing for communication.

    Raises:
        ValueError: ``backward`` or ``owners`` is of another kind, ``recompute`` comes with a central backward, or
            ``frozen=False`` with ``num_layers=0``.
    """
    if recompute and backward == "central":
        raise ValueError("recompute is for backward owner: a central backward always recomputes (got backward central)")
    costs = Costs() if costs is None else costs
    frozen = num_layers == 0 if frozen is None else frozen
    transpose = Transpose(
        owners_of(shape, owners),
        num_layers=num_layers,
        frozen=frozen,
        backward=backward,
        explicit_backward=backward == "central" and not frozen,
        recompute=recompute and not frozen,
        max_live=max_live,
    )
    step = BlockStep(shape, transpose, costs)
    if owners == "inline" and step.max_live is None:
        found = [_timed(step, inline_sequences(step, less_memory))]
    else:
        found = list(_candidates(step, less_memory))
    if owners is None and any(transpose.owners):
        inline = BlockStep(shape, replace(transpose, owners=(0,) * shape.num_micro_batches), costs)
        if inline.bound(inline.durations) < min(candidate.times.end for candidate in found):
            found += _candidates(inline, less_memory)
    best = min(found, key=lambda candidate: candidate.times.end)
    return orders_of(best.step, best.times), best.step.transpose


class _Candidate(NamedTuple):
    step: BlockStep
    times: Times


def _timed(step: BlockStep, sequences: Sequences) -> _Candidate:
    return _Candidate(step, step.run(sequences, step.durations))


def _candidates(step: BlockStep, less_memory: bool) -> Iterator[_Candidate]:
    """Yield the best that the search finds, and the plain order of these owners if it keeps to ``max_live``.

    Where rank 0 owns everything a search can't win much: its work is the whole step.
    """
    inline = not any(step.transpose.owners)
    plain = inline_sequences(step, less_memory) if inline else spread_sequences(step, less_memory)
    is_allowed = step.max_live is None or step.peak(plain, Op.TF, Op.TB) <= step.max_live
    if not (inline and is_allowed):
        yield _timed(step, search(step, less_memory))
    if is_allowed:
        yield _timed(step, plain)


def owners_of(shape: PipelineShape, owners: Owners | str | None = None) -> tuple[int, ...]:
    """Return the rank of each micro-batch that an ``owners`` option stands for.

    Raises:
        ValueError: A name is unknown, or a sequence doesn't hold one rank of the pipeline per micro-batch.
    """
    num_ranks, num_micro_batches = shape.num_ranks, shape.num_micro_batches
    if owners is None or owners == "round_robin":
        return tuple(m % num_ranks for m in range(num_micro_batches))
    if owners == "inline":
        return (0,) * num_micro_batches
    if isinstance(owners, str):
        raise ValueError(f"owners must be round_robin, inline or the rank of each micro-batch (got {owners!r})")
    given = tuple(owners)
    if len(given) != num_micro_batches:
        raise ValueError(
            f"owners holds one rank per micro-batch (micro-batches: {num_micro_batches}, owners: {len(given)})"
        )
    for owner in given:
        if isinstance(owner, bool) or not isinstance(owner, int) or not 0 <= owner < num_ranks:
            raise ValueError(f"owners are ranks from 0 to {num_ranks - 1} (got {owner!r})")
    return given
