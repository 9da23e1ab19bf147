"""Trains the vision-language model through the pipeline, one rank per process, each reading only what it owns:

    bash scripts/msrun_train.sh --script scripts/train_vlm.py --ranks 2 --schedule transpose
"""
from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from digits_data import Inputs, Pages, Targets, written_right
from gpt_options import Progress, make_optimizer, set_device
from mindspore import Tensor, dataset, mint
from mindspore.communication import get_group_size, get_rank, init
from vlm_common import add_pipeline_options, data_options, make_config, make_parser, transpose_options
from vlm_model import Tower, build_decoder, count_bytes, text_loss

from hyper_pp import owned_micro_batches
from hyper_pp.mindspore import OwnedSampler, PipelineCell, PipelineTrainOneStepCell


def columns(source: Inputs | Targets, names: list[str], sampler: OwnedSampler, epochs: int) -> Iterator[list[Tensor]]:
    """Reads what the sampler chooses.

    Args:
        source: The inputs or the targets of the pages.
        names: One name per column.
        sampler: Chooses the pages.
        epochs: How often the pages are gone through.

    Yields:
        The columns of one step; endless Nones if the sampler chooses nothing.
    """
    if not sampler.samples_per_batch:
        while True:
            yield [None] * len(names)
    pages = dataset.GeneratorDataset(source, names, sampler=sampler, python_multiprocessing=False)
    batches = pages.batch(sampler.samples_per_batch).create_tuple_iterator(num_epochs=epochs, output_numpy=True)
    for _ in range(epochs):
        for batch in batches:
            yield [Tensor(column) for column in batch]


def main() -> None:
    """Runs the training that the command line describes."""
    parser = make_parser("Train a vision-language model through a pipeline (start it with scripts/msrun_train.sh).")
    args = add_pipeline_options(parser).parse_args()
    device = set_device(args.device)
    init()
    rank, num_ranks = get_rank(), get_group_size()

    pages = Pages(args.max_images, args.seed)
    config = make_config(args, pages)
    net = PipelineCell(
        build_decoder(config),
        text_loss,
        micro_size=args.micro_batches,
        schedule=args.schedule,
        num_chunks=args.chunks,
        preprocess=Tower(config, args.frozen),
        transpose_options=transpose_options(args, pages, config, num_ranks) if args.schedule == "transpose" else None,
        weight_fn=count_bytes,
        sharded_inputs=True,
        dynamic_shapes=True,
    )
    step_cell = PipelineTrainOneStepCell(net, make_optimizer(net.trainable_params(), args))
    own = owned_micro_batches(num_ranks, args.micro_batches, rank, net.plan)
    label = f"{args.schedule} on {num_ranks} ranks"
    print(f"{label} ({device}): rank {rank} sees the images of micro-batches {list(own)}", flush=True)

    is_last = rank == num_ranks - 1
    options = data_options(args, pages)
    mine, whole = OwnedSampler(**options, micro_batches=own), OwnedSampler(**options)
    epochs = -(-args.steps // whole.order.num_batches)
    inputs = columns(Inputs(pages), ["images", "ids"], mine, epochs)
    targets = columns(Targets(pages), ["targets"], whole, epochs) if is_last else None
    progress = Progress(label, args.batch_size * pages.context, args.steps, quiet=rank != 0)
    for _ in range(args.steps):
        loss = step_cell(*next(inputs), next(targets)[0] if is_last else None)
        progress.add(float(loss.asnumpy()))
    if rank == 0:
        progress.write(args.losses_out)

    held_out = Pages(args.max_images, args.seed, held_out=True)
    batch = range(args.batch_size)
    parts = np.array_split(batch, args.micro_batches)
    shown = [held_out.inputs(page) for m in own for page in parts[m]]
    given = [Tensor(np.stack(column)) for column in zip(*shown)] if shown else [None, None]
    expected = np.stack([held_out.targets(page) for page in batch])
    _, logits = net.eval_step(*given, Tensor(expected) if is_last else None)
    right = Tensor([float(written_right(logits.asnumpy(), expected)) if is_last else 0.0])
    mint.distributed.all_reduce(right)  # rank 0's output is the one that is shown
    if rank == 0:
        print(f"{label}: {right.asnumpy()[0]:.0f} of {len(batch)} pages it has not seen are written right", flush=True)


if __name__ == "__main__":
    main()
