"""One cell, in a process of its own: trains it and prints one JSON object.

First a few deterministic steps whose numbers are kept, then steps as users run them, timed, then
one in which memory is read after every layer. The loop makes its images on the device and keeps no
reference to them, so that they can move like every other feature map.

The oracle is stock PyTorch without any limit. Without workspaces, and on the host backend, where
PyTorch counts nothing, it is policy none with a budget that holds everything.

Engines are the same on both sides of a comparison: with (p), stock has as much room for workspaces
as the budget leaves while it chooses; with (m), there is no workspace, and cuDNN takes the first
engine of its list instead of the fastest.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench import processes
from bench.paper import accounting
from bench.paper.cells import Cell, Outcome
from bench.paper.layers import trace
from bench.paper.memory_trace import MemoryTrace, counters, device_bytes
from bench.paper.networks import CLASSES, WORKLOADS, Network, Workload, vgg
from bench.paper.summed_latency import summed_step_ms
from bench.same_numbers import EngineRoom, be_deterministic, digest, precision_scope
from vdnn_alloc.host_memory import available_bytes, default_host_budget
from vdnn_alloc.units import parse_bytes

SEED = 20160618
LEARNING_RATE = 1e-3
EQUALITY_STEPS = 3
WARM_UP = 4  # steps in which vdnn_alloc learns and cuDNN chooses
ENGINE_ROOM = 0.8  # share of the budget that is left to a convolution for itself
AMPLE = 8  # an unlimited budget on the host backend, in bytes of all feature maps
_SHORTAGE = re.compile(r"Tried to allocate ([\d.]+ \w+)\..* only ([\d.]+ \w+) could be had")
PER_STEP = ("offloaded_bytes", "prefetched_bytes", "late_prefetches", "stall_ns")


def workload_of(cell: Cell) -> Workload:
    """The paper's, or VGG on smaller images."""
    known = WORKLOADS[cell.network]
    if not cell.side:
        return known
    return Workload(known.title, lambda: vgg(side=cell.side), known.batch, cell.side)


class Training:
    """The network and its loop."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.device = "cuda" if cell.backend == "cuda" else "cpu"
        workload = workload_of(cell)
        self.shape = workload.images_shape(cell.batch)
        torch.manual_seed(SEED)
        with torch.device(self.device):
            self.network: Network = workload.build()
            self.network.initialise()
            self.labels = torch.randint(CLASSES, self.shape[:1])
            self.generator = torch.Generator(self.device)
        self.update = _UPDATES[cell.update](self.network)

    def step(self, number: int) -> Tensor:
        self.generator.manual_seed(SEED + number)
        with precision_scope(self.cell.precision):
            scores = self.network(
                torch.randn(self.shape, generator=self.generator, device=self.device)
            )
            loss = functional.cross_entropy(scores, self.labels)
        del scores
        torch.autograd.backward(loss)
        self.update()
        return loss.detach()

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def timed_step(self, number: int) -> float:
        """In milliseconds."""
        self.synchronize()
        begin = time.perf_counter()
        self.step(number)
        self.synchronize()
        return (time.perf_counter() - begin) * 1e3


class _UpdateAfter:
    """SGD as every loop has it."""

    def __init__(self, network: nn.Module) -> None:
        self._optimizer = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE)

    def __call__(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad()


class _UpdateInside:
    """SGD in backward: each gradient is used and dropped as soon as it is there."""

    def __init__(self, network: nn.Module) -> None:
        for parameter in network.parameters():
            hooked: Any = parameter  # torch gives this method no types
            hooked.register_post_accumulate_grad_hook(self._apply)

    @torch.no_grad()
    def _apply(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.add_(parameter.grad, alpha=-LEARNING_RATE)
        parameter.grad = None

    def __call__(self) -> None:
        """Nothing is left to do."""


_UPDATES: dict[str, Callable[[nn.Module], Callable[[], None]]] = {
    "after": _UpdateAfter,
    "inside": _UpdateInside,
}


def missing_on_the_host(cell: Cell) -> int:
    """Host bytes that the policy must have for its copies, and that are not there; 0: it has."""
    traced = trace(workload_of(cell), cell.batch or None)
    everything = accounting.offloaded_bytes(traced, "all") + accounting.index_bytes(traced)
    need = {
        "none": 0,
        "all": everything,
        "conv": accounting.offloaded_bytes(traced, "conv"),
        "dyn": max(0, everything - cell.budget_bytes),
    }[cell.moves]
    return max(0, need - default_host_budget(available_bytes()))


def install(cell: Cell) -> None:
    """Nothing for stock. Without workspaces by the setting of that name, which must exist."""
    if cell.backend == "cuda" and cell.policy == "oracle(p)":
        return
    import vdnn_alloc

    if cell.backend == "host":
        torch.set_num_threads(1)  # threads of one operator that wait for a core spin
        maps = sum(trace(workload_of(cell), cell.batch or None).map_bytes)
        budget = AMPLE * maps + parse_bytes("1GiB", "") if cell.is_oracle else cell.budget_bytes
        vdnn_alloc.install(budget, policy=cell.moves, backend="host")
        return
    if cell.without_workspace:
        os.environ["VDNN_ALLOC"] = "workspace=none"
    budget_or_all = None if cell.is_oracle else cell.budget_bytes
    vdnn_alloc.install(budget_or_all, policy=cell.moves, backend="cuda")


def equality(cell: Cell) -> Outcome:
    """Losses and the parameters' digest of a few deterministic steps."""
    be_deterministic()
    torch.backends.cudnn.benchmark = cell.without_workspace
    torch.backends.cudnn.benchmark_limit = 1  # the first engine of the list, whatever its speed
    training = Training(cell)
    is_stock = cell.backend == "cuda" and cell.policy == "oracle(p)"
    room = int(cell.budget_bytes * ENGINE_ROOM)
    chooser = EngineRoom(training.network, room) if is_stock else None
    losses = []
    for number in range(EQUALITY_STEPS):
        losses.append(float(training.step(number)).hex())
        if chooser is not None:
            chooser.close()
    torch.use_deterministic_algorithms(False)
    return {"losses": losses, "parameters": digest(training.network, gradients=False)}


