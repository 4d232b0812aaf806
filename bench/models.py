"""What the benchmarks train: workloads whose batch and width are fixed here.

Weights and the one batch are random and made on the device, where the batch stays: neither loading
nor initialising is measured. fp32 has TF32 off; bf16 is autocast, but for the language models,
whose weights are in bf16 then.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.same_numbers import precision_scope

Scope = Callable[[], AbstractContextManager[object]]
SEED = 20160618
SIDE = 224
CLASSES = 1000
GPT2_WORDS = 50257


@dataclass(frozen=True)
class Task:
    """A model, its optimizer, and the loss of one forward over the one batch."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[], Tensor]


@dataclass(frozen=True)
class Workload:
    """What one name of --workload stands for."""

    title: str
    precisions: tuple[str, ...]
    build: Callable[[str], Task]
    """For one precision."""
    block: Callable[[nn.Module], type[nn.Module]]
    """The class of its checkpointable blocks, which the model has after this call."""
    is_transformers: bool = False


class Training:
    """The loop that everybody writes."""

    def __init__(self, build: Callable[[str], Task], precision: str, device: str = "cuda") -> None:
        torch.manual_seed(SEED)
        with torch.device(device):
            task = build(precision)
        self.model, self.loss, self.optimizer = task.model, task.loss, task.optimizer

    def step(self, around: Scope = nullcontext, around_forward: Scope = nullcontext) -> Tensor:
        """Forward and backward, `around` them what was asked for, and update; returns the loss."""
        self.optimizer.zero_grad()
        with around():
            with around_forward():
                loss = self.loss()
            loss.backward()
        self.optimizer.step()
        return loss.detach()


# --- images --------------------------------------------------------------------------------------


def classifier(network: str, batch: int, precision: str, *, channels_last: bool = False) -> Task:
    """A torchvision network. VGG's adaptive pooling does nothing at 224 x 224, and its backward
    refuses deterministic mode, so Identity stands in for it, exactly."""
    import torchvision

    model: nn.Module = getattr(torchvision.models, network)()
    if network.startswith("vgg"):
        model.avgpool = nn.Identity()
    images = torch.randn(batch, 3, SIDE, SIDE)
    if channels_last:
        model.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    return _image_task(model, images, torch.randint(CLASSES, (batch,)), precision)


def _image_task(model: nn.Module, images: Tensor, labels: Tensor, precision: str) -> Task:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def loss() -> Tensor:
        with precision_scope(precision):
            return functional.cross_entropy(model(images), labels)

    return Task(model, optimizer, loss)


class Stage(nn.Sequential):
    """The layers of a VGG up to a pooling: what one would checkpoint of it."""


def group_stages(model: Any) -> type[nn.Module]:
    """Puts a VGG's layers into stages; it computes what it did."""
    stages: list[list[nn.Module]] = [[]]
    for layer in model.features:
        stages[-1].append(layer)
        if isinstance(layer, nn.MaxPool2d):
            stages.append([])
    model.features = nn.Sequential(*(Stage(*layers) for layers in stages if layers))
    return Stage


