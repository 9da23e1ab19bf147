"""A small pre-norm GPT of mint operators, which the emulated CANN has; token numbers go in, logits come out."""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn

VOCABULARY, SEQUENCE, WIDTH, HEADS = 11, 5, 8, 2


class Block(nn.Cell):
    """Causal attention and an MLP, each behind a norm and added to its input."""

    def __init__(self, index):
        super().__init__()
        numbers = np.random.RandomState(200 + index)

        def weight(*shape, start=0.0):
            return Parameter(Tensor((start + numbers.randn(*shape) * 0.2).astype(np.float32)))

        self.qkv, self.out = weight(3 * WIDTH, WIDTH), weight(WIDTH, WIDTH)
        self.up, self.down = weight(2 * WIDTH, WIDTH), weight(WIDTH, 2 * WIDTH)
        self.scale, self.shift = weight(WIDTH, start=1.0), weight(WIDTH)
        self.hidden = Tensor(np.triu(np.ones((SEQUENCE, SEQUENCE)), 1).astype(bool))

    def norm(self, x):
        return mint.nn.functional.layer_norm(x, (WIDTH,), self.scale, self.shift)

    def attention(self, x):
        heads = (x.shape[0], SEQUENCE, HEADS, WIDTH // HEADS)
        parts = mint.chunk(mint.nn.functional.linear(x, self.qkv), 3, -1)
        query, key, value = (mint.transpose(part.reshape(heads), 1, 2) for part in parts)
        scores = mint.matmul(query, mint.transpose(key, 2, 3)) / (WIDTH // HEADS) ** 0.5
        shares = mint.nn.functional.softmax(scores.masked_fill(self.hidden, -1e9), -1)
        mixed = mint.transpose(mint.matmul(shares, value), 1, 2).reshape(x.shape)
        return mint.nn.functional.linear(mixed, self.out)

    def construct(self, x):
        x = x + self.attention(self.norm(x))
        inner = mint.nn.functional.gelu(mint.nn.functional.linear(self.norm(x), self.up))
        return x + mint.nn.functional.linear(inner, self.down)


class First(Block):
    """Embeds tokens, then a block."""

    def __init__(self, index):
        super().__init__(index)
        table = np.random.RandomState(300).randn(VOCABULARY, WIDTH)
        self.table = Parameter(Tensor(table.astype(np.float32)))

    def construct(self, tokens):
        return super().construct(mint.nn.functional.embedding(tokens, self.table))


class Last(Block):
    """A block, then logits."""

    def __init__(self, index):
        super().__init__(index)
        head = np.random.RandomState(301).randn(VOCABULARY, WIDTH) * 0.2
        self.head = Parameter(Tensor(head.astype(np.float32)))

    def construct(self, x):
        return mint.nn.functional.linear(super().construct(x), self.head)


def gpt_layers(count):
    """Return ``count`` ≥ 2 layers: the first embeds, the last gives logits (batch, SEQUENCE, VOCABULARY)."""
    return [First(0), *(Block(index) for index in range(1, count - 1)), Last(count - 1)]


def cross_entropy(logits, target):
    return mint.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), target.reshape(-1))


def text(size):
    """Return token numbers and those that follow, both (size, SEQUENCE)."""
    tokens = np.random.RandomState(9).randint(0, VOCABULARY, (size, SEQUENCE + 1))
    return Tensor(tokens[:, :-1].astype(np.int32)), Tensor(tokens[:, 1:].astype(np.int64))


def one_process(count, tokens, target):
    """Loss and gradients, by layer and name, of MindSpore's own ``value_and_grad`` without a pipeline."""
    layers = gpt_layers(count)
    whole = nn.SequentialCell(*layers)
    names = [(index, name) for index, layer in enumerate(layers) for name, _ in layer.parameters_and_names()]
    parameters = [parameter for layer in layers for parameter in layer.get_parameters()]
    run = ms.value_and_grad(lambda x, y: cross_entropy(whole(x), y), None, parameters)
    loss, gradients = run(tokens, target)
    return loss.asnumpy(), {key: gradient.asnumpy() for key, gradient in zip(names, gradients, strict=True)}