def timing(cell: Cell, steps: int) -> Outcome:
    """Times, counters a step, peaks, and memory after every layer of one more step."""
    torch.backends.cudnn.benchmark = cell.backend == "cuda"
    torch.backends.cudnn.benchmark_limit = 10
    training = Training(cell)
    for number in range(WARM_UP):
        training.timed_step(number)
    before = counters()
    step_ms = [training.timed_step(WARM_UP + number) for number in range(steps)]
    after = counters()
    with MemoryTrace(training.network) as memory:
        training.timed_step(WARM_UP + steps)
    return {
        "step_ms": step_ms,
        "per_step": {key: (after[key] - before[key]) / steps for key in PER_STEP if key in after},
        **device_bytes(after),
        "workspace_refusals": after.get("workspace_refusals", 0),
        "memory": memory.rows,
    }


def does_not_fit(where: str, missing_bytes: int, text: str) -> Outcome:
    return {"fits": False, "where": where, "missing_bytes": missing_bytes, "error": text}


def missing_bytes(text: str) -> int:
    """Of the request that an out-of-memory error speaks of: asked less what could be had."""
    match = _SHORTAGE.search(text)
    if match is None:
        return 0
    asked, left = (parse_bytes(quantity, "error") for quantity in match.groups())
    return asked - left


def run(cell: Cell, steps: int) -> Outcome:
    """The whole cell."""
    if lacking := missing_on_the_host(cell):
        text = f"host memory: {lacking} bytes short of what the policy moves; a smaller batch helps"
        return does_not_fit("host", lacking, text)
    install(cell)
    try:
        outcome = {"equality": equality(cell), **timing(cell, steps)}
    except torch.OutOfMemoryError as error:
        if not cell.is_oracle:
            return does_not_fit("device", missing_bytes(str(error)), str(error))
        return _summed(cell)
    return {"fits": True, "oracle": "measured" if cell.is_oracle else None, **outcome}


def _summed(cell: Cell) -> Outcome:
    """The paper's oracle where the whole network does not fit the GPU: no numbers to compare."""
    torch.cuda.empty_cache()
    milliseconds = summed_step_ms(workload_of(cell), cell.batch or None, cell.precision)
    return {"fits": True, "oracle": "summed latency", "step_ms": [milliseconds], "memory": []}


def facts(cell: Cell) -> dict[str, Any]:
    if cell.backend == "cuda":
        return processes.facts()
    return {"device": f"host backend, {platform.machine()}", "torch": torch.__version__}


def main() -> None:
    """Trains and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("cell", type=json.loads, help="a Cell as JSON")
    parser.add_argument("--steps", type=int, default=6, help="timed, after the warm-up")
    args = parser.parse_args()
    cell = Cell(**args.cell)
    outcome = run(cell, args.steps)
    outcome.update(machine=facts(cell), date=time.strftime("%Y-%m-%d"), steps=args.steps)
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