class DoubleConvolution(nn.Sequential):
    """Twice a convolution, BatchNorm and ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            *(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)),
            nn.ReLU(inplace=True),
            *(nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    """As everybody writes it: one forward that holds every skip connection until it is joined."""

    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.down = nn.ModuleList(map(DoubleConvolution, [3, *widths], widths))
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in reversed(widths[:-1])
        )
        self.join = nn.ModuleList(DoubleConvolution(2 * w, w) for w in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for block in self.down[:-1]:
            x = block(x)
            skips.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.down[-1](x)
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([skips.pop(), up(x)], dim=1))
        output: Tensor = self.head(x)
        return output


def unet(width: int, depth: int, batch: int, side: int, precision: str) -> Task:
    """Segments squares into two classes."""
    images = torch.randn(batch, 3, side, side)
    labels = torch.randint(2, (batch, side, side))
    return _image_task(UNet(width, depth, 2), images, labels, precision)


# --- language ------------------------------------------------------------------------------------


def language_task(model: nn.Module, text: Callable[[], Tensor], precision: str) -> Task:
    """The model is to foretell the words of `text`, which is asked for anew in each step."""
    if precision == "bf16":
        model.to(torch.bfloat16)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def loss() -> Tensor:
        words = text()
        with precision_scope("fp32" if precision == "bf16" else precision):
            found: Tensor = model(input_ids=words, labels=words).loss
            return found

    return Task(model, optimizer, loss)


def gpt2(
    positions: int, *, layers: int = 24, heads: int = 16, width: int = 1024, words: int = GPT2_WORDS
) -> nn.Module:
    """GPT-2, with its dropout; in medium's shape if no other is given."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=layers,
        n_head=heads,
        n_embd=width,
        n_positions=positions,
        vocab_size=words,
        use_cache=False,
    )
    model: nn.Module = GPT2LMHeadModel(config)
    return model


def gpt2_medium(precision: str) -> Task:
    """On 8 sequences of 1024 tokens."""
    text = torch.randint(GPT2_WORDS, (8, 1024))
    return language_task(gpt2(1024), lambda: text, precision)


def llama_1b(precision: str) -> Task:
    """Llama 3.2 1B's shape with a vocabulary of 32000, on 8 sequences of 2048 tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=32000,
        use_cache=False,
    )
    text = torch.randint(config.vocab_size, (8, 2048))
    return language_task(LlamaForCausalLM(config), lambda: text, precision)


def _gpt2_block(model: nn.Module) -> type[nn.Module]:
    del model
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block

    return GPT2Block


def _llama_block(model: nn.Module) -> type[nn.Module]:
    del model
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    return LlamaDecoderLayer


# --- the table -----------------------------------------------------------------------------------


def _bottleneck(model: nn.Module) -> type[nn.Module]:
    del model
    from torchvision.models.resnet import Bottleneck

    block: type[nn.Module] = Bottleneck
    return block


def _encoder_block(model: nn.Module) -> type[nn.Module]:
    del model
    from torchvision.models.vision_transformer import EncoderBlock

    block: type[nn.Module] = EncoderBlock
    return block


WORKLOADS = {
    "vgg19": Workload(
        "VGG-19, 256 images",
        ("fp32", "tf32", "bf16"),
        lambda precision: classifier("vgg19", 256, precision),
        group_stages,
    ),
    "gpt": Workload(
        "GPT-2 medium, 8 x 1024 tokens, AdamW",
        ("bf16", "tf32", "fp32"),
        gpt2_medium,
        _gpt2_block,
        is_transformers=True,
    ),
    "resnet50": Workload(
        "ResNet-50, 256 images, channels last",
        ("tf32", "bf16"),
        lambda precision: classifier("resnet50", 256, precision, channels_last=True),
        _bottleneck,
    ),
    "unet": Workload(
        "U-Net, 64 to 1024 wide, 24 images of 512 x 512",
        ("tf32", "bf16"),
        lambda precision: unet(64, 4, 24, 512, precision),
        lambda _: DoubleConvolution,
    ),
    "vit": Workload(
        "ViT-L/16, 128 images",
        ("bf16", "tf32"),
        lambda precision: classifier("vit_l_16", 128, precision),
        _encoder_block,
    ),
    "llama": Workload(
        "Llama 1B's shape, 8 x 2048 tokens, AdamW",
        ("bf16",),
        llama_1b,
        _llama_block,
        is_transformers=True,
    ),
}
TINY = {
    "tiny": Workload(
        "U-Net, 8 to 32 wide, 4 images of 64 x 64",
        ("fp32",),
        lambda precision: unet(8, 2, 4, 64, precision),
        lambda _: DoubleConvolution,
    )
}
"""For tests, on the simulated device."""
