"""The engine against pure-Python stages, ranks as threads, with sends that block until they are received."""

import pytest
from fake import TENSORS, DotLoss, FakeTransport, Network, ScaleStage, floats, on_ranks, scalar

from hyper_pp import Action, Op, PipelineError, Plan, ScheduleError, declare_op
from hyper_pp.engine import PipelineEngine
from hyper_pp.errors import ShapeError
from hyper_pp.microbatch import Splitter, offsets, split_sizes, weights_of
from hyper_pp.step import StepInputs

X = [1.0, -2.0, 3.0, 0.5, 4.0, -1.0, 2.0, 1.5, -0.5, 2.5]
Y = [0.5, 1.0, -1.0, 2.0, 0.25, 3.0, 1.0, -2.0, 1.0, 0.5]


class Pipeline:
    """All ranks of a pipeline in one process: y = factor₀ · factor₁ ⋯ x, loss = mean(y · target)."""

    def __init__(self, plan, *, blocking=True, make_stage=ScaleStage, block=None, loss=DotLoss, **options):
        self.plan = plan
        shape = plan.shape
        self.network = Network(shape.num_ranks, blocking)
        self.stages = {s: make_stage(1.0 + 0.25 * (s + 1)) for s in range(shape.num_stages)}
        self.blocks = [block() if block else None for _ in range(shape.num_ranks)]
        self.engines = []
        for rank in range(shape.num_ranks):
            mine = {s: self.stages[s] for s in shape.stages_of(rank)}
            self.engines.append(
                PipelineEngine(
                    plan,
                    rank,
                    mine,
                    FakeTransport(self.network, rank),
                    TENSORS,
                    loss=loss() if shape.num_stages - 1 in mine else None,
                    preprocess=self.blocks[rank],
                    **options,
                )
            )

    def step(self, x=X, y=Y, training=True, kwargs=None, weights=None, keep_outputs=False):
        m = self.plan.shape.num_micro_batches
        sizes = split_sizes(len(x), m)
        splitter = Splitter(TENSORS)
        inputs = splitter.cut((floats(*x),), 0, offsets(sizes))
        targets = splitter.cut(floats(*y), 0, offsets(sizes))
        weights = weights or weights_of(sizes, targets, None, TENSORS)

        def run(rank):
            engine = self.engines[rank]
            mine = {i: (inputs[i], kwargs or {}) for i in engine.input_micro_batches}
            step = StepInputs(mine, dict(enumerate(targets)), weights, training, keep_outputs)
            try:
                return engine.run(step)
            except PipelineError as error:  # a script that lets it through ends, and the others hear of it
                engine.transport.abort(str(error))
                raise

        results = on_ranks(self.plan.shape.num_ranks, run)
        last = next(result for result in results if result.losses)
        order = sorted(last.losses)
        loss = TENSORS.weighted_sum([last.losses[i] for i in order], [weights[i] for i in order])
        return loss.data[0], last

    def gradients(self):
        return [stage.gradient and stage.gradient.data[0] for stage in self.stages.values()]


def reference(factors, x=X, y=Y, steps=1):
    """Loss and factor gradients of one process: loss = mean(x·y) · ∏ factors."""
    product = 1.0
    for factor in factors:
        product *= factor
    mean = sum(a * b for a, b in zip(x, y)) / len(x)
    return product * mean, [steps * product / factor * mean for factor in factors]


def factors_of(pipeline, block=False):
    factors = [stage.parameter.data[0] for stage in pipeline.stages.values()]
    return ([pipeline.blocks[0].parameter.data[0]] if block else []) + factors


BODY = [
    (name, p, v, m, options)
    for name, chunks, options in [
        ("gpipe", (1, 2), {}),
        ("1f1b", (1,), {}),
        ("interleaved", (1, 2, 3), {}),
        ("interleaved", (2,), {"less_memory": True}),
    ]
    for p in (1, 2, 4)
    for v in chunks
    for m in (1, 3, 4, 7)
]


