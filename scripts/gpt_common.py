"""What all training scripts share and no framework is needed for: sizes, options, progress and the file of losses."""
from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time

OPTIMIZERS = ("adam", "adamw", "momentum")

VOCABULARY = 256
"""Number of tokens: one per byte value."""


@dataclasses.dataclass(frozen=True)
class GptConfig:
    """The sizes of a GPT.

    Args:
        num_blocks: Transformer blocks between the embedding and the head.
        hidden: Width of the residual stream.
        num_heads: Attention heads; must divide `hidden`.
        context: Longest sequence, in bytes.
        seed: Seed of the initial weights.

    Raises:
        ValueError: A size is below 1 or `hidden` is not a multiple of `num_heads`.
    """

    num_blocks: int = 9
    hidden: int = 96
    num_heads: int = 4
    context: int = 128
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("num_blocks", "hidden", "num_heads", "context"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1 (got {getattr(self, name)})")
        if self.hidden % self.num_heads:
            raise ValueError(f"hidden must be a multiple of num_heads (got {self.hidden} and {self.num_heads})")


def make_parser(description: str) -> argparse.ArgumentParser:
    """Makes a parser with the options of model, data and optimizer.

    Args:
        description: One line for --help.

    Returns:
        The parser, to which the caller may add options of its own.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("text", nargs="*", help="text files to learn; none means Python's standard library")
    parser.add_argument("--steps", type=int, default=60, help="training steps")
    parser.add_argument("--batch-size", type=int, default=8, help="sequences per step")
    parser.add_argument("--layers", type=int, default=9, help="transformer blocks between embedding and head")
    parser.add_argument("--hidden", type=int, default=96, help="width of the model")
    parser.add_argument("--heads", type=int, default=4, help="attention heads")
    parser.add_argument("--context", type=int, default=128, help="bytes per sequence")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate after warm-up")
    parser.add_argument("--warmup-steps", type=int, default=10, help="steps in which the learning rate rises to --lr")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adam", help="optimizer")
    parser.add_argument("--seed", type=int, default=1, help="seed of the weights and of the batches drawn")
    parser.add_argument("--device", choices=("auto", "CPU", "Ascend"), default="auto", help="where to compute")
    parser.add_argument("--losses-out", metavar="FILE", help="write the losses of all steps as JSON")
    return parser


def make_config(args: argparse.Namespace) -> GptConfig:
    """Takes the model's sizes from the options.

    Args:
        args: What `make_parser`'s parser returned.

    Returns:
        The model's configuration.
    """
    return GptConfig(args.layers, args.hidden, args.heads, args.context, args.seed)


class Progress:
    """Collects the losses of a run and prints them now and then.

    Args:
        label: Text in front of every line.
        num_tokens: Bytes trained on per step.
        num_steps: Steps of the run.
        quiet: Prints nothing, for all ranks but one.
    """

    def __init__(self, label: str, num_tokens: int, num_steps: int, quiet: bool = False) -> None:
        self._label, self._num_tokens, self._num_steps, self._quiet = label, num_tokens, num_steps, quiet
        self.losses: list[float] = []
        self._start = self._steady = time.perf_counter()

    def add(self, loss: float) -> None:
        """Records a step.

        Args:
            loss: Its mean loss in nats.
        """
        self.losses.append(loss)
        done = len(self.losses)
        if done == 1:  # the first step also sets up communication and memory
            self._steady = time.perf_counter()
        if not self._quiet and (done == 1 or done % 10 == 0 or done == self._num_steps):
            print(f"{self._label}: step {done:3d}/{self._num_steps}  loss {loss:.4f}  {self._rate()}", flush=True)

    def _rate(self) -> str:
        steady = len(self.losses) - 1
        if steady == 0:
            return f"first step {self._steady - self._start:.1f} s"
        return f"{steady * self._num_tokens / (time.perf_counter() - self._steady):.0f} tokens/s"

    def write(self, path: str | None) -> None:
        """Writes {"label": …, "seconds": …, "losses": [one float a step]}.

        Args:
            path: The JSON file; None writes nothing.
        """
        if path is None:
            return
        report = {"label": self._label, "seconds": time.perf_counter() - self._start, "losses": self.losses}
        # A reader never sees half a file, even when the run is killed here.
        with open(f"{path}.part", "w", encoding="utf-8") as file:
            json.dump(report, file)
        os.replace(f"{path}.part", path)
