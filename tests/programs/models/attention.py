"""Transformers of every kind: encoder, decoder, tied weights, patches, experts, dropped layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.programs.data import fit, images, labels, sequences, tokens
from tests.programs.program import program

if TYPE_CHECKING:
    from tests.programs.seen import Seen

WIDTH = 32


def labelled(step: int, count: int = 64, length: int = 24) -> tuple[Tensor, Tensor]:
    return sequences(count, length, WIDTH, step), labels(count, step)


class Attention(nn.Module):
    """Query, key and value are views of one product."""

    def __init__(self, width: int = WIDTH, heads: int = 4, *, causal: bool = False) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        count, length, width = x.shape
        parts = self.qkv(x).view(count, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        said = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return torch.as_tensor(self.out(said.transpose(1, 2).reshape(count, length, width)))


class Block(nn.Module):
    """Pre-norm attention and perceptron, with residuals."""

    def __init__(self, width: int = WIDTH, *, causal: bool = False, dropout: float = 0.1) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, causal=causal)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + torch.as_tensor(self.mlp(self.norm2(x)))


class Pooled(nn.Module):
    """A body over a sequence, and a classifier over the mean."""

    def __init__(self, *body: nn.Module) -> None:
        super().__init__()
        self.body = nn.ModuleList(body)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.body:
            x = layer(x)
        return torch.as_tensor(self.head(x.mean(dim=1)))


@program()
def encoder() -> Seen:
    layers = [nn.TransformerEncoderLayer(WIDTH, 4, 64, batch_first=True) for _ in range(6)]
    return fit(Pooled(*layers), labelled)


class EncoderDecoder(nn.Module):
    """torch's own transformer, with a causal mask over the target."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Transformer(WIDTH, 4, 3, 3, 64, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return torch.as_tensor(self.body(x, x.roll(1, dims=1), tgt_mask=mask, tgt_is_causal=True))


@program(gpu_percent=80)
def encoder_and_decoder() -> Seen:
    def batch(step: int) -> tuple[Tensor, Tensor]:
        x, _ = labelled(step, count=16, length=20)
        return x, x

    return fit(EncoderDecoder(), batch, functional.mse_loss)


class Gpt(nn.Module):
    """The output layer is the embedding, transposed."""

    def __init__(self, vocabulary: int = 64, length: int = 32, depth: int = 5) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH)
        self.position = nn.Parameter(torch.randn(length, WIDTH) * 0.02)
        self.blocks = nn.Sequential(*[Block(causal=True) for _ in range(depth)])
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, vocabulary, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, text: Tensor) -> Tensor:
        x = self.embedding(text) + self.position[: text.shape[1]]
        return torch.as_tensor(self.out(self.norm(self.blocks(x))))


def next_token_loss(said: Tensor, text: Tensor) -> Tensor:
    return functional.cross_entropy(said[:, :-1].flatten(0, 1), text[:, 1:].flatten())


@program(gpu_percent=80)
def gpt_with_tied_weights() -> Seen:
    def batch(step: int) -> tuple[Tensor, Tensor]:
        text = tokens(16, 32, 64, step)
        return text, text

    return fit(Gpt(), batch, next_token_loss)


class Patches(nn.Module):
    """Images as sequences, with a learned first token."""

    def __init__(self, side: int = 4) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, WIDTH, side, stride=side)
        self.first = nn.Parameter(torch.zeros(1, 1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        patches = self.cut(x).flatten(2).transpose(1, 2)
        return torch.cat([self.first.expand(len(x), -1, -1), patches], dim=1)


@program(gpu_percent=80)
def vision_transformer() -> Seen:
    model = Pooled(Patches(), *[Block() for _ in range(5)])
    return fit(model, lambda step: (images(8, 32, step), labels(8, step)))


# --- the order of execution changes from step to step --------------------------------------------


class Experts(nn.Module):
    """A random expert for the whole batch, another one each time."""

    def __init__(self, count: int = 4) -> None:
        super().__init__()
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))
            for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.as_tensor(self.experts[int(torch.randint(len(self.experts), ()))](x))


@program()
def random_experts() -> Seen:
    layers = [layer for _ in range(5) for layer in (Attention(), Experts())]
    return fit(Pooled(*layers), labelled, steps=8)


class Routed(nn.Module):
    """Each token goes to the expert that its router likes best: sizes that depend on the data."""

    def __init__(self, count: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, count)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        gates = self.router(flat).softmax(dim=1)
        chosen = gates.argmax(dim=1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            where = (chosen == number).nonzero().squeeze(1)
            said = torch.tanh(expert(flat[where])) * gates[where, number, None]
            out = out.index_add(0, where, said)
        return x + out.view_as(x)


@program()
def routed_experts() -> Seen:
    return fit(Pooled(*[Routed() for _ in range(8)]), labelled, steps=4)


class LayerDrop(Pooled):
    """Skips each block with even odds."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.body:
            if not self.training or torch.rand(()) < 0.5:
                x = layer(x)
        return torch.as_tensor(self.head(x.mean(dim=1)))


@program()
def layer_drop() -> Seen:
    return fit(LayerDrop(*[Block() for _ in range(10)]), labelled, steps=10)


class EarlyExit(Pooled):
    """Leaves after a random number of blocks."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.body[: int(torch.randint(1, len(self.body) + 1, ()))]:
            x = layer(x)
        return torch.as_tensor(self.head(x.mean(dim=1)))


@program()
def early_exit() -> Seen:
    return fit(EarlyExit(*[Block() for _ in range(8)]), labelled, steps=8)


class OptionalBranch(Pooled):
    """A branch that the first steps do not have."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        for number, layer in enumerate(self.body):
            if number % 2 == 0 or self.calls > 2:
                x = layer(x)
        return torch.as_tensor(self.head(x.mean(dim=1)))


@program()
def branch_that_comes_later() -> Seen:
    return fit(OptionalBranch(*[Block() for _ in range(8)]), labelled, steps=5)