@pytest.mark.parametrize("name, p, v, m, options", BODY)
@pytest.mark.parametrize("overlap", [False, True])
def test_a_schedule_gives_the_loss_and_gradients_of_one_process(name, p, v, m, options, overlap):
    pipeline = Pipeline(Plan.build(name, p, v, m, **options), blocking=not overlap, overlap_p2p=overlap)
    loss, _ = pipeline.step()
    expected_loss, expected_gradients = reference(factors_of(pipeline))
    assert loss == pytest.approx(expected_loss)
    assert pipeline.gradients() == pytest.approx(expected_gradients)


@pytest.mark.parametrize("p, v, m", [(1, 1, 4), (2, 1, 1), (2, 2, 3), (4, 1, 7), (4, 2, 3), (3, 3, 8)])
@pytest.mark.parametrize("explicit", [False, True])
def test_mpipe_trains_its_preprocess_block_like_one_process(p, v, m, explicit):
    plan = Plan.build("mpipe", p, v, m, explicit_backward=explicit)
    pipeline = Pipeline(plan, block=lambda: ScaleStage(0.7))
    for rank, block in enumerate(pipeline.blocks[1:], 1):
        block.parameter = scalar(99.0 + rank)  # a replica's own value must not matter
    loss, _ = pipeline.step()
    expected_loss, (block_gradient, *gradients) = reference(factors_of(pipeline, block=True))
    assert loss == pytest.approx(expected_loss)
    assert pipeline.gradients() == pytest.approx(gradients)
    assert pipeline.blocks[0].gradient.data[0] == pytest.approx(block_gradient)
    assert [block.gradient for block in pipeline.blocks[1:]] == [None] * (p - 1)


@pytest.mark.parametrize("p, v, m", [(1, 1, 3), (2, 2, 3), (4, 1, 7)])
def test_a_frozen_block_gets_no_gradient_and_keeps_no_graph(p, v, m):
    pipeline = Pipeline(Plan.build("mpipe", p, v, m, frozen=True), block=lambda: ScaleStage(0.7, frozen=True))
    loss, _ = pipeline.step()
    expected_loss, (_, *gradients) = reference(factors_of(pipeline, block=True))
    assert loss == pytest.approx(expected_loss)
    assert pipeline.gradients() == pytest.approx(gradients)
    assert all(not record for block in pipeline.blocks for _, record, _, _ in block.calls)


@pytest.mark.parametrize("p, m", [(1, 3), (2, 1), (2, 5), (4, 7)])
def test_spreading_data_only_takes_each_micro_batch_from_its_owner(p, m):
    pipeline = Pipeline(Plan.build("mpipe", p, 1, m, num_layers=0))
    owners = pipeline.plan.transpose.owners
    assert [engine.input_micro_batches for engine in pipeline.engines] == [
        tuple(i for i in range(m) if owners[i] == rank) for rank in range(p)
    ]
    loss, _ = pipeline.step()
    assert loss == pytest.approx(reference(factors_of(pipeline))[0])


def test_keywords_reach_stage_0_also_when_only_data_is_spread():
    for plan in (Plan.build("1f1b", 2, 1, 3), Plan.build("mpipe", 2, 1, 3, num_layers=0)):
        pipeline = Pipeline(plan)
        pipeline.step(kwargs={"shift": 0.5})
        assert all(kwargs == {"shift": 0.5} for kwargs, *_ in pipeline.stages[0].calls)
        assert all(kwargs == {} for kwargs, *_ in pipeline.stages[1].calls)


def test_a_recompute_sees_the_seed_of_its_forward_and_counts_in_no_buffer():
    plan = Plan.build("mpipe", 2, 1, 3, explicit_backward=True)
    pipeline = Pipeline(plan, block=lambda: ScaleStage(0.7), seed=5)
    pipeline.step()
    pipeline.step()
    # Per step on rank 0: TF0, TF2, then the recomputes of TB0, TB1, TB2.
    recomputes = [(seed, keep) for _, record, seed, keep in pipeline.blocks[0].calls if record]
    forwards = [(seed, keep) for _, record, seed, keep in pipeline.blocks[0].calls if not record]
    assert recomputes == [(5, True), (6, True), (7, True), (8, True), (9, True), (10, True)]
    assert forwards == [(5, False), (7, False), (8, False), (10, False)]
    assert [(seed, keep) for _, _, seed, keep in pipeline.blocks[1].calls] == [(6, True), (9, True)]


