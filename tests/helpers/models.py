"""The models that the host tests train: small, quick, and made of feature maps.

Each is sized so that weights, gradients and optimizer state stay under a fifth of the peak, that
its feature maps are many and mostly 0.25 to 1 MiB (a frame of the simulated device is 64 KiB),
and that one step takes well under a second on one core.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Workload:
    """A model with the batches and the loss that it is trained on."""

    build: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]
    is_chain: bool = False  # one feature map feeds the next, and none is far above the others


def classify(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of one call of the model."""
    return functional.cross_entropy(model(batch[0]), batch[1])


def classify_both_halves(model: nn.Module, batch: Batch) -> Tensor:
    """The sum over two calls of the model, so that one backward crosses both."""
    (first, second), (labels, more_labels) = batch[0].chunk(2), batch[1].chunk(2)
    one = functional.cross_entropy(model(first), labels)
    return one + functional.cross_entropy(model(second), more_labels)


def match(model: nn.Module, batch: Batch) -> Tensor:
    """Mean squared distance to the target."""
    return functional.mse_loss(model(batch[0]), batch[1])


def images(count: int, side: int = 32) -> Callable[[torch.Generator], Batch]:
    """Random images with labels."""

    def draw(generator: torch.Generator) -> Batch:
        pixels = torch.randn(count, 3, side, side, generator=generator)
        return pixels, torch.randint(10, (count,), generator=generator)

    return draw


def pictures_and_masks(count: int, side: int = 32) -> Callable[[torch.Generator], Batch]:
    """Random images with a target of the same size."""

    def draw(generator: torch.Generator) -> Batch:
        return (
            torch.randn(count, 3, side, side, generator=generator),
            torch.randn(count, 1, side, side, generator=generator),
        )

    return draw


def sequences(length: int, count: int, width: int) -> Callable[[torch.Generator], Batch]:
    """Random sequences (length, count, width), each with a label."""

    def draw(generator: torch.Generator) -> Batch:
        values = torch.randn(length, count, width, generator=generator)
        return values, torch.randint(10, (count,), generator=generator)

    return draw


def rows(count: int, width: int) -> Callable[[torch.Generator], Batch]:
    """Random vectors with a target of the same shape."""

    def draw(generator: torch.Generator) -> Batch:
        return (
            torch.randn(count, width, generator=generator),
            torch.randn(count, width, generator=generator),
        )

    return draw


def vgg(*, depths: tuple[int, ...] = (80, 32), channels: int = 8) -> nn.Module:
    """Plain convolutions with in-place ReLU: the ReLU overwrites what the convolution wrote."""
    layers: list[nn.Module] = []
    inputs = 3
    for stage, depth in enumerate(depths):
        outputs = channels << stage
        for _ in range(depth):
            convolution = nn.Conv2d(inputs, outputs, 3, padding=1)
            nn.init.kaiming_normal_(convolution.weight)  # else nothing comes through so many
            layers += [convolution, nn.ReLU(inplace=True)]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


def conv_norm_relu(inputs: int, outputs: int) -> nn.Sequential:
    """The usual three layers."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class Residual(nn.Module):
    """Two convolutions whose result is added in place to what came in."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv_norm_relu(channels, channels),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, identity: Tensor) -> Tensor:
        out: Tensor = self.body(identity)
        out += identity
        return torch.as_tensor(self.relu(out))


def resnet(*, depths: tuple[int, int] = (8, 6), channels: int = 16) -> nn.Module:
    """A residual network in two stages."""
    return nn.Sequential(
        conv_norm_relu(3, channels),
        *[Residual(channels) for _ in range(depths[0])],
        nn.Conv2d(channels, 2 * channels, 2, stride=2),
        *[Residual(2 * channels) for _ in range(depths[1])],
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * channels, 10),
    )


class UNet(nn.Module):
    """Skips are outputs of modules, held in Python variables until the way up reads them."""

    def __init__(self, width: int = 16, depth: int = 8) -> None:
        super().__init__()
        self.down1 = self.stage(3, width, depth)
        self.down2 = self.stage(width, width, depth)
        self.bottom = self.stage(width, 2 * width, depth)
        self.up2 = self.stage(3 * width, width, depth)
        self.up1 = self.stage(2 * width, width, depth)
        self.head = nn.Conv2d(width, 1, 1)

    @staticmethod
    def stage(inputs: int, outputs: int, depth: int) -> nn.Sequential:
        """Several convolutions, so that the skip is a small share of the stage."""
        later = [conv_norm_relu(outputs, outputs) for _ in range(depth - 1)]
        return nn.Sequential(conv_norm_relu(inputs, outputs), *later)

    def forward(self, picture: Tensor) -> Tensor:
        skip1 = self.down1(picture)
        skip2 = self.down2(functional.max_pool2d(skip1, 2))
        deep = self.bottom(functional.max_pool2d(skip2, 2))
        deep = self.up2(torch.cat([functional.interpolate(deep, scale_factor=2.0), skip2], 1))
        deep = self.up1(torch.cat([functional.interpolate(deep, scale_factor=2.0), skip1], 1))
        return torch.as_tensor(self.head(deep))


