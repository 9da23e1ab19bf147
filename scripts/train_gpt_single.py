"""Trains the byte-level GPT in one process with MindSpore alone: what the pipeline is compared with.

Nothing here comes from hyper_pp: the whole batch goes through the whole model under `mindspore.value_and_grad`.
"""
from __future__ import annotations

import mindspore as ms
from gpt_model import build_layers, count_parameters, next_byte_loss
from gpt_options import Progress, make_config, make_optimizer, make_parser, set_device
from mindspore import Tensor, nn
from text_data import Batches, read_text


def main() -> None:
    """Runs the training that the command line describes."""
    parser = make_parser("Train a byte-level GPT in one process.")
    args = parser.parse_args()
    set_device(args.device)
    config = make_config(args)
    batches = Batches(read_text(args.text), args.batch_size, args.context, args.seed)
    layers = build_layers(config)
    net = nn.SequentialCell(layers)
    weights = net.trainable_params()
    optimizer = make_optimizer(weights, args)
    forward_backward = ms.value_and_grad(lambda ids, targets: next_byte_loss(net(ids), targets), None, weights)
    size = f"{args.batch_size} x {args.context} bytes a step"
    print(f"one process: {count_parameters(layers):,} parameters, {size}", flush=True)

    progress = Progress("one process", args.batch_size * args.context, args.steps)
    for step in range(args.steps):
        ids, targets = batches(step)
        loss, gradients = forward_backward(Tensor(ids), Tensor(targets))
        optimizer(gradients)
        progress.add(float(loss.asnumpy()))
    progress.write(args.losses_out)


if __name__ == "__main__":
    main()