def test_gradients_add_up_over_steps():
    pipeline = Pipeline(Plan.build("mpipe", 2, 2, 3), block=lambda: ScaleStage(0.7))
    pipeline.step()
    pipeline.step()
    _, (block_gradient, *gradients) = reference(factors_of(pipeline, block=True), steps=2)
    assert pipeline.gradients() == pytest.approx(gradients)
    assert pipeline.blocks[0].gradient.data[0] == pytest.approx(block_gradient)


def test_evaluation_gives_the_loss_and_outputs_and_leaves_no_gradient():
    pipeline = Pipeline(Plan.build("mpipe", 2, 2, 3), block=lambda: ScaleStage(0.7))
    loss, result = pipeline.step(training=False, keep_outputs=True)
    expected, _ = reference(factors_of(pipeline, block=True))
    assert loss == pytest.approx(expected)
    assert [len(result.outputs[m].data) for m in range(3)] == [4, 3, 3]
    assert pipeline.gradients() == [None] * 4
    assert not any(record for stage in pipeline.stages.values() for _, record, _, _ in stage.calls)


def test_a_split_backward_gives_the_gradients_of_a_full_one():
    plan = Plan.build("1f1b", 2, 1, 3, compute_only=True)
    split = tuple(
        tuple(half for a in order for half in ((a._replace(op=Op.I), a._replace(op=Op.W)) if a.op is Op.B else (a,)))
        for order in plan.orders
    )
    pipeline = Pipeline(plan.with_orders(split))
    pipeline.step()
    assert pipeline.gradients() == pytest.approx(reference(factors_of(pipeline))[1])


def test_integers_constants_and_plain_values_cross_without_gradients():
    def make_stage(factor):
        return ScaleStage(factor, extra=(None, 7)) if factor == 1.25 else ScaleStage(factor)

    pipeline = Pipeline(Plan.build("1f1b", 2, 1, 2), make_stage=make_stage)
    _, result = pipeline.step(keep_outputs=True)
    assert result.outputs[0][1:] == (None, 7)
    assert pipeline.gradients() == pytest.approx(reference(factors_of(pipeline))[1])
    # Stage 1 sends one gradient per micro-batch, for the one float tensor it got.
    assert pipeline.network.log[1] == [("send", 0, 1)] * 2


def test_a_micro_batch_of_weight_zero_adds_nothing_even_if_its_loss_is_nan():
    pipeline = Pipeline(Plan.build("1f1b", 2, 1, 2))
    y = [float("nan")] * 5 + Y[5:]
    pipeline.step(y=y, weights=[0.0, 1.0])
    assert pipeline.gradients() == pytest.approx(reference(factors_of(pipeline), X[5:], Y[5:])[1])


class RaisingStage(ScaleStage):
    def forward(self, args, kwargs, **options):
        if self.parameter.data[0] == 1.5 and len(self.calls) == 5:
            raise ZeroDivisionError("division by zero")
        return super().forward(args, kwargs, **options)


def test_a_failing_action_is_named_with_rank_action_position_and_step():
    pipeline = Pipeline(Plan.build("1f1b", 2, 1, 3), make_stage=RaisingStage, blocking=False, overlap_p2p=True)
    pipeline.step()
    before = pipeline.gradients()
    message = r"^rank 1: 1F2 \(action 10 of 12, step 1\) failed: ZeroDivisionError: division by zero$"
    with pytest.raises(PipelineError, match=message) as caught:
        pipeline.step()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert pipeline.network.first_cause == str(caught.value)
    assert pipeline.gradients()[1] == before[1], "the failed step leaves earlier gradients as they were"


