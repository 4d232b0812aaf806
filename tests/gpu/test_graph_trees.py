"""torch.compile(mode="reduce-overhead"): torch's graph trees warm graphs up in a pool of ours,
record them, replay them and rewind the pool, with stock's bits, and training that moves feature
maps goes on beside them."""

from __future__ import annotations

import gc
import hashlib
import os
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

from tests.helpers import fresh, gpu_training
from tests.helpers.gpu_training import BATCH

if TYPE_CHECKING:
    from collections.abc import Callable

BUDGET = 4 << 30
PERCENT = 60
GRAPH_BYTES = 160 << 20  # of the small graphs: cuBLAS's workspaces, in the pool and outside of it
WIDTH = 256
COMPILE_S = 400  # what one process with several compilations may take


@dataclass
class Trees:
    """What torch's graph trees did."""

    graphs: int  # that were recorded
    rewound: int  # times that the pool was set back to an earlier state
    skipped: int  # functions for which inductor made no graph


@dataclass
class Seen:
    """What a program computed, and how."""

    losses: list[float] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    trees: Trees | None = None


def prepare(folder: str) -> None:
    """Stock PyTorch repeats itself, and no kernel is chosen by its time."""
    from torch._inductor import config

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder  # compiled once for both processes
    config.deterministic = True
    config.triton.autotune_pointwise = False
    gpu_training.be_deterministic()


def read_trees() -> Trees:
    from torch._dynamo.utils import counters
    from torch._inductor.cudagraph_trees import get_manager

    manager = get_manager(torch.cuda.current_device(), create_if_none_exists=False)
    assert manager is not None, "no graph tree was made"
    graphs = sum(1 + root.num_descendants() for root in manager.get_roots())
    rewound = manager.debug_checkpointing_counter
    return Trees(graphs, rewound, counters["inductor"]["cudagraph_skips"])


def rows(count: int, step: int, width: int = WIDTH) -> Tensor:
    """(count, width), drawn on the CPU from the number of the step."""
    return torch.randn(count, width, generator=torch.Generator().manual_seed(step)).cuda()


def digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.detach().cpu().numpy().tobytes()).hexdigest()


def run(function: Callable[..., object], *args: object, settings: fresh.Settings) -> fresh.Ended:
    """Under stock PyTorch and with vdnn_alloc: the same. Returns the latter."""
    stock = fresh.call(function, *args, timeout_s=COMPILE_S)
    assert not stock.has_vdnn_alloc
    ours = fresh.call(function, *args, install=settings, timeout_s=COMPILE_S)
    assert ours.result == stock.result
    assert ours.result.trees.skipped == 0
    return ours


# --- training and inference in turns --------------------------------------------------------------


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.gelu(self.linear(self.norm(x)))


