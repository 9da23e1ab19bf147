"""Cases of mindspore_job_cases: each rank reads and passes only the micro-batches it owns."""

import numpy as np
from case_list import case, close
from mindspore import Tensor, dataset
from mindspore.communication import get_group_size, get_rank
from small_models import batch, gradients_by_name, mean_square, one_process, residual_layers

from hyper_pp import balanced_owners, owned_micro_batches
from hyper_pp.mindspore import OwnedSampler, PipelineCell


class Rows:
    def __init__(self, array):
        self.array = array

    def __len__(self):
        return len(self.array)

    def __getitem__(self, index):
        return (self.array[index],)


def pipeline(in_block, **options):
    layers = residual_layers(get_group_size() + in_block)
    return PipelineCell(
        layers, mean_square, micro_size=3, num_transpose_layers=in_block, sharded_inputs=True, **options
    )


@case
def each_rank_reads_what_a_transpose_plan_says():
    count, rank = get_group_size(), get_rank()
    inputs, target = batch(15)
    choices = [
        (1, {"owners": [1, 0, 1]}),
        (1, {"owners": [1, 0, 1], "recompute": True}),
        (1, {"owners": "inline"}),
        (1, {"owners": balanced_owners([1.0, 5.0, 3.0], count)}),
        (0, {"owners": [1, 1, 1]}),
        (0, {"owners": "round_robin"}),
    ]
    for in_block, options in choices:
        net = pipeline(in_block, schedule="transpose", transpose_options=options)
        own = owned_micro_batches(count, 3, rank, net.plan)
        mine, whole = (OwnedSampler(15, 7, 3, part, seed=4) for part in (own, None))
        parts = [None, None]
        if own:
            data = dataset.GeneratorDataset(Rows(inputs.asnumpy()), ["x"], sampler=mine, python_multiprocessing=False)
            data = data.batch(mine.samples_per_batch)
            parts = [Tensor(part) for (part,) in data.create_tuple_iterator(num_epochs=1, output_numpy=True)]
        everything = np.array(list(whole)).reshape(2, 7)
        expected_sum = None
        for part, indices in zip(parts, everything, strict=True):
            x, y = Tensor(inputs.asnumpy()[indices]), Tensor(target.asnumpy()[indices])
            loss = net(part, y if rank == count - 1 else None)
            expected_loss, expected = one_process(count + in_block, x, y)
            close(loss, expected_loss)
            expected_sum = expected if expected_sum is None else [a + b for a, b in zip(expected_sum, expected)]
        for name, gradient in gradients_by_name(net).items():
            close(gradient, expected_sum[int(name.split(".")[0])])


@case
def a_wrong_share_is_an_error_on_every_rank():
    count, rank = get_group_size(), get_rank()
    inputs, target = batch(7)
    net = pipeline(0, schedule="transpose", transpose_options={"owners": [1, 0, 1]})
    faults = {
        "rank 0 owns micro-batches [1] with 2 of the batch's 6 samples (got 1)": (inputs[:1], inputs[:5]),
        "rank 1: the inputs disagree on the batch size: 5 and 4": (inputs[:2], [inputs[:5], inputs[:4]]),
        "rank 0 owns micro-batches [1] with 1 of the batch's 3 samples (got 3)": (inputs[:3], None),
        "a batch of 2 can't be split into 3 micro-batches": (inputs[:2], None),
    }
    for text, given in faults.items():
        try:
            net(given[rank] if rank < 2 else None, target if rank == count - 1 else None)
        except ValueError as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"no error: {text}")


@case
def sizes_are_agreed_on_once_where_shapes_are_static():
    count, rank = get_group_size(), get_rank()
    inputs, target = batch(7)
    target = target if rank == count - 1 else None
    given = (inputs[:2], inputs[:5])[rank] if rank < 2 else None
    for dynamic_shapes in (False, True):
        net = pipeline(
            0, schedule="transpose", transpose_options={"owners": [1, 0, 1]}, dynamic_shapes=dynamic_shapes
        )
        transport, seen = net._transport, []
        gather = transport.all_gather_object
        transport.all_gather_object = lambda value, gather=gather, seen=seen: (seen.append(value), gather(value))[1]
        for _ in range(3):
            net(given, target)
        assert len(seen) == (3 if dynamic_shapes else 1), seen
        if not dynamic_shapes and rank == 0:
            text = "pass dynamic_shapes=True if the batch size changes between steps"
            try:
                net(inputs[:3], target)
            except ValueError as error:
                assert text in str(error), error
            else:
                raise AssertionError(f"no error: {text}")
