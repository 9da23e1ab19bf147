"""Trains the byte-level GPT through the pipeline, one rank per process; scripts/msrun_train.sh starts the processes."""
from __future__ import annotations

from gpt_model import build_layers, next_byte_loss
from gpt_options import Progress, make_config, make_optimizer, make_parser, set_device
from mindspore import Tensor
from mindspore.communication import get_group_size, get_rank, init
from text_data import Batches, read_text

from hyper_pp.mindspore import PipelineCell, PipelineTrainOneStepCell


def main() -> None:
    """Runs the training that the command line describes."""
    parser = make_parser("Train a byte-level GPT through a pipeline (start it with scripts/msrun_train.sh).")
    parser.add_argument("--schedule", default="mpipe", help="schedule's name or a plan file")
    parser.add_argument("--chunks", type=int, default=2, help="model chunks per rank")
    parser.add_argument("--num-transpose-layers", type=int, default=0, help="layers in the preprocess block")
    parser.add_argument("--micro-batches", type=int, default=8, help="micro-batches per step")
    args = parser.parse_args()
    device = set_device(args.device)
    init()
    rank, num_ranks = get_rank(), get_group_size()

    batches = Batches(read_text(args.text), args.batch_size, args.context, args.seed)
    net = PipelineCell(
        build_layers(make_config(args)),
        next_byte_loss,
        micro_size=args.micro_batches,
        schedule=args.schedule,
        num_chunks=args.chunks,
        num_transpose_layers=args.num_transpose_layers,
    )
    step_cell = PipelineTrainOneStepCell(net, make_optimizer(net.trainable_params(), args))
    label = f"{args.schedule} on {num_ranks} ranks"
    if rank == 0:
        print(
            f"{label} ({device}): {args.chunks} chunks a rank, {args.micro_batches} micro-batches, "
            f"{args.num_transpose_layers} layers in the preprocess block",
            flush=True,
        )

    progress = Progress(label, args.batch_size * args.context, args.steps, quiet=rank != 0)
    for step in range(args.steps):
        ids, targets = batches(step)
        loss = step_cell(Tensor(ids), Tensor(targets))
        progress.add(float(loss.asnumpy()))
    if rank == 0:
        progress.write(args.losses_out)


if __name__ == "__main__":
    main()
