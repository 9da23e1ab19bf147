"""The vision-language model of vlm_model.py as torch modules: the same weights and operators."""
from __future__ import annotations

import torch
from digits_data import IMAGE, SIZE
from gpt_common import VOCABULARY, GptConfig
from gpt_model_torch import Block, Head, Weights, rms_norm
from torch import Tensor, nn
from vlm_common import NUM_PATCHES, PATCH, TOWER_LAYER, VlmConfig


class ViewBlock(Block):
    """A transformer block in which each patch sees all others of its image: (images, patches, hidden) in and out."""

    def __init__(self, config: GptConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.mask.zero_()


class Tower(nn.Module):
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
        self.blocks = nn.ModuleList([ViewBlock(tower, TOWER_LAYER + 1 + index) for index in range(tower.num_blocks)])
        self.norm = nn.Parameter(torch.ones(tower.hidden))
        self.projection = weights.normal(tower.hidden, config.decoder.hidden, std=0.1)
        self.requires_grad_(not frozen)

    def forward(self, images: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run the tower.

        Args:
            images: (micro_batch_size, max_images, 8, 8) uint8; as many of a page are real as its ids say IMAGE.
            ids: (micro_batch_size, seq) int32.

        Returns:
            One vector per real image, (images, hidden); for each id the number of its image, from 1, or 0; the ids.
        """
        is_image = (ids == IMAGE).int()
        numbers = is_image.flatten().cumsum(0).reshape(ids.shape).int() * is_image
        is_real = torch.arange(images.shape[1], device=ids.device) < is_image.sum(1, keepdim=True)
        rows = is_real.flatten().nonzero().flatten()
        pixels = (images.float() * (1.0 / 16.0)).reshape(-1, SIZE * SIZE)[rows if len(rows) else [0]]
        side = SIZE // PATCH
        pixels = pixels.reshape(-1, side, PATCH, side, PATCH).permute(0, 1, 3, 2, 4)
        x = pixels.reshape(-1, NUM_PATCHES, PATCH * PATCH) @ self.patch + self.position
        for block in self.blocks:
            x = block(x)
        return rms_norm(x.mean(1), self.norm) @ self.projection, numbers, ids


class Embedding(nn.Module):
    """Puts the tower's vectors where a number says which, token embeddings elsewhere: out comes (…, seq, hidden)."""

    def __init__(self, config: GptConfig, layer: int) -> None:
        super().__init__()
        weights = Weights(config, layer)
        self.token = weights.normal(VOCABULARY, config.hidden, std=0.02)
        self.position = weights.normal(config.context, config.hidden, std=0.02)

    def forward(self, features: Tensor, numbers: Tensor, ids: Tensor) -> Tensor:
        """Embed."""
        seen = torch.cat((features.new_zeros(1, features.shape[1]), features))[numbers]
        is_token = (numbers == 0).float().unsqueeze(-1)
        return nn.functional.embedding(ids, self.token) * is_token + seen + self.position[: ids.shape[1]]


def build_decoder(config: VlmConfig) -> nn.Sequential:
    """Builds the decoder: one embedding, `num_blocks` transformer blocks, one head.

    Args:
        config: The model's sizes.

    Returns:
        Modules that map (features, numbers, ids) to logits (micro_batch_size, seq, 256).
    """
    decoder = config.decoder
    blocks = [Block(decoder, 1 + index) for index in range(decoder.num_blocks)]
    return nn.Sequential(Embedding(decoder, 0), *blocks, Head(decoder, 1 + decoder.num_blocks))


def text_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of the bytes to be written, in nats.

    Args:
        logits: (micro_batch_size, seq, 256) float32.
        targets: (micro_batch_size, seq) int32; −1 where nothing is to be written.

    Returns:
        A scalar.
    """
    return nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten().long(), ignore_index=-1)


def count_bytes(targets: Tensor) -> Tensor:
    """Counts the bytes to be written in a micro-batch of targets: its weight in the mean over the batch."""
    return (targets >= 0).sum()