class Net(nn.Module):
    """Blocks, in one compiled graph or, with breaks, in three that follow each other."""

    def __init__(self, *, has_breaks: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.has_breaks = has_breaks

    def forward(self, x: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            if self.has_breaks and number > 0:
                torch._dynamo.graph_break()
            x = block(x)
        return x


# Rows of a batch, how many steps, and whether they train. The first steps warm up and record, the
# others replay; a size that comes back replays at once.
TURNS = (
    (64, 4, True),
    (64, 3, False),
    (64, 2, True),
    (48, 4, True),
    (64, 2, True),
    (48, 3, False),
    (80, 4, True),
    (64, 1, False),
    (48, 1, True),
)


def train_and_infer_in_turns(folder: str, has_breaks: bool) -> Seen:
    prepare(folder)
    model, seen = Net(has_breaks=has_breaks).cuda(), Seen()
    call = torch.compile(model, mode="reduce-overhead")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step = 0
    for count, times, learns in TURNS:
        for _ in range(times):
            step += 1
            optimizer.zero_grad()
            with torch.set_grad_enabled(learns):
                loss = call(rows(count, step)).square().mean()
            if learns:
                loss.backward()
                optimizer.step()
                seen.digests.append(gpu_training.digest(model))
            seen.losses.append(loss.item())
    seen.trees = read_trees()
    return seen


@pytest.mark.parametrize("has_breaks", [False, True], ids=["one_graph", "graph_breaks"])
def test_training_and_inference_of_several_sizes_in_turns(tmp_path: Path, has_breaks: bool) -> None:
    settings = gpu_training.settings(BUDGET)
    ended = run(train_and_infer_in_turns, str(tmp_path), has_breaks, settings=settings)
    trees = ended.result.trees
    # Of each size a forward, a backward and, of two, an inference.
    assert trees.graphs >= 8
    assert trees.rewound > 0
    assert ended.stats is not None
    assert ended.stats["created_bytes_max"] <= BUDGET


# --- one graph behind another ---------------------------------------------------------------------


def record_behind_what_was_replayed(folder: str) -> Seen:
    """Three functions: the second and the third take turns behind the first, whose result lives on
    while they are recorded."""
    prepare(folder)
    seen, linears = Seen(), [nn.Linear(WIDTH, WIDTH).cuda() for _ in range(3)]
    activations = (nn.GELU(), nn.Tanh(), nn.SiLU())  # alike, they would share what is compiled
    parts = (nn.Sequential(*both) for both in zip(linears, activations, strict=True))
    first, second, third = (torch.compile(part, mode="reduce-overhead") for part in parts)
    behind = [[second], [second], [second], [third], [third], [second, third], [third, second]] * 2
    with torch.no_grad():
        for step, functions in enumerate(behind):
            torch.compiler.cudagraph_mark_step_begin()
            held = [first(rows(64, step))]
            for function in functions:
                held.append(function(held[-1]))
            seen.digests += [digest(one) for one in held]
    seen.trees = read_trees()
    return seen


def test_a_graph_is_recorded_behind_one_that_was_replayed(tmp_path: Path) -> None:
    settings = gpu_training.settings(BUDGET)
    ended = run(record_behind_what_was_replayed, str(tmp_path), settings=settings)
    assert ended.result.trees.graphs >= 4
    assert ended.result.trees.rewound >= 2


# --- beside training under pressure ---------------------------------------------------------------


@cache
def tight_budget() -> int:
    """A share of the peak of the part that is not compiled, and the graphs' memory."""
    ended = fresh.call(
        gpu_training.train_and_peak, install=gpu_training.settings(policy="none")
    ).result
    assert isinstance(ended, tuple)
    return int(ended[1]) * PERCENT // 100 + GRAPH_BYTES


def train_a_compiled_head(folder: str) -> Seen:
    """On convolutions that run eagerly, and whose feature maps must leave."""
    prepare(folder)
    body = gpu_training.conv_net()
    head = nn.Sequential(nn.Linear(gpu_training.CHANNELS, WIDTH), nn.GELU(), nn.Linear(WIDTH, 10))
    model, seen = nn.ModuleList([body, head.cuda()]), Seen()
    call = torch.compile(head, mode="reduce-overhead")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for count in [BATCH] * 4 + [BATCH // 2] * 3 + [BATCH] * 2:
        optimizer.zero_grad()
        loss = call(body(gpu_training.images(count)).mean(dim=2)).square().mean()
        loss.backward()
        optimizer.step()
        seen.losses.append(loss.item())
        seen.digests.append(gpu_training.digest(model))
    seen.trees = read_trees()
    return seen


def test_feature_maps_move_beside_a_compiled_part(tmp_path: Path) -> None:
    settings = gpu_training.settings(tight_budget())
    ended = run(train_a_compiled_head, str(tmp_path), settings=settings)
    assert ended.result.trees.rewound > 0
    assert ended.stats is not None
    assert ended.stats["offloaded_bytes"] > 0
    assert ended.stats["workspace_refusals"] == 0
    assert ended.stats["created_bytes_max"] <= tight_budget()


# --- its memory -----------------------------------------------------------------------------------


def blocks_in_pools() -> int:
    return sum(s["segment_pool_id"] != (0, 0) for s in torch.cuda.memory_snapshot())


def compile_and_forget(folder: str) -> dict[str, int]:
    """Bytes that exist with the graphs, and without; blocks of pools in the snapshot."""
    import vdnn_alloc

    prepare(folder)
    linear = nn.Linear(WIDTH, WIDTH).cuda()
    call = torch.compile(linear, mode="reduce-overhead")
    with torch.no_grad():
        for step in range(3):
            held = call(rows(8192, step))  # 8 MiB
            if step == 1:  # recorded, so its result is a block
                seen = {"blocks": blocks_in_pools()}
    seen["with"] = vdnn_alloc.stats().owned_bytes
    del call, held
    torch.compiler.reset()
    gc.collect()
    seen["without"] = vdnn_alloc.stats().owned_bytes
    seen["blocks_left"] = blocks_in_pools()
    return seen


def test_the_memory_of_graph_trees_comes_back_when_they_are_reset(tmp_path: Path) -> None:
    settings = gpu_training.settings(BUDGET)
    seen = fresh.call(
        compile_and_forget, str(tmp_path), install=settings, timeout_s=COMPILE_S
    ).result
    assert seen["blocks"] == 1
    assert seen["blocks_left"] == 0
    assert seen["with"] - seen["without"] >= 2 * 8192 * WIDTH * 4  # an input and a result