def test_after_another_shape_that_nobody_was_sent_the_step_can_be_called_again():
    x, y = [1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 1.0]
    pipeline = Pipeline(Plan.build("1f1b", 2, 1, 2), overlap_p2p=True)
    pipeline.step(x, y)
    wrong = {m: ((floats(1.0, 2.0, 3.0),), {}) for m in range(2)}
    with pytest.raises(PipelineError, match="stage 0 sends another value") as caught:
        pipeline.engines[0].run(StepInputs(wrong, {}, ()))
    assert isinstance(caught.value.__cause__, ShapeError)
    assert pipeline.network.first_cause is None, "nobody else was told to end"
    assert pipeline.step(x, y)[0] == pytest.approx(reference(factors_of(pipeline), x, y)[0])
    assert pipeline.gradients() == pytest.approx(reference(factors_of(pipeline), x, y, steps=2)[1])


def test_another_shape_than_before_is_an_error_before_it_is_sent_unless_shapes_are_dynamic():
    x, y = [1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 1.0]
    pipeline = Pipeline(Plan.build("1f1b", 2, 1, 2))
    pipeline.step(x, y)
    message = r"stage 0 sends another value for micro-batch 0 than before \(before: float\[2\], now: float\[4\]\)"
    with pytest.raises(PipelineError, match=message):
        pipeline.step(x * 2, y * 2)
    assert len(pipeline.network.log[0]) == 2, "nothing of the faulty step was sent"
    assert pipeline.gradients() == pytest.approx(reference(factors_of(pipeline), x, y)[1])
    dynamic = Pipeline(Plan.build("1f1b", 2, 1, 2), dynamic_shapes=True)
    assert [dynamic.step(x, y)[0], dynamic.step(x * 2, y * 2)[0], dynamic.step(x, y)[0]] == pytest.approx(
        [reference(factors_of(dynamic), x, y)[0]] * 3
    )


def test_evaluation_with_another_batch_size_needs_dynamic_shapes_too():
    pipeline = Pipeline(Plan.build("1f1b", 2, 1, 2))
    pipeline.step(X[:2], Y[:2])
    with pytest.raises(PipelineError, match=r"before: float\[1\], now: float\[4\]"):
        pipeline.step(X[:8], Y[:8], training=False)


class VectorLoss(DotLoss):
    def forward(self, args, kwargs, **options):
        return args[0], None


def test_a_loss_that_is_no_scalar_is_an_error():
    pipeline = Pipeline(Plan.build("1f1b", 1, 1, 2), loss=VectorLoss)
    with pytest.raises(PipelineError, match=r"the loss must be a scalar tensor of shape \(\) \(got shape \[5\]\)"):
        pipeline.step()


def test_an_added_op_runs_its_handler_where_it_stands():
    plan = Plan.build("1f1b", 2, 1, 2)
    seen = []
    offload = declare_op("OFFLOAD", after=(Op.F,), before=(Op.B,))
    orders = []
    for order in plan.orders:
        extended = []
        for action in order:
            extended.append(action)
            if action.op is Op.F:
                extended.append(Action(action.stage, offload, action.micro_batch))
        orders.append(tuple(extended))
    engine_plan = plan.with_orders(tuple(orders))
    pipeline = Pipeline(engine_plan)
    with pytest.raises(ValueError, match=r"no handler for OFFLOAD \(action 0OFFLOAD0\): call engine.register first"):
        pipeline.engines[0].run(StepInputs({}, {}, ()))
    for engine in pipeline.engines:
        engine.register(offload, lambda action: seen.append(str(action)))
    pipeline.step()
    assert sorted(seen) == ["0OFFLOAD0", "0OFFLOAD1", "1OFFLOAD0", "1OFFLOAD1"]
    assert pipeline.gradients() == pytest.approx(reference(factors_of(pipeline))[1])
    misplaced = tuple(tuple(reversed(order)) if rank else order for rank, order in enumerate(engine_plan.orders))
    with pytest.raises(ScheduleError):
        Pipeline(engine_plan.with_orders(misplaced))


