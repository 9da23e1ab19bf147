"""Trains the vision-language model in one process with MindSpore alone: what the pipeline is compared with.

Of hyper_pp, only the order of the pages is used: the whole batch goes through the whole model under
`mindspore.value_and_grad`.
"""
from __future__ import annotations

import mindspore as ms
import numpy as np
from digits_data import Pages
from gpt_model import count_parameters
from gpt_options import Progress, make_optimizer, set_device
from mindspore import Tensor, nn
from vlm_common import data_options, make_config, make_parser
from vlm_model import Tower, build_decoder, text_loss

from hyper_pp import BatchOrder


def main() -> None:
    """Runs the training that the command line describes."""
    args = make_parser("Train a vision-language model in one process.").parse_args()
    set_device(args.device)
    pages = Pages(args.max_images, args.seed)
    config = make_config(args, pages)
    tower, decoder = Tower(config, args.frozen), build_decoder(config)
    tower.update_parameters_name("tower.")
    weights = [parameter for cell in (tower, nn.SequentialCell(decoder)) for parameter in cell.trainable_params()]
    optimizer = make_optimizer(weights, args)

    def loss_of(images: Tensor, ids: Tensor, targets: Tensor) -> Tensor:
        x = decoder[0](*tower(images, ids))
        for layer in decoder[1:]:
            x = layer(x)
        return text_loss(x, targets)

    forward_backward = ms.value_and_grad(loss_of, None, weights)
    print(f"one process: {count_parameters([tower, *decoder]):,} trained parameters, {len(pages)} pages", flush=True)

    order = BatchOrder(**data_options(args, pages))
    progress = Progress("one process", args.batch_size * pages.context, args.steps)
    while len(progress.losses) < args.steps:
        for batch in list(order.batches())[: args.steps - len(progress.losses)]:
            columns = [np.stack(column) for column in zip(*(pages.inputs(page) for page in batch))]
            targets = np.stack([pages.targets(page) for page in batch])
            loss, gradients = forward_backward(*map(Tensor, columns), Tensor(targets))
            optimizer(gradients)
            progress.add(float(loss.asnumpy()))
        order.set_epoch(order.epoch + 1)
    progress.write(args.losses_out)


if __name__ == "__main__":
    main()
