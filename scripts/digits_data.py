"""Pages of handwritten digits: a few images each, or none, and the text that says which digits they show."""
from __future__ import annotations

import gzip
import pathlib
import random

import numpy as np

FILE = pathlib.Path(__file__).resolve().parent / "data" / "digits.csv.gz"
SIZE = 8
"""Pixels of an image along each side."""

IMAGE, START, PADDING = 1, 2, 0
"""Ids that stand for an image, for the start of the text and for nothing; no text holds these bytes."""

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
NOTHING = "nothing"


def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Reads all digits.

    Returns:
        Images (1797, 8, 8) uint8 of values 0 to 16, and the digits (1797,) int64.
    """
    with gzip.open(FILE, "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    return table[:, :-1].reshape(-1, SIZE, SIZE).astype(np.uint8), table[:, -1]


class Pages:
    """Pages of 0 to `max_images` digits and their texts, the same for the same arguments.

    Args:
        max_images: Most images on one page.
        seed: Seed of what stands on which page.
        held_out: Take the last sixth of the images, which the other pages don't show.

    Raises:
        ValueError: `max_images` is below 1.
    """

    def __init__(self, max_images: int, seed: int, held_out: bool = False) -> None:
        if max_images < 1:
            raise ValueError(f"max_images must be at least 1 (got {max_images})")
        images, digits = read_digits()
        split = len(images) * 5 // 6
        self._images, self._digits = (images[split:], digits[split:]) if held_out else (images[:split], digits[:split])
        draw = random.Random(f"{seed} {max_images} {held_out}")
        order = list(range(len(self._images)))
        draw.shuffle(order)
        self._pages: list[list[int]] = []
        while len(order) >= max_images:
            count = draw.randint(0, max_images)
            self._pages.append(order[:count])
            del order[:count]
        self.max_images = max_images
        self.context = max_images + max(len(NOTHING) + 1, 6 * max_images)
        """Ids of one page: its images, the start, and all bytes of the longest text but the last."""

    def __len__(self) -> int:
        return len(self._pages)

    def num_images(self, page: int) -> int:
        """Counts the images of a page."""
        return len(self._pages[page])

    def text(self, page: int) -> str:
        """Returns what is to be written: the digits' names in order, and a line end."""
        names = [NAMES[self._digits[image]] for image in self._pages[page]]
        return " ".join(names or [NOTHING]) + "\n"

    def inputs(self, page: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns what the owner of the page's micro-batch reads.

        Returns:
            Images (max_images, 8, 8) uint8, of which the first ones are real, and the ids (context,) int32: one IMAGE
            for each of those, START, the text.
        """
        shown = self._pages[page]
        images = np.zeros((self.max_images, SIZE, SIZE), np.uint8)
        images[: len(shown)] = self._images[shown]
        return images, self._sequence(page)[:-1]

    def targets(self, page: int) -> np.ndarray:
        """Returns the byte to be written after each id, (context,) int32; −1 where there is none."""
        sequence, first = self._sequence(page), len(self._pages[page]) + 1
        targets = np.where(sequence[1:] == PADDING, -1, sequence[1:])
        targets[: first - 1] = -1
        return targets.astype(np.int32)

    def _sequence(self, page: int) -> np.ndarray:
        values = [IMAGE] * self.num_images(page) + [START, *self.text(page).encode()]
        return np.array(values + [PADDING] * (self.context + 1 - len(values)), np.int32)


class Inputs:
    """The inputs of pages, as a data set: `[page]` gives images and ids."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def __len__(self) -> int:
        return len(self._pages)

    def __getitem__(self, page: int) -> tuple[np.ndarray, np.ndarray]:
        return self._pages.inputs(int(page))


class Targets:
    """The targets of pages, as a data set."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def __len__(self) -> int:
        return len(self._pages)

    def __getitem__(self, page: int) -> tuple[np.ndarray]:
        return (self._pages.targets(int(page)),)


def written_right(logits: np.ndarray, targets: np.ndarray) -> int:
    """Counts the pages whose whole text the most likely bytes spell.

    The bytes before each position are the right ones; a page that is right this way is also right when the decoder
    reads what it wrote itself.

    Args:
        logits: (pages, context, 256) float32.
        targets: (pages, context) int32, −1 where nothing is to be written.

    Returns:
        The number of pages.
    """
    return int(((logits.argmax(-1) == targets) | (targets < 0)).all(-1).sum())