def test_a_built_in_op_can_not_be_registered():
    pipeline = Pipeline(Plan.build("gpipe", 1, 1, 1))
    with pytest.raises(ValueError, match="op F is built in; only added ops can be registered"):
        pipeline.engines[0].register(Op.F, print)


def test_every_action_runs_in_a_range_named_by_its_text_form():
    names = []

    class Range:
        def __init__(self, name):
            names.append(name)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return False

    pipeline = Pipeline(Plan.build("gpipe", 1, 1, 2), named_range=Range)
    pipeline.step()
    assert names == ["0F0", "0F1", "0B0", "0B1"]


def test_the_timeline_holds_every_action_in_order():
    pipeline = Pipeline(Plan.build("gpipe", 1, 1, 2))
    pipeline.engines[0].timeline = []
    pipeline.step()
    timeline = pipeline.engines[0].timeline
    assert [str(action) for action, _, _ in timeline] == ["0F0", "0F1", "0B0", "0B1"]
    assert all(start <= end for _, start, end in timeline)


def test_the_engine_tells_how_many_micro_batches_are_transposed_and_whether_the_block_trains():
    trainable = Pipeline(Plan.build("mpipe", 2, 1, 3), block=lambda: ScaleStage(0.7)).engines[0]
    frozen = Pipeline(Plan.build("mpipe", 4, 1, 3, num_layers=0)).engines[0]
    plain = Pipeline(Plan.build("1f1b", 2, 1, 3)).engines[0]
    assert (trainable.num_transposed, trainable.preprocess_trainable) == (2, True)
    assert (frozen.num_transposed, frozen.preprocess_trainable) == (3, False)
    assert (plain.num_transposed, plain.preprocess_trainable) == (0, False)
    with pytest.raises(AttributeError):
        trainable.num_transposed = 3


def test_plan_ranks_stages_and_block_must_fit_together():
    plan, stages = Plan.build("1f1b", 2, 1, 2), {0: ScaleStage(1.0)}
    with pytest.raises(ValueError, match="the plan is for 2 ranks, the pipeline has 3"):
        PipelineEngine(plan, 0, stages, FakeTransport(Network(3), 0), TENSORS)
    with pytest.raises(ValueError, match=r"rank 1 holds stages \[1\] \(got \[0\]\)"):
        PipelineEngine(plan, 1, stages, FakeTransport(Network(2), 1), TENSORS)
    with pytest.raises(ValueError, match="schedule 1f1b has no preprocess block, but one was given"):
        PipelineEngine(plan, 0, stages, FakeTransport(Network(2), 0), TENSORS, preprocess=ScaleStage(1.0))
    mpipe = Plan.build("mpipe", 2, 1, 2, frozen=True)
    with pytest.raises(ValueError, match="the block has trainable parameters"):
        PipelineEngine(mpipe, 0, stages, FakeTransport(Network(2), 0), TENSORS, preprocess=ScaleStage(1.0))
    with pytest.raises(ValueError, match="the plan has a preprocess block"):
        PipelineEngine(mpipe, 0, stages, FakeTransport(Network(2), 0), TENSORS)


def buffers_of(engine):
    runners = [engine.body] if engine.preprocess is None else [engine.body, engine.preprocess]
    return {name: value for runner in runners for name, value in vars(runner).items() if isinstance(value, dict)}


KEPT = {"stages", "_weight_grads"}  # the losses' weights serve all micro-batches


@pytest.mark.parametrize("options", [{}, {"explicit_backward": True}])
def test_each_buffer_is_freed_by_the_action_that_last_needs_it(options):
    pipeline = Pipeline(Plan.build("mpipe", 2, 2, 4, **options), block=lambda: ScaleStage(0.7))
    left = []
    for engine in pipeline.engines:

        def note_then_begin(step, engine=engine, begin=engine._begin):
            left.extend(name for name, value in buffers_of(engine).items() if value and name not in KEPT)
            return begin(step)

        engine._begin = note_then_begin
    pipeline.step()
    assert left == []
    assert {"_inputs", "_forwarded", "_outgoing", "_tapes", "_waiting"} <= set(buffers_of(pipeline.engines[0]))
