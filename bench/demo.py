"""`make demo`: the same small network trained three times, and the proof that nothing changed.

Stock PyTorch, without vdnn_alloc; vdnn_alloc with policy none, which tells the peak; and vdnn_alloc
with 40 % of that peak. Each is a process of its own (demo_training.py). Fails if the numbers are
not identical, if the budget was passed, or if nothing moved.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

ROOT = Path(__file__).parent.parent
DUMP = ROOT / "demo-run.json"
STEPS = 30
WARM_UP = 3  # steps in which vdnn_alloc learns, left out of the median
BUDGET_PERCENT = 40
COMPARED = ("losses", "gradients", "parameters")


@dataclass(frozen=True)
class Step:
    """What one line of demo_training.py says; bytes are counted since its start, 0 under stock."""

    ms: float
    loss: float
    peak: int = 0  # the most that tensors held at once, wherever they were
    created: int = 0  # the most device memory that existed, by vdnn_alloc's count
    witness: int = 0  # the same as the kernel counts it, on the host backend
    moved_out: int = 0
    moved_in: int = 0


@dataclass(frozen=True)
class Run:
    """One training: what it was told, what it said, and where its tensors are."""

    title: str
    policy: str
    results: Path
    steps: list[Step]
    budget: int | None = None

    @property
    def last(self) -> Step:
        return self.steps[-1]

    @property
    def step_ms(self) -> float:
        return median(step.ms for step in self.steps[WARM_UP:])


class TrainingError(Exception):
    """A training did not end well; what it said is on the screen."""


def train(
    title: str, policy: str, folder: Path, progress: Progress, *, budget: int | None = None
) -> Run:
    """Runs demo_training.py to its end, with a bar that follows it."""
    results = folder / f"{policy}.pt"
    command = [sys.executable, str(ROOT / "bench/demo_training.py"), policy]
    command += ["--steps", str(STEPS), "--results", str(results)]
    command += ["--budget", str(budget), "--dump", str(DUMP)] if budget else []
    bar = progress.add_task(title, total=STEPS, loss="")
    steps = []
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            steps.append(Step(**json.loads(line)))
            progress.update(bar, advance=1, loss=f"loss {steps[-1].loss:.3f}")
    if process.returncode != 0 or len(steps) != STEPS:
        raise TrainingError(f"{title}: status {process.returncode} after {len(steps)} steps")
    return Run(title, policy, results, steps, budget)


def environment() -> dict[str, str]:
    """Ours, but torch loads nothing by itself: the stock run must not have vdnn_alloc in it."""
    inherited = {name: value for name, value in os.environ.items() if name != "VDNN_ALLOC"}
    return inherited | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def train_all(folder: Path, console: Console) -> list[Run]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[loss]}"),
    )
    with Progress(*columns, console=console) as progress:
        stock = train("stock PyTorch", "stock", folder, progress)
        whole = train("vdnn_alloc, policy none", "none", folder, progress)
        budget = whole.last.peak * BUDGET_PERCENT // 100
        title = f"vdnn_alloc, {BUDGET_PERCENT} % of the peak"
        return [stock, whole, train(title, "dyn", folder, progress, budget=budget)]


# --- the verdict ---------------------------------------------------------------------------------


def identical(runs: list[Run]) -> dict[str, bool]:
    """For each thing compared, whether all runs have it bit for bit."""
    import torch

    def same(one: torch.Tensor | dict[str, torch.Tensor], other: object) -> bool:
        if isinstance(one, torch.Tensor):
            return isinstance(other, torch.Tensor) and torch.equal(one, other)
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(same(value, other[name]) for name, value in one.items())
        )

    stock, *others = (torch.load(run.results) for run in runs)
    answer = {name: all(same(stock[name], o[name]) for o in others) for name in COMPARED}
    # Only the last gradients are kept whole; those of every step have left a digest.
    answer["gradients"] &= all(stock["digests"] == other["digests"] for other in others)
    return answer


def faults(run: Run, same: dict[str, bool]) -> list[str]:
    """Each reason why the demo has failed, as a sentence; none if it has not."""
    assert run.budget is not None
    device_bytes = max(run.last.created, run.last.witness)
    found = [f"the {name} are not identical" for name, is_same in same.items() if not is_same]
    if device_bytes > run.budget:
        found.append(f"the budget of {run.budget} bytes was passed: {device_bytes} bytes")
    if not (run.last.moved_out and run.last.moved_in):
        found.append("nothing moved, so nothing was shown")
    return found


def table(runs: list[Run]) -> Table:
    result = Table(title=f"{STEPS} steps of a small VGG on handwritten digits")
    for heading in (
        "training",
        "budget",
        "tensors, peak",
        "device memory, peak",
        "out a step",
        "in a step",
        "step time",
    ):
        result.add_column(heading, justify="left" if heading == "training" else "right")
    for run in runs:
        out, back = (last_moves(run, name) for name in ("moved_out", "moved_in"))
        result.add_row(
            run.title,
            size(run.budget),
            size(run.last.peak),
            size(run.last.created),
            size(out),
            size(back),
            f"{run.step_ms:.0f} ms",
        )
    return result


def last_moves(run: Run, name: str) -> int:
    """Bytes of the last step alone."""
    return int(getattr(run.steps[-1], name) - getattr(run.steps[-2], name))


def size(count: int | None) -> str:
    return f"{count / 2**20:.1f} MiB" if count else "-"


def main() -> int:
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        try:
            runs = train_all(Path(folder), console)
        except TrainingError as error:
            console.print(str(error), style="red")
            return 1
        same = identical(runs)
    console.print(table(runs))
    for name, is_same in same.items():
        console.print(f"{name}: {'the same bits' if is_same else 'DIFFERENT'} in all three")
    console.print(f"identical: {'yes' if all(same.values()) else 'no'}")
    console.print(f"statistics of the last training: {DUMP.relative_to(ROOT)}")
    found = faults(runs[-1], same)
    for sentence in found:
        console.print(f"FAILED: {sentence}", style="red")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
