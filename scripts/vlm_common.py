"""What all scripts of the vision-language example share and no framework is needed for: sizes, options, costs."""
from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from digits_data import SIZE, Pages
from gpt_common import OPTIMIZERS, GptConfig

from hyper_pp import BatchOrder, Costs, balanced_owners

PATCH = 2
"""Pixels of a patch along each side."""

NUM_PATCHES = (SIZE // PATCH) ** 2
"""Patches of one image, the tower's sequence length."""

TOWER_LAYER = 1000
"""Number of the tower's first layer, so that its weights are drawn from other streams than the decoder's."""


@dataclasses.dataclass(frozen=True)
class VlmConfig:
    """The sizes of a vision-language model.

    Args:
        decoder: Writes the text.
        tower: Sees one image at a time; its context is the number of patches.
    """

    decoder: GptConfig
    tower: GptConfig


def make_parser(description: str) -> argparse.ArgumentParser:
    """Makes a parser with the options of model, data and optimizer.

    Args:
        description: One line for --help.

    Returns:
        The parser, to which the caller may add options of its own.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="training steps")
    parser.add_argument("--batch-size", type=int, default=32, help="pages per step")
    parser.add_argument("--micro-batches", type=int, default=8, help="micro-batches per step")
    parser.add_argument("--max-images", type=int, default=3, help="most images on one page; some have none")
    parser.add_argument("--layers", type=int, default=4, help="transformer blocks of the decoder")
    parser.add_argument("--hidden", type=int, default=64, help="width of the decoder")
    parser.add_argument("--tower-layers", type=int, default=2, help="transformer blocks of the tower")
    parser.add_argument("--tower-hidden", type=int, default=48, help="width of the tower")
    parser.add_argument("--heads", type=int, default=4, help="attention heads of both")
    parser.add_argument("--frozen", action="store_true", help="leave the tower as it is")
    parser.add_argument("--lr", type=float, default=2e-3, help="learning rate after warm-up")
    parser.add_argument("--warmup-steps", type=int, default=10, help="steps in which the learning rate rises to --lr")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adam", help="optimizer")
    parser.add_argument("--seed", type=int, default=1, help="seed of the weights, the pages and their order")
    parser.add_argument("--device", choices=("auto", "CPU", "Ascend"), default="auto", help="where to compute")
    parser.add_argument("--losses-out", metavar="FILE", help="write the losses of all steps as JSON")
    return parser


def add_pipeline_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds the options of the scripts that train through a pipeline; returns the parser."""
    parser.add_argument("--schedule", choices=("transpose", "mpipe"), default="transpose", help="schedule's name")
    parser.add_argument("--chunks", type=int, default=1, help="model chunks per rank")
    return parser


def make_config(args: argparse.Namespace, pages: Pages) -> VlmConfig:
    """Takes the model's sizes from the options and the longest text."""
    return VlmConfig(
        GptConfig(args.layers, args.hidden, args.heads, pages.context, args.seed),
        GptConfig(args.tower_layers, args.tower_hidden, args.heads, NUM_PATCHES, args.seed),
    )


def data_options(args: argparse.Namespace, pages: Pages) -> dict[str, Any]:
    """Returns the arguments that the samplers of all ranks, and of one process, share.

    The pages of a batch are sorted, those with the most images first: so a micro-batch's index tells roughly how many
    patches it has, in every step.
    """
    return {
        "num_samples": len(pages),
        "batch_size": args.batch_size,
        "num_micro_batches": args.micro_batches,
        "seed": args.seed,
        "sort_key": lambda page: -pages.num_images(page),
    }


def transpose_options(args: argparse.Namespace, pages: Pages, config: VlmConfig, num_ranks: int) -> dict[str, Any]:
    """Returns what the schedule `transpose` is told: who owns which micro-batch, and how long things take.

    Args:
        args: The command line.
        pages: What is trained on.
        config: The model's sizes.
        num_ranks: P.

    Returns:
        Options of the schedule. The owners share the mean patch counts of the micro-batches out evenly. The costs are
        multiplications; only their ratio counts.
    """
    order = BatchOrder(**data_options(args, pages))
    patches = order.micro_batch_costs(lambda page: pages.num_images(page) * NUM_PATCHES)
    ids = args.batch_size / args.micro_batches * config.decoder.context
    stage = ids * 12 * config.decoder.hidden**2 * config.decoder.num_blocks / (num_ranks * args.chunks)
    block = sum(patches) / len(patches) * 12 * config.tower.hidden**2 * config.tower.num_blocks
    ratio = round(block / stage, 3)
    return {"owners": balanced_owners(patches, num_ranks), "costs": Costs(F=1, B=2, TF=ratio, TB=2 * ratio)}