class FlatUNet(nn.Module):
    """A U-Net as it is often written: every feature map is a local of forward() until it returns.

    So nobody but the access guard can let one leave before that.
    """

    def __init__(self, width: int = 16, depth: int = 6) -> None:
        super().__init__()
        self.down1 = self.stage(3, width, depth)
        self.down2 = self.stage(width, width, depth)
        self.bottom = self.stage(width, width, depth)
        self.up2 = self.stage(2 * width, width, depth)
        self.up1 = self.stage(2 * width, width, depth)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(5 * depth))
        self.head = nn.Conv2d(width, 1, 1)

    @staticmethod
    def stage(inputs: int, outputs: int, depth: int) -> nn.ModuleList:
        """Convolutions of one resolution."""
        widths = [inputs] + [outputs] * (depth - 1)
        return nn.ModuleList(nn.Conv2d(width, outputs, 3, padding=1) for width in widths)

    def forward(self, picture: Tensor) -> Tensor:
        held: list[Tensor] = []
        norms = iter(self.norms)

        def run(stage: nn.ModuleList, x: Tensor) -> Tensor:
            for convolution in stage:
                y = convolution(x)
                x = functional.relu(next(norms)(y))
                held.extend((y, x))
            return x

        skip1 = run(self.down1, picture)
        skip2 = run(self.down2, functional.max_pool2d(skip1, 2))
        deep = run(self.bottom, functional.max_pool2d(skip2, 2))
        up = functional.interpolate(deep, scale_factor=2.0)
        up = run(self.up2, torch.cat([up, skip2], 1))
        up = functional.interpolate(up, scale_factor=2.0)
        up = run(self.up1, torch.cat([up, skip1], 1))
        return torch.as_tensor(self.head(up))


class KeepsItsFeatures(nn.Module):
    """Leaves every feature map on itself until the next call, for whoever computes the loss."""

    def __init__(self, width: int = 32, depth: int = 40) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.features: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.features = []
        for layer in self.layers:
            x = torch.tanh(1.2 * layer(x) + 0.1 * x)
            self.features.append(x)
        return x


def match_features(model: nn.Module, batch: Batch) -> Tensor:
    """The distance to the target, and the means of some feature maps."""
    assert isinstance(model, KeepsItsFeatures)
    distance = functional.mse_loss(model(batch[0]), batch[1])
    means = torch.stack([feature.mean() for feature in model.features[::10]])
    return distance + means.square().sum()


class Recurrent(nn.Module):
    """A stack of LSTM layers over a sequence, and a classifier over its last state.

    oneDNN saves one workspace a layer, so many layers make many blocks of about a MiB.
    """

    def __init__(self, hidden: int = 32, depth: int = 20) -> None:
        super().__init__()
        self.lstm = nn.LSTM(hidden, hidden, num_layers=depth)
        self.head = nn.Linear(hidden, 10)

    def forward(self, sequence: Tensor) -> Tensor:
        output, _ = self.lstm(sequence)
        return torch.as_tensor(self.head(output[-1]))


class Transformer(nn.Module):
    """A transformer encoder with dropout, and a classifier over the mean of its outputs."""

    def __init__(self, width: int = 64, depth: int = 5) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, dim_feedforward=2 * width, dropout=0.1)
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, sequence: Tensor) -> Tensor:
        for layer in self.layers:
            sequence = layer(sequence)
        return torch.as_tensor(self.head(sequence.mean(dim=0)))


def deep_chain() -> nn.Module:
    """A hundred and fifty equal feature maps, few weights: what the bytes bound is held to."""
    layers: list[nn.Module] = []
    for _ in range(50):
        linear = nn.Linear(32, 32)
        nn.init.xavier_normal_(linear.weight, gain=1.4)  # so that gradients reach the first layer
        layers += [linear, nn.Tanh(), nn.Tanh(), nn.Tanh()]
    return nn.Sequential(*layers)


WORKLOADS: dict[str, Workload] = {
    "vgg": Workload(vgg, images(8), classify),
    "resnet": Workload(resnet, images(8), classify),
    "unet": Workload(UNet, pictures_and_masks(8), match),
    "lstm": Workload(Recurrent, sequences(12, 64, 32), classify),
    "transformer": Workload(Transformer, sequences(32, 32, 64), classify),
    "twice": Workload(lambda: vgg(depths=(14, 14)), images(32), classify_both_halves),
    "chain": Workload(deep_chain, rows(2048, 32), match, is_chain=True),
}

# What holds its feature maps, so that only the access guard lets them leave within a forward.
HOLDING: dict[str, Workload] = {
    "flat_unet": Workload(FlatUNet, pictures_and_masks(8), match),
    "on_self": Workload(KeepsItsFeatures, rows(2048, 32), match_features),
}
