"""Networks of convolutions, with the habits that have broken tools like this: skips held in Python
variables or on self, in-place ReLU, residual +=, maps that are concatenated again and again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.programs.data import fit, images, labels
from tests.programs.program import device, program

if TYPE_CHECKING:
    from tests.programs.seen import Seen


def block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def classified(step: int, count: int = 8, side: int = 32) -> tuple[Tensor, Tensor]:
    return images(count, side, step), labels(count, step)


def masked(step: int, count: int = 8, side: int = 32) -> tuple[Tensor, Tensor]:
    return images(count, side, step), images(count, side, 500 + step, channels=1)


# --- skips ---------------------------------------------------------------------------------------


class FlatUNet(nn.Module):
    """Three levels in one forward; the skips are local variables until the way up reads them."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.down = nn.ModuleList([block(3, width), block(width, width), block(width, width)])
        self.deep = nn.ModuleList(block(width, width) for _ in range(8))
        self.up = nn.ModuleList(block(2 * width, width) for _ in range(3))
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for down in self.down:
            x = down(x)
            skips.append(x)
            x = functional.max_pool2d(x, 2)
        for deep in self.deep:
            x = deep(x)
        for up in self.up:
            x = functional.interpolate(x, scale_factor=2.0)
            x = up(torch.cat([x, skips.pop()], dim=1))
        return torch.as_tensor(self.head(x))


# Joining the widest maps takes most of the peak in one operator.
@program(percent=80, gpu_percent=95)
def unet_flat() -> Seen:
    return fit(FlatUNet(), masked, functional.mse_loss)


class FeaturesOnSelf(nn.Module):
    """Leaves every feature map on self, as code that visualises them does."""

    def __init__(self) -> None:
        super().__init__()
        self.first = block(3, 8)
        self.blocks = nn.ModuleList(block(8, 8) for _ in range(24))
        self.head = nn.Linear(8, 10)
        self.features: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.features = []
        x = self.first(x)
        for number, layer in enumerate(self.blocks):
            x = layer(x)
            if number % 4 == 0:
                self.features.append(x)
        return torch.as_tensor(self.head(x.mean(dim=(2, 3))))


@program(percent=50, gpu_percent=80)
def features_on_self() -> Seen:
    model = FeaturesOnSelf()
    seen = fit(model, classified)
    seen.note("feature", *[feature.mean().item() for feature in model.features])
    seen.note("features", *model.features)
    return seen


# --- in place ------------------------------------------------------------------------------------


class Residual(nn.Module):
    """Adds in place what came in, then rectifies in place."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.two = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = functional.relu(self.norm(self.one(x)), inplace=True)
        out = self.two(out)
        out += identity
        return torch.relu_(out)


@program()
def residual_in_place() -> Seen:
    model = nn.Sequential(
        block(3, 12),
        *[Residual(12) for _ in range(10)],
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 10),
    )
    return fit(model, classified)


class InPlaceEverything(nn.Module):
    """One in-place operator after the other on what a convolution wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(15))
        self.first = nn.Conv2d(3, 8, 1)
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for number, layer in enumerate(self.convolutions):
            x = layer(x)
            x = functional.dropout(x, 0.1, training=self.training, inplace=True)
            change = (torch.sigmoid_, torch.tanh_, torch.relu_, torch.exp_)[number % 4]
            x = change(x.mul_(0.5).add_(0.1).clamp_(-2, 2))
        return torch.as_tensor(self.head(x.mean(dim=(2, 3))))


@program()
def in_place_everything() -> Seen:
    return fit(InPlaceEverything(), classified)


# --- dense, grouped, transposed, normalised ------------------------------------------------------


class DenseLayer(nn.Module):
    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, growth, 3, padding=1, bias=False)

    def forward(self, features: list[Tensor]) -> Tensor:
        x = torch.cat(features, dim=1)
        return torch.as_tensor(self.conv(functional.relu(self.norm(x), inplace=True)))


class DenseNet(nn.Module):
    """Every layer reads the concatenation of all before it."""

    def __init__(self, growth: int = 4, depth: int = 9) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, growth, 3, padding=1)
        self.layers = nn.ModuleList(DenseLayer(growth * (n + 1), growth) for n in range(depth))
        self.head = nn.Linear(growth * (depth + 1), 10)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.first(x)]
        for layer in self.layers:
            features.append(layer(features))
        return torch.as_tensor(self.head(torch.cat(features, 1).mean(dim=(2, 3))))


@program(gpu_percent=85)
def dense() -> Seen:
    return fit(DenseNet(), partial(classified, count=12))


class Inverted(nn.Module):
    """Depthwise convolution, squeeze and excitation, group norm, hard swish."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.widen = nn.Conv2d(channels, 2 * channels, 1)
        self.depthwise = nn.Conv2d(2 * channels, 2 * channels, 3, padding=1, groups=2 * channels)
        self.norm = nn.GroupNorm(4, 2 * channels)
        self.gate = nn.Conv2d(2 * channels, 2 * channels, 1)
        self.narrow = nn.Conv2d(2 * channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        out = functional.hardswish(self.norm(self.depthwise(self.widen(x))), inplace=True)
        out = out * torch.sigmoid(self.gate(out.mean(dim=(2, 3), keepdim=True)))
        return x + self.narrow(out)


@program()
def inverted_residual_channels_last() -> Seen:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        *[Inverted(8) for _ in range(7)],
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    ).to(memory_format=torch.channels_last)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        x, y = classified(step)
        return x.to(memory_format=torch.channels_last), y

    return fit(model, batch)


class Autoencoder(nn.Module):
    """Strided convolutions down, transposed ones up."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            *[m for _ in range(6) for m in (nn.Conv2d(width, width, 3, padding=1), nn.ELU())],
            nn.Conv2d(width, width, 4, stride=2, padding=1),
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(width, width, 4, stride=2, padding=1),
            *[m for _ in range(6) for m in (nn.Conv2d(width, width, 3, padding=1), nn.SiLU())],
            nn.Conv2d(width, 3, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.decoder(self.encoder(x)))


@program()
def autoencoder() -> Seen:
    def batch(step: int) -> tuple[Tensor, Tensor]:
        x = images(4, 32, step)
        return x, x

    return fit(Autoencoder(), batch, functional.l1_loss)


@program(gpu_percent=85)
def frozen_encoder() -> Seen:
    """Only the head learns; the encoder's maps are not saved at all."""
    torch.manual_seed(3)
    encoder = nn.Sequential(block(3, 12), *[block(12, 12) for _ in range(4)])
    head = nn.Sequential(*[block(12, 12) for _ in range(12)], nn.Flatten(1), nn.LazyLinear(10))
    model = nn.Sequential(encoder, head).to(device())
    model(images(1, 32))
    for parameter in encoder.parameters():
        parameter.requires_grad_(requires_grad=False)
    return fit(model, classified)
