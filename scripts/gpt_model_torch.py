"""The byte-level GPT of gpt_model.py as torch modules: the same weights, the same operators in the same order."""
from __future__ import annotations

import math

import numpy as np
import torch
from gpt_common import VOCABULARY, GptConfig
from torch import Tensor, nn


class Weights:
    """Draws one layer's initial weights, the values that gpt_model.py draws."""

    def __init__(self, config: GptConfig, layer: int) -> None:
        self._random = np.random.default_rng([config.seed, layer])

    def normal(self, *shape: int, std: float) -> nn.Parameter:
        return nn.Parameter(torch.from_numpy(self._random.normal(0.0, std, shape).astype(np.float32)))


def rms_norm(x: Tensor, scale: Tensor) -> Tensor:
    """Scales each vector to a mean square of 1, then by `scale`."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * scale


class Embedding(nn.Module):
    """Token plus position embedding: int32 ids (micro_batch_size, seq) to (micro_batch_size, seq, hidden)."""

    def __init__(self, config: GptConfig, layer: int) -> None:
        super().__init__()
        weights = Weights(config, layer)
        self.token = weights.normal(VOCABULARY, config.hidden, std=0.02)
        self.position = weights.normal(config.context, config.hidden, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """Embed."""
        return nn.functional.embedding(ids, self.token) + self.position[: ids.shape[1]]


class Block(nn.Module):
    """A pre-norm transformer block with causal attention: (micro_batch_size, seq, hidden) in and out."""

    def __init__(self, config: GptConfig, layer: int) -> None:
        super().__init__()
        weights, hidden = Weights(config, layer), config.hidden
        self.num_heads = config.num_heads
        out_std = 0.02 / math.sqrt(2 * config.num_blocks)
        self.norm1 = nn.Parameter(torch.ones(hidden))
        self.qkv = weights.normal(hidden, 3 * hidden, std=0.02)
        self.attention_out = weights.normal(hidden, hidden, std=out_std)
        self.norm2 = nn.Parameter(torch.ones(hidden))
        self.up = weights.normal(hidden, 4 * hidden, std=0.02)
        self.up_bias = nn.Parameter(torch.zeros(4 * hidden))
        self.down = weights.normal(4 * hidden, hidden, std=out_std)
        self.down_bias = nn.Parameter(torch.zeros(hidden))
        mask = torch.full((config.context, config.context), -1e9).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Attend, then transform."""
        x = x + self._attention(rms_norm(x, self.norm1))
        up = rms_norm(x, self.norm2) @ self.up + self.up_bias
        return x + (nn.functional.silu(up) @ self.down + self.down_bias)

    def _attention(self, x: Tensor) -> Tensor:
        batch, seq, hidden = x.shape
        size = hidden // self.num_heads
        qkv = (x @ self.qkv).reshape(batch, seq, 3, self.num_heads, size).permute(2, 0, 3, 1, 4)
        query, key, value = qkv[0], qkv[1], qkv[2]
        scores = (query * (1.0 / math.sqrt(size))) @ key.transpose(2, 3) + self.mask[:seq, :seq]
        mixed = (scores.softmax(-1) @ value).permute(0, 2, 1, 3).reshape(batch, seq, hidden)
        return mixed @ self.attention_out


class Head(nn.Module):
    """Final norm and output projection: (micro_batch_size, seq, hidden) to logits (micro_batch_size, seq, 256)."""

    def __init__(self, config: GptConfig, layer: int) -> None:
        super().__init__()
        weights = Weights(config, layer)
        self.norm = nn.Parameter(torch.ones(config.hidden))
        self.projection = weights.normal(config.hidden, VOCABULARY, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Project."""
        return rms_norm(x, self.norm) @ self.projection


def build_layers(config: GptConfig) -> nn.Sequential:
    """Builds the whole model: one embedding, `num_blocks` transformer blocks, one head.

    Args:
        config: The model's sizes.

    Returns:
        `num_blocks + 2` modules that map ids (micro_batch_size, seq) to logits (…, seq, 256).
    """
    blocks = [Block(config, 1 + index) for index in range(config.num_blocks)]
    return nn.Sequential(Embedding(config, 0), *blocks, Head(config, 1 + config.num_blocks))


def next_byte_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of the next byte, in nats.

    Args:
        logits: (micro_batch_size, seq, 256) float32.
        targets: (micro_batch_size, seq) int32, the byte after each position.

    Returns:
        A scalar.
    """
    return nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1).long())
