"""The model matrix on a GPU: the host tests' models, with feature maps that are frames and more.

Each peaks at one to three GiB in fp32, nearly all of it feature maps of 4 to 60 MiB. The nets are
deep and their maps alike, so that the largest convolution workspace, a few maps, is served beside
them under 60 % of the peak: a refused one would mean other engines, and so other bits.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from torch import Tensor, nn

from bench.device_memory import PeakUse, used_bytes
from tests.helpers import gpu_training
from tests.helpers.compare import Outcome, arrays
from tests.helpers.models import (
    Transformer,
    UNet,
    Workload,
    classify,
    classify_both_halves,
    images,
    match,
    pictures_and_masks,
    resnet,
    sequences,
    vgg,
)
from tests.helpers.run_training import OPTIMIZERS, make_optimizer

STEPS = 5
PRECISIONS = ("fp32", "bf16")


class RecurrentLayers(nn.Module):
    """LSTM layers that are modules of their own, for cuDNN saves one buffer for all of a module."""

    def __init__(self, hidden: int = 256, depth: int = 12) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.LSTM(hidden, hidden) for _ in range(depth))
        self.head = nn.Linear(hidden, 10)

    def forward(self, sequence: Tensor) -> Tensor:
        for layer in self.layers:
            sequence, _ = layer(sequence)
        return torch.as_tensor(self.head(sequence[-1]))


WORKLOADS: dict[str, Workload] = {
    "vgg": Workload(partial(vgg, depths=(24, 24), channels=32), images(32, side=96), classify),
    "resnet": Workload(partial(resnet, depths=(10, 8), channels=32), images(48, side=64), classify),
    "unet": Workload(partial(UNet, width=32, depth=12), pictures_and_masks(24, side=96), match),
    "lstm": Workload(RecurrentLayers, sequences(64, 256, 256), classify),
    "transformer": Workload(
        partial(Transformer, width=256, depth=8), sequences(256, 48, 256), classify
    ),
    "twice": Workload(
        partial(vgg, depths=(12, 12), channels=32), images(64, side=96), classify_both_halves
    ),
}


@dataclass(frozen=True)
class Case:
    """One training of the matrix."""

    model: str
    precision: str
    optimizer: str

    def __str__(self) -> str:
        return f"{self.model}-{self.precision}-{self.optimizer}"


CASES = [Case(*parts) for parts in product(WORKLOADS, PRECISIONS, OPTIMIZERS)]


def train(case: Case) -> Outcome:
    """Five steps; what they took from the device is free again afterwards."""
    torch.manual_seed(1234)
    workload, outcome = WORKLOADS[case.model], Outcome()
    model = workload.build().cuda()
    optimizer = make_optimizer(case.optimizer, model)
    for step in range(STEPS):
        inputs, targets = workload.batch(torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=case.precision == "bf16"):
            loss = workload.loss(model, (inputs.cuda(), targets.cuda()))
        loss.backward()
        outcome.add_step(model, loss.item())
        optimizer.step()
        del loss
    outcome.parameters = arrays(model.state_dict())
    return outcome


def give_everything_back() -> None:
    """To the device, whoever the allocator is."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


@dataclass(frozen=True)
class Stock:
    """All trainings by PyTorch alone, and what the device saw."""

    outcomes: dict[Case, Outcome]
    peaks: dict[Case, int]
    outside_allocator: int  # contexts, modules, libraries, at the end


def train_all_by_stock() -> Stock:
    """In this process, one after the other."""
    gpu_training.be_deterministic()
    outcomes, peaks = {}, {}
    for case in CASES:
        give_everything_back()
        torch.cuda.reset_peak_memory_stats()
        outcomes[case] = train(case)
        peaks[case] = torch.cuda.max_memory_allocated()
    return Stock(outcomes, peaks, used_bytes() - torch.cuda.memory_reserved())


@dataclass(frozen=True)
class Limited:
    """One training under vdnn_alloc."""

    outcome: Outcome
    budget_bytes: int
    used_bytes_max: int  # by the driver's own count
    created_bytes_max: int
    offloaded_bytes: int
    workspace_refusals: int


def train_within(model: str, budgets: dict[str, int]) -> dict[Case, Limited]:
    """All trainings of a model, each precision within its own budget, the largest of which
    vdnn_alloc was installed with."""
    gpu_training.be_deterministic()
    per_byte = torch.cuda.get_per_process_memory_fraction() / max(budgets.values())
    trained = {}
    for case in (case for case in CASES if case.model == model):
        give_everything_back()
        budget = budgets[case.precision]
        torch.cuda.set_per_process_memory_fraction(budget * per_byte)
        trained[case] = measure(case, budget)
    return trained


def measure(case: Case, budget: int) -> Limited:
    """One training, and what the counters and the driver say of it."""
    import vdnn_alloc

    vdnn_alloc.reset_peaks()
    before = vdnn_alloc.stats()
    with PeakUse() as use:
        outcome = train(case)
    after = vdnn_alloc.stats()
    return Limited(
        outcome=outcome,
        budget_bytes=budget,
        used_bytes_max=use.peak_bytes,
        created_bytes_max=after.created_bytes_max,
        offloaded_bytes=after.offloaded_bytes - before.offloaded_bytes,
        workspace_refusals=after.workspace_refusals - before.workspace_refusals,
    )
