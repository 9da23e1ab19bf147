"""A byte-level GPT as a list of plain MindSpore Cells, ready to be cut into pipeline stages.

Only operators that both the CPU and the Ascend backend have are used, which is why normalisation, the activation and
the loss are spelled out: `mint.nn.LayerNorm`, `mint.nn.functional.gelu` and `cross_entropy` have no CPU kernel.
"""
from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from gpt_common import VOCABULARY, GptConfig
from mindspore import Parameter, Tensor, mint, nn


class Weights:
    """Draws one layer's initial weights from a generator of its own.

    The stream depends on (seed, layer) only, so a layer starts with the same values on whichever rank it is built and
    whatever else that rank builds.
    """

    def __init__(self, config: GptConfig, layer: int) -> None:
        self._random = np.random.default_rng([config.seed, layer])

    def normal(self, *shape: int, std: float) -> Parameter:
        return Parameter(Tensor(self._random.normal(0.0, std, shape).astype(np.float32)))

    def ones(self, *shape: int) -> Parameter:
        return Parameter(Tensor(np.ones(shape, np.float32)))

    def zeros(self, *shape: int) -> Parameter:
        return Parameter(Tensor(np.zeros(shape, np.float32)))


def rms_norm(x: Tensor, scale: Tensor) -> Tensor:
    """Scales each vector to a mean square of 1, then by `scale`."""
    return x * mint.rsqrt(mint.mean(x * x, -1, True) + 1e-5) * scale


class Embedding(nn.Cell):
    """Token plus position embedding: int32 ids (micro_batch_size, seq) to (micro_batch_size, seq, hidden)."""

    def __init__(self, config: GptConfig, layer: int) -> None:
        super().__init__()
        weights = Weights(config, layer)
        self.token = weights.normal(VOCABULARY, config.hidden, std=0.02)
        self.position = weights.normal(config.context, config.hidden, std=0.02)

    def construct(self, ids: Tensor) -> Tensor:
        return self.token[ids] + self.position[: ids.shape[1]]


class Block(nn.Cell):
    """A pre-norm transformer block with causal attention: (micro_batch_size, seq, hidden) in and out."""

    def __init__(self, config: GptConfig, layer: int) -> None:
        super().__init__()
        weights, hidden = Weights(config, layer), config.hidden
        self.num_heads = config.num_heads
        # Residual branches start small so that the stream's variance does not grow with depth.
        out_std = 0.02 / math.sqrt(2 * config.num_blocks)
        self.norm1 = weights.ones(hidden)
        self.qkv = weights.normal(hidden, 3 * hidden, std=0.02)
        self.attention_out = weights.normal(hidden, hidden, std=out_std)
        self.norm2 = weights.ones(hidden)
        self.up = weights.normal(hidden, 4 * hidden, std=0.02)
        self.up_bias = weights.zeros(4 * hidden)
        self.down = weights.normal(4 * hidden, hidden, std=out_std)
        self.down_bias = weights.zeros(hidden)
        # Added to the scores rather than selected by a bool tensor: one operator, and no bool tensor on the device.
        self.mask = Tensor(np.triu(np.full((config.context, config.context), -1e9, np.float32), 1))

    def construct(self, x: Tensor) -> Tensor:
        x = x + self._attention(rms_norm(x, self.norm1))
        up = mint.matmul(rms_norm(x, self.norm2), self.up) + self.up_bias
        return x + (mint.matmul(mint.nn.functional.silu(up), self.down) + self.down_bias)

    def _attention(self, x: Tensor) -> Tensor:
        batch, seq, hidden = x.shape
        size = hidden // self.num_heads
        qkv = mint.reshape(mint.matmul(x, self.qkv), (batch, seq, 3, self.num_heads, size))
        qkv = mint.permute(qkv, (2, 0, 3, 1, 4))
        query, key, value = qkv[0], qkv[1], qkv[2]
        scores = mint.matmul(query * (1.0 / math.sqrt(size)), mint.transpose(key, 2, 3)) + self.mask[:seq, :seq]
        mixed = mint.matmul(mint.nn.functional.softmax(scores, -1), value)
        mixed = mint.reshape(mint.permute(mixed, (0, 2, 1, 3)), (batch, seq, hidden))
        return mint.matmul(mixed, self.attention_out)


class Head(nn.Cell):
    """Final norm and output projection: (micro_batch_size, seq, hidden) to logits (micro_batch_size, seq, 256)."""

    def __init__(self, config: GptConfig, layer: int) -> None:
        super().__init__()
        weights = Weights(config, layer)
        self.norm = weights.ones(config.hidden)
        self.projection = weights.normal(config.hidden, VOCABULARY, std=0.02)

    def construct(self, x: Tensor) -> Tensor:
        return mint.matmul(rms_norm(x, self.norm), self.projection)


def build_layers(config: GptConfig) -> list[nn.Cell]:
    """Builds the whole model: one embedding, `num_blocks` transformer blocks, one head.

    Args:
        config: The model's sizes.

    Returns:
        `num_blocks + 2` Cells whose composition maps ids (micro_batch_size, seq) to logits (…, seq, 256).
    """
    blocks = [Block(config, 1 + index) for index in range(config.num_blocks)]
    return [Embedding(config, 0), *blocks, Head(config, 1 + config.num_blocks)]


def next_byte_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of the next byte, in nats.

    Args:
        logits: (micro_batch_size, seq, 256) float32.
        targets: (micro_batch_size, seq) int32, the byte after each position.

    Returns:
        A scalar.
    """
    logits = mint.reshape(logits, (-1, VOCABULARY))
    chosen = mint.gather(logits, 1, mint.reshape(targets, (-1, 1)).to(ms.int64))
    # No running maximum is subtracted: a trained head's logits stay far from float32's limit of 88.
    return mint.mean(mint.log(mint.sum(mint.exp(logits), -1, True)) - chosen)


def count_parameters(layers: list[nn.Cell]) -> int:
    """Counts the trainable numbers in `layers`.

    Args:
        layers: Any Cells.

    Returns:
        The sum of the sizes of their parameters.
    """
    return sum(int(np.prod(parameter.shape)) for layer in layers for parameter in layer.trainable_params())
