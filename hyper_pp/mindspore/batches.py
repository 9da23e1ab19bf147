"""From the arguments of a step to this rank's micro-batches, targets and weights."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hyper_pp.engine import PipelineEngine
from hyper_pp.microbatch import Splitter, offsets, split_sizes, weights_of
from hyper_pp.shards import SizeAgreement
from hyper_pp.step import StepInputs


class BatchSplitter:
    """Splits what a rank was given.

    Args:
        engine: Tells which micro-batches this rank needs the inputs of.
        weight_fn: Target micro-batch → weight; None weighs by size.
        args_batch_dim: See :class:`hyper_pp.microbatch.Splitter`; one entry more than inputs is the target's.
        kwargs_batch_dim: See :class:`hyper_pp.microbatch.Splitter`.
        sharded_inputs: Each rank was given only the micro-batches it owns.
        dynamic_shapes: With ``sharded_inputs``: the batch size may change between steps.
    """

    def __init__(
        self,
        engine: PipelineEngine,
        *,
        weight_fn: Callable[[Any], Any] | None,
        args_batch_dim: int | Sequence[Any] | None,
        kwargs_batch_dim: Mapping[str, Any] | None,
        sharded_inputs: bool,
        dynamic_shapes: bool,
    ) -> None:
        if weight_fn is not None and not callable(weight_fn):
            raise TypeError(f"weight_fn must be a function of a target micro-batch (got {weight_fn!r})")
        self._engine = engine
        self._tensors = engine.tensors
        self._splitter = Splitter(engine.tensors, args_batch_dim, kwargs_batch_dim)
        self._args_batch_dim = args_batch_dim
        self._weight_fn = weight_fn
        self._owned = engine.input_micro_batches
        self._num_micro_batches = engine.plan.shape.num_micro_batches
        self._agreement: SizeAgreement | None = None
        if sharded_inputs:
            self._agreement = SizeAgreement(
                engine.transport, self._owned, self._num_micro_batches, every_step=dynamic_shapes
            )

    def split(self, inputs: Sequence[Any], kwargs: Mapping[str, Any], *, training: bool) -> StepInputs:
        """Split one step's arguments.

        Args:
            inputs: Positional inputs, the target last.
            kwargs: Keyword inputs.
            training: What the step is for.

        Raises:
            TypeError: There is no target.
            ValueError: The batch is smaller than the number of micro-batches, or sizes disagree.
        """
        if len(inputs) < 2:
            raise TypeError(f"a step takes inputs and a target: net(*inputs, target) (got {len(inputs)} arguments)")
        *args, target = inputs
        args_dim, target_dim, kwargs_dim = self._dims(args, target, kwargs)
        if self._agreement is not None:
            sizes = self._agreement.of_step(lambda: self._batch_size(args, args_dim, kwargs, kwargs_dim))
        else:
            batch_size = self._batch_size(args, args_dim, kwargs, kwargs_dim)
            if batch_size is None:
                batch_size = self._splitter.batch_size(target, target_dim)
            if batch_size is None:
                raise ValueError("nothing in the inputs or the target has a batch dimension")
            sizes = split_sizes(batch_size, self._num_micro_batches)
        places = offsets(sizes)
        owned = [places[m] for m in self._owned]
        if self._agreement is not None:
            owned = offsets([size for _, size in owned])
        split_args = self._splitter.cut(tuple(args), tuple(args_dim), owned)
        split_kwargs = self._splitter.cut(dict(kwargs), kwargs_dim, owned)
        targets: list[Any] = []
        weights: list[float] = [0.0] * self._num_micro_batches
        if self._engine.has_last_stage:
            self._check_target(target, target_dim, sum(sizes))
            targets = self._splitter.cut(target, target_dim, places)
            weights = weights_of(sizes, targets, self._weight_fn, self._tensors)
        return StepInputs(
            inputs=dict(zip(self._owned, zip(split_args, split_kwargs))),
            targets=dict(enumerate(targets)),
            weights=weights,
            training=training,
            keep_outputs=not training,
        )

    def _dims(self, args: list[Any], target: Any, kwargs: Mapping[str, Any]) -> tuple[list[Any], Any, dict[str, Any]]:
        given = self._args_batch_dim
        if isinstance(given, (list, tuple)) and len(given) == len(args) + 1:
            dims, kwargs_dim = self._splitter.dims_of([*args, target], kwargs)
            return dims[:-1], dims[-1], kwargs_dim
        dims, kwargs_dim = self._splitter.dims_of(args, kwargs)
        return dims, given if isinstance(given, int) else 0, kwargs_dim

    def _batch_size(
        self, args: list[Any], args_dim: list[Any], kwargs: Mapping[str, Any], kwargs_dim: dict[str, Any]
    ) -> int | None:
        everything = (*args, *kwargs.values())
        return self._splitter.batch_size(everything, (*args_dim, *(kwargs_dim[name] for name in kwargs)))

    def _check_target(self, target: Any, dim: Any, batch_size: int) -> None:
        found = self._splitter.batch_size(target, dim)
        if found is not None and found != batch_size:
            raise ValueError(f"inputs and target disagree on the batch size: {batch_size} and {found}")
