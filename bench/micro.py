"""What each call of ours costs, and how fast blocks leave and come back.

    python3 -m bench.micro

Prints microseconds of CPU time a call, stock beside ours where stock has the same call, and the
rates of the copies beside that of a plain copy to page-locked memory; writes
bench/results/micro-<backend>-<date>.json. Exit status 1 if a step leaves anything behind. Each case
runs in a process of its own; a time is the smallest of its rounds, a rate the median.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
ROUNDS, CALLS = 7, 1000
MIB = 1 << 20
SIZES = {"host": (512 * MIB, 128 << 10, 4 * MIB), "cuda": (8192 * MIB, 2 * MIB, 64 * MIB)}
"""By backend: the budget, a block that may move, and a block whose copies are timed."""

Figures = dict[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="auto", choices=("auto", "host", "cuda"))
    parser.add_argument("--case", choices=CASES, help="measure this one here, and print JSON")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    backend = args.backend if args.backend != "auto" else _backend()
    if args.case is not None:
        print(json.dumps(CASES[args.case](backend)))
        return 0
    rows = {case: _in_a_process(backend, case) for case in CASES}
    for case, figures in rows.items():
        for name, value in figures.items():
            print(f"{case:10} {name:44} {value:10.2f}")
    path = args.out or RESULTS / f"micro-{backend}-{time.strftime('%Y-%m-%d')}.json"
    path.write_text(json.dumps({"backend": backend, **rows}, indent=1) + "\n")
    left = [value for name, value in rows["growth"].items() if name.startswith("left")]
    return 1 if any(left) else 0


def stock(backend: str) -> Figures:
    """The calls that torch makes without us."""
    return {"a call of an empty module, us": _module_us(backend)}


def calls(backend: str) -> Figures:
    """Where everything fits."""
    _, movable, _ = _install(backend)
    import torch

    device = _device(backend)
    kept = _saved(torch.ones(movable // 4, device=device))
    parameter = torch.nn.Parameter(torch.ones(64, device=device))
    blocks = [torch.ones(movable // 4, device=device) for _ in range(CALLS // 4)]
    figures = {
        **_saving_us("a block that may move", blocks),
        **_saving_us("a tensor in the heap", [torch.ones(8, device=device)] * CALLS),
        **_saving_us("a parameter", [parameter] * CALLS),
        "alloc + free of a block in C, us": _alloc_free_us(movable),
        "alloc + free of 512 bytes in C, us": _alloc_free_us(512),
        "a call of an empty module, us": _module_us(backend),
    }
    del kept
    return figures


def growth(backend: str) -> Figures:
    """24 small layers trained for 50 steps: CPU time, and what is left of each step."""
    _install(backend)
    import torch

    from vdnn_alloc.installation import installation

    torch.manual_seed(0)
    layer = [torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.GELU()]
    model = torch.nn.Sequential(*layer * 24).to(_device(backend))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.ones(256, 64, device=_device(backend))
    times, objects = [], []
    for _ in range(50):
        start = time.process_time()
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append((time.process_time() - start) * 1e3)
        gc.collect()
        objects.append(len(gc.get_objects()))
    return {
        "a step, early (5-14), ms": statistics.median(times[5:15]),
        "a step, late (40-49), ms": statistics.median(times[40:50]),
        "left: Python objects, step 50 less step 10": objects[-1] - objects[9],
        "left: records": len(installation().controller.hooks.records()),
    }


def rates(backend: str) -> Figures:
    """A chain that saves twice its budget: what bounds it is the link."""
    budget, _, block = _install(backend)
    import torch

    import vdnn_alloc

    length = 2 * budget // block
    x = torch.ones(block // 4, device=_device(backend), requires_grad=True)
    out, back = [], []
    for _ in range(6):
        before = vdnn_alloc.stats()
        start = _now(backend)
        y = x
        for _ in range(length):
            y = y.tanh()
        middle, after = _now(backend), vdnn_alloc.stats()
        y.backward(torch.ones_like(y))
        end, last = _now(backend), vdnn_alloc.stats()
        out.append((after.offloaded_bytes - before.offloaded_bytes) / (middle - start) / 1e9)
        back.append((last.prefetched_bytes - after.prefetched_bytes) / (end - middle) / 1e9)
        del y
        x.grad = None
    plain = plain_rate(backend, block)
    return {
        "out, GB/s": statistics.median(out[2:]),
        "back, GB/s": statistics.median(back[2:]),
        "plain copy to page-locked memory, GB/s": plain[0],
        "plain copy from page-locked memory, GB/s": plain[1],
    }


CASES: dict[str, Callable[[str], Figures]] = {
    "stock": stock,
    "calls": calls,
    "growth": growth,
    "rates": rates,
}


def _saving_us(name: str, tensors: list[Any]) -> Figures:
    """pack, unpack, and the death of what pack returned, for each of the tensors."""
    from vdnn_alloc.installation import installation

    hooks = installation().controller.hooks
    pack, unpack = hooks.pack, hooks.unpack
    rounds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        saved = [pack(x) for x in tensors]
        packed = time.process_time()
        for one in saved:
            unpack(one)
        unpacked = time.process_time()
        del saved, one
        rounds.append((packed - start, unpacked - packed, time.process_time() - unpacked))
    scale = 1e6 / len(tensors)
    parts = zip(("pack", "unpack", "drop"), zip(*rounds, strict=True), strict=True)
    return {f"{part}, {name}, us": min(values) * scale for part, values in parts}


def _alloc_free_us(size: int) -> float:
    """Less what ctypes takes for two calls that do nothing."""
    from vdnn_alloc.installation import installation

    core = ctypes.CDLL(str(installation().native.path))
    arguments = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    malloc, free, nothing = core.vdnn_torch_malloc, core.vdnn_torch_free, core.vdnn_is_forked_child
    malloc.argtypes, malloc.restype = arguments, ctypes.c_void_p
    free.argtypes, free.restype = [ctypes.c_void_p, *arguments], None
    nothing.argtypes, nothing.restype = arguments, ctypes.c_void_p

    def pair() -> None:
        free(malloc(size, 0, None), size, 0, None)

    def empty() -> None:
        nothing(size, 0, None)
        nothing(size, 0, None)

    return _least_us(pair) - _least_us(empty)


def _module_us(backend: str) -> float:
    import torch

    modules = torch.nn.Sequential(*(torch.nn.Identity() for _ in range(100)))
    x = torch.ones(1, device=_device(backend))
    return _least_us(lambda: modules(x), CALLS // 10) / 101


def _least_us(function: Callable[[], object], count: int = CALLS) -> float:
    rounds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(count):
            function()
        rounds.append((time.process_time() - start) / count * 1e6)
    return min(rounds)


def plain_rate(backend: str, size: int) -> tuple[float, float]:
    """Of one copy after another between the device and page-locked memory; GB/s out and in."""
    import torch

    theirs = torch.ones(size // 4, device=_device(backend))
    pinned = torch.ones(size // 4, pin_memory=backend == "cuda")
    found = []
    for target, source in ((pinned, theirs), (theirs, pinned)):
        start = _now(backend)
        for _ in range(20):
            target.copy_(source, non_blocking=True)
        found.append(20 * size / (_now(backend) - start) / 1e9)
    return found[0], found[1]


def _now(backend: str) -> float:
    if backend == "cuda":
        import torch

        torch.cuda.synchronize()
    return time.perf_counter()


def _saved(x: Any) -> Any:
    """A graph that keeps x alive, so that an episode is open."""
    return x.clone().requires_grad_().exp().sum()


def _install(backend: str) -> tuple[int, int, int]:
    import torch

    import vdnn_alloc

    torch.set_num_threads(1)
    frame = "64KiB" if backend == "host" else None
    vdnn_alloc.install(SIZES[backend][0], backend=backend, frame=frame)
    return SIZES[backend]


def _device(backend: str) -> str:
    return "cuda" if backend == "cuda" else "cpu"


def _backend() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "host"


def _in_a_process(backend: str, case: str) -> Figures:
    command = [sys.executable, "-m", "bench.micro", "--backend", backend, "--case", case]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


if __name__ == "__main__":
    sys.exit(main())
