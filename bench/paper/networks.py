"""The paper's networks as plain modules: convolutions, pooling, in-place ReLU and a classifier.

Its "VGG-16" is configuration E (16 convolutions), its OverFeat the accurate model, its AlexNet the
single-tower one; VGG-116 to VGG-416 add 20 convolutions a hundred to each of the five groups. None
has dropout, local response normalisation or batch norm, and GoogLeNet has no auxiliary classifiers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

CLASSES = 1000
VGG_GROUPS = (2, 2, 4, 4, 4)
VGG_WIDTHS = (64, 128, 256, 512, 512)


class Concat(nn.Module):
    """Joins branches by their channels; a module, so that a trace can name it."""

    def forward(self, *branches: Tensor) -> Tensor:
        return torch.cat(branches, dim=1)


class Inception(nn.Module):
    """Four branches over one input: 1x1; 3x3 and 5x5 behind a 1x1; pooling before a 1x1."""

    def __init__(self, inputs: int, widths: Sequence[int]) -> None:
        super().__init__()
        one, three_in, three, five_in, five, pooled = widths
        self.one = convolution(inputs, one, 1)
        self.three = nn.Sequential(
            *convolution(inputs, three_in, 1), *convolution(three_in, three, 3, padding=1)
        )
        self.five = nn.Sequential(
            *convolution(inputs, five_in, 1), *convolution(five_in, five, 5, padding=2)
        )
        self.pooled = nn.Sequential(
            nn.MaxPool2d(3, stride=1, padding=1), *convolution(inputs, pooled, 1)
        )
        self.concat = Concat()

    def forward(self, x: Tensor) -> Tensor:
        joined: Tensor = self.concat(self.one(x), self.three(x), self.five(x), self.pooled(x))
        return joined


class Network(nn.Module):
    """Feature extraction, whose maps the paper moves, and a classifier, which it leaves alone."""

    def __init__(self, features: Sequence[nn.Module], classifier: Sequence[nn.Module]) -> None:
        super().__init__()
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Flatten(), *classifier)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(images))
        return scores

    def initialise(self) -> None:
        """He's weights, so that a signal passes 416 layers; needs real memory."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                assert module.bias is not None
                nn.init.zeros_(module.bias)


def convolution(
    inputs: int, outputs: int, kernel: int, *, stride: int = 1, padding: int = 0
) -> nn.Sequential:
    """A convolution and its ReLU, in place as in the paper's baseline."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding)
    return nn.Sequential(layer, nn.ReLU(inplace=True))


def classifier(*widths: int) -> list[nn.Module]:
    """Fully connected layers with ReLU between."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU(inplace=True)]
    return layers[:-1]


def alexnet() -> Network:
    features = [
        convolution(3, 64, 11, stride=4, padding=2),
        nn.MaxPool2d(3, 2),
        convolution(64, 192, 5, padding=2),
        nn.MaxPool2d(3, 2),
        convolution(192, 384, 3, padding=1),
        convolution(384, 256, 3, padding=1),
        convolution(256, 256, 3, padding=1),
        nn.MaxPool2d(3, 2),
    ]
    return Network(features, classifier(256 * 6 * 6, 4096, 4096, CLASSES))


def overfeat() -> Network:
    features = [
        convolution(3, 96, 7, stride=2),
        nn.MaxPool2d(3, 3),
        convolution(96, 256, 7),
        nn.MaxPool2d(2, 2),
        convolution(256, 512, 3, padding=1),
        convolution(512, 512, 3, padding=1),
        convolution(512, 1024, 3, padding=1),
        convolution(1024, 1024, 3, padding=1),
        nn.MaxPool2d(3, 3),
    ]
    return Network(features, classifier(1024 * 5 * 5, 4096, 4096, CLASSES))


def googlenet() -> Network:
    def pool() -> nn.Module:
        return nn.MaxPool2d(3, 2, padding=1)

    features = [
        convolution(3, 64, 7, stride=2, padding=3),
        pool(),
        convolution(64, 64, 1),
        convolution(64, 192, 3, padding=1),
        pool(),
        Inception(192, (64, 96, 128, 16, 32, 32)),
        Inception(256, (128, 128, 192, 32, 96, 64)),
        pool(),
        Inception(480, (192, 96, 208, 16, 48, 64)),
        Inception(512, (160, 112, 224, 24, 64, 64)),
        Inception(512, (128, 128, 256, 24, 64, 64)),
        Inception(512, (112, 144, 288, 32, 64, 64)),
        Inception(528, (256, 160, 320, 32, 128, 128)),
        pool(),
        Inception(832, (256, 160, 320, 32, 128, 128)),
        Inception(832, (384, 192, 384, 48, 128, 128)),
        nn.AvgPool2d(7),
    ]
    return Network(features, classifier(1024, CLASSES))


def vgg(extra: int = 0, *, side: int = 224) -> Network:
    """Configuration E, with `extra` more convolutions in each of the five groups."""
    features: list[nn.Module] = []
    inputs = 3
    for depth, width in zip(VGG_GROUPS, VGG_WIDTHS, strict=True):
        for _ in range(depth + extra):
            features.append(convolution(inputs, width, 3, padding=1))
            inputs = width
        features.append(nn.MaxPool2d(2, 2))
    return Network(features, classifier(inputs * (side // 32) ** 2, 4096, 4096, CLASSES))


@dataclass(frozen=True)
class Workload:
    """One column of the paper's figures."""

    title: str
    build: Callable[[], Network]
    batch: int
    side: int = 224
    """Of the square images, in pixels; they have three channels."""
    is_very_deep: bool = False

    def images_shape(self, batch: int | None = None) -> tuple[int, int, int, int]:
        return (batch or self.batch, 3, self.side, self.side)


def _very_deep(convolutions: int) -> Workload:
    extra = (convolutions - sum(VGG_GROUPS)) // len(VGG_GROUPS)
    return Workload(f"VGG-{convolutions} (32)", lambda: vgg(extra), 32, is_very_deep=True)


WORKLOADS = {
    "alexnet": Workload("AlexNet (128)", alexnet, 128),
    "overfeat": Workload("OverFeat (128)", overfeat, 128, side=221),
    "googlenet": Workload("GoogLeNet (128)", googlenet, 128),
    "vgg16-64": Workload("VGG-16 (64)", vgg, 64),
    "vgg16-128": Workload("VGG-16 (128)", vgg, 128),
    "vgg16-256": Workload("VGG-16 (256)", vgg, 256),
    **{f"vgg{n}": _very_deep(n) for n in (116, 216, 316, 416)},
}
