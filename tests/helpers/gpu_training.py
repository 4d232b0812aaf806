"""One small convolutional training on a GPU, the same to the bit each time, and what to read of it.

Its feature maps are 48 MiB each, many frames of a GPU; its weights are a hundredth of its peak.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from tests.helpers import fresh

DEPTH, CHANNELS, BATCH, SIDE = 12, 64, 96, 45
AMPLE = 8 << 30
FEATURE_MAP_BYTES = BATCH * CHANNELS * SIDE * SIDE * 4


def settings(budget: int = AMPLE, *, policy: str = "dyn") -> fresh.Settings:
    """The arguments of vdnn_alloc.install on a GPU."""
    return {"backend": "cuda", "budget": budget, "policy": policy, "host_budget": "8GiB"}


@dataclass
class Trained:
    """Losses, and the hashes of all gradients and parameters after each step."""

    losses: list[float] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    # After each step, where vdnn_alloc is installed: some of its counters.
    created: list[int] = field(default_factory=list)
    offloaded: list[int] = field(default_factory=list)
    map_calls: list[int] = field(default_factory=list)


def be_deterministic() -> None:
    """Everything that stock PyTorch needs to repeat itself. Call it before the first product."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(5)


def conv_net() -> nn.Sequential:
    """Convolutions with in-place ReLU."""
    layers: list[nn.Module] = [nn.Conv2d(3, CHANNELS, 3, padding=1)]
    for _ in range(DEPTH):
        layers += [nn.ReLU(inplace=True), nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)]
    return nn.Sequential(*layers, nn.Flatten(2)).cuda()


def images(batch: int = BATCH) -> Tensor:
    """Random images on the GPU."""
    return torch.randn(batch, 3, SIDE, SIDE, device="cuda")


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: int = BATCH) -> float:
    """Forward, backward and update; returns the loss."""
    optimizer.zero_grad()
    loss = functional.mse_loss(model(images(batch)).mean(dim=(1, 2)), torch.zeros(batch).cuda())
    loss.backward()
    optimizer.step()
    return loss.item()


def train(steps: int = 5) -> Trained:
    """The training, in this process."""
    be_deterministic()
    model, trained = conv_net(), Trained()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(steps):
        trained.losses.append(one_step(model, optimizer))
        trained.digests.append(digest(model))
        read_counters(trained)
    return trained


def digest(model: nn.Module) -> str:
    """One hash over every gradient and parameter."""
    hashed = hashlib.sha256()
    for parameter in model.parameters():
        assert parameter.grad is not None
        for tensor in (parameter.grad, parameter):
            hashed.update(tensor.detach().cpu().numpy().tobytes())
    return hashed.hexdigest()


def read_counters(trained: Trained) -> None:
    """Nothing under stock PyTorch."""
    if torch.cuda.memory.get_allocator_backend() == "native":
        return
    import vdnn_alloc

    stats = vdnn_alloc.stats()
    trained.created.append(stats.created_bytes_max)
    trained.offloaded.append(stats.offloaded_bytes)
    trained.map_calls.append(stats.driver_map + stats.driver_create + stats.driver_unmap)


def train_and_peak() -> tuple[Trained, int]:
    """The training, and the most bytes that it had live at once."""
    import vdnn_alloc

    return train(), vdnn_alloc.stats().live_bytes_max
