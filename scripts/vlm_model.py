"""A small vision-language model on MindSpore: a ViT tower in front of a byte-level GPT.

The tower is a Cell of its own, made for `preprocess=`; the decoder is a list of Cells, to be cut into pipeline stages.
"""
from __future__ import annotations

import mindspore as ms
import numpy as np
from digits_data import IMAGE, SIZE
from gpt_common import VOCABULARY, GptConfig
from gpt_model import Block, Head, Weights, rms_norm
from mindspore import Tensor, mint, nn
from vlm_common import NUM_PATCHES, PATCH, TOWER_LAYER, VlmConfig


class ViewBlock(Block):
    """A transformer block in which each patch sees all others of its image: (images, patches, hidden) in and out."""

    def __init__(self, config: GptConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.mask = Tensor(np.zeros((config.context, config.context), np.float32))


class Tower(nn.Cell):
    """A vision transformer: turns images into one vector each.

    Pages have different numbers of images, so the real ones are picked out first: what is computed is
    (images, patches, hidden) without any padding. A micro-batch without images runs a blank one, to which no id refers.

    Args:
        config: The model's sizes.
        frozen: Nothing in it trains.
    """

    def __init__(self, config: VlmConfig, frozen: bool = False) -> None:
        super().__init__()
        tower = config.tower
        weights = Weights(tower, TOWER_LAYER)
        self.patch = weights.normal(PATCH * PATCH, tower.hidden, std=0.5)
        self.position = weights.normal(NUM_PATCHES, tower.hidden, std=0.5)
        self.blocks = nn.CellList([ViewBlock(tower, TOWER_LAYER + 1 + index) for index in range(tower.num_blocks)])
        self.norm = weights.ones(tower.hidden)
        self.projection = weights.normal(tower.hidden, config.decoder.hidden, std=0.1)
        if frozen:
            for parameter in self.trainable_params():
                parameter.requires_grad = False

    def construct(self, images: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run the tower.

        Args:
            images: (micro_batch_size, max_images, 8, 8) uint8; as many of a page are real as its ids say IMAGE.
            ids: (micro_batch_size, seq) int32.

        Returns:
            One vector per real image, (images, hidden); for each id the number of its image, from 1, or 0; the ids.
        """
        is_image = ids.asnumpy() == IMAGE
        numbers = np.where(is_image, np.cumsum(is_image).reshape(is_image.shape), 0).astype(np.int32)
        real = np.flatnonzero(np.arange(images.shape[1]) < is_image.sum(1)[:, None])
        rows = Tensor((real if len(real) else np.zeros(1)).astype(np.int32))
        pixels = mint.reshape(images.to(ms.float32) * (1.0 / 16.0), (-1, SIZE * SIZE))[rows]
        side = SIZE // PATCH
        pixels = mint.permute(mint.reshape(pixels, (-1, side, PATCH, side, PATCH)), (0, 1, 3, 2, 4))
        x = mint.matmul(mint.reshape(pixels, (-1, NUM_PATCHES, PATCH * PATCH)), self.patch) + self.position
        for block in self.blocks:
            x = block(x)
        return mint.matmul(rms_norm(mint.mean(x, 1), self.norm), self.projection), Tensor(numbers), ids


class Embedding(nn.Cell):
    """Puts the tower's vectors where a number says which, token embeddings elsewhere: out comes (…, seq, hidden)."""

    def __init__(self, config: GptConfig, layer: int) -> None:
        super().__init__()
        weights = Weights(config, layer)
        self.token = weights.normal(VOCABULARY, config.hidden, std=0.02)
        self.position = weights.normal(config.context, config.hidden, std=0.02)
        self.blank = Tensor(np.zeros((1, config.hidden), np.float32))

    def construct(self, features: Tensor, numbers: Tensor, ids: Tensor) -> Tensor:
        seen = mint.cat((self.blank, features), 0)[numbers]
        is_token = mint.reshape((numbers == 0).to(ms.float32), (*ids.shape, 1))
        return self.token[ids] * is_token + seen + self.position[: ids.shape[1]]


def build_decoder(config: VlmConfig) -> list[nn.Cell]:
    """Builds the decoder: one embedding, `num_blocks` transformer blocks, one head.

    Args:
        config: The model's sizes.

    Returns:
        Cells whose composition maps (features, numbers, ids) to logits (micro_batch_size, seq, 256).
    """
    decoder = config.decoder
    blocks = [Block(decoder, 1 + index) for index in range(decoder.num_blocks)]
    return [Embedding(decoder, 0), *blocks, Head(decoder, 1 + decoder.num_blocks)]


def text_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of the bytes to be written, in nats.

    Args:
        logits: (micro_batch_size, seq, 256) float32.
        targets: (micro_batch_size, seq) int32; −1 where nothing is to be written.

    Returns:
        A scalar.
    """
    logits, targets = mint.reshape(logits, (-1, VOCABULARY)), mint.reshape(targets, (-1, 1))
    counts = (targets >= 0).to(ms.float32)
    chosen = mint.gather(logits, 1, (targets * counts.to(ms.int32)).to(ms.int64))
    surprise = mint.log(mint.sum(mint.exp(logits), -1, True)) - chosen
    return mint.sum(surprise * counts) / mint.sum(counts)


def count_bytes(targets: Tensor) -> int:
    """Counts the bytes to be written in a micro-batch of targets: its weight in the mean over the batch."""
    return int((targets.asnumpy() >= 0).sum())
