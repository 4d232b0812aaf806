"""`make demo`: the same small network trained three times, and the proof that nothing changed.

Stock PyTorch, without vdnn_alloc; vdnn_alloc with policy none, which tells the peak; and vdnn_alloc
with 40 % of that peak. Each is a process of its own (demo_training.py). Fails if the numbers are
not identical, if the budget was passed, or if nothing moved. The sizes are chosen so that no
workspace of a convolution is refused, and all three run the same engines.
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
SAME_ENGINES = ", so all trainings ran the same convolution engines"
COMPARED = ("losses", "gradients", "parameters")


@dataclass(frozen=True)
class Step:
    """What one line of demo_training.py says; bytes are counted since its start, 0 under stock."""

    ms: float
    loss: float
    peak: int = 0  # the most that tensors held at once, wherever they were
    device: int = 0  # the most device memory that existed, by vdnn_alloc's count
    witness: int = 0  # the same by the kernel's count; 0 on a GPU
    moved_out: int = 0
    moved_in: int = 0
    refused: int = 0  # workspaces of convolutions: each may mean another engine, and other bits


@dataclass(frozen=True)
class Run:
    """One training: what it was told, what it said, and where its tensors are."""

    title: str
    steps: list[Step]
    results: Path
    budget: int | None = None

    @property
    def last(self) -> Step:
        return self.steps[-1]

    @property
    def step_ms(self) -> float:
        return median(step.ms for step in self.steps[WARM_UP:])


class TrainingError(Exception):
    """A training did not end well; what it said is on the screen."""


class Trainer:
    """Runs demo_training.py, one training after the other, each with a bar that follows it."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        self._folder = folder
        self._progress = progress

    def train(self, title: str, policy: str, *, budget: int | None = None) -> Run:
        results, said = self._folder / f"{policy}.pt", self._folder / f"{policy}.txt"
        command = [sys.executable, str(ROOT / "bench/demo_training.py"), policy]
        command += ["--steps", str(STEPS), "--results", str(results)]
        command += ["--budget", str(budget), "--dump", str(DUMP)] if budget else []
        try:
            return Run(title, self._follow(title, command, said), results, budget)
        finally:
            words = said.read_text().rstrip()
            if words:
                self._progress.console.print(words, style="dim", highlight=False, soft_wrap=True)

    def _follow(self, title: str, command: list[str], said: Path) -> list[Step]:
        """The steps that the command prints. What else it says goes to a file, or it would run
        through the bars."""
        bar = self._progress.add_task(title, total=STEPS, loss="")
        steps = []
        with (
            said.open("w") as errors,
            subprocess.Popen(
                command, env=environment(), stdout=subprocess.PIPE, stderr=errors, text=True
            ) as process,
        ):
            for line in process.stdout or ():
                steps.append(Step(**json.loads(line)))
                self._progress.update(bar, advance=1, loss=f"loss {steps[-1].loss:.3f}")
        if process.returncode != 0 or len(steps) != STEPS:
            raise TrainingError(f"{title}: status {process.returncode} after {len(steps)} steps")
        return steps


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
        trainer = Trainer(folder, progress)
        stock = trainer.train("stock PyTorch", "stock")
        whole = trainer.train("policy none", "none")
        budget = whole.last.peak * BUDGET_PERCENT // 100
        return [stock, whole, trainer.train(f"{BUDGET_PERCENT} % budget", "dyn", budget=budget)]


# --- the verdict ---------------------------------------------------------------------------------


def identical(runs: list[Run]) -> dict[str, bool]:
    """For each thing compared, whether all runs have it bit for bit."""
    import torch  # only now: the bars appear seconds earlier

    def same(one: object, other: object) -> bool:
        if isinstance(one, torch.Tensor):
            return isinstance(other, torch.Tensor) and torch.equal(one, other)
        assert isinstance(one, dict)
        assert isinstance(other, dict)
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)

    stock, *others = (torch.load(run.results) for run in runs)
    answer = {name: all(same(stock[name], o[name]) for o in others) for name in COMPARED}
    # Only the last gradients are kept whole; those of every step have left a digest.
    answer["gradients"] &= all(stock["digests"] == other["digests"] for other in others)
    return answer


def faults(run: Run, same: dict[str, bool]) -> list[str]:
    """Each reason why the demo has failed, as a sentence; none if it has not."""
    assert run.budget is not None
    used = max(run.last.device, run.last.witness)
    found = [f"the {name} are not identical" for name, is_same in same.items() if not is_same]
    if used > run.budget:
        found.append(f"the budget was passed: {used} bytes of {run.budget}")
    if not (run.last.moved_out and run.last.moved_in):
        found.append("nothing moved, so nothing was shown")
    if run.last.refused and not all(same.values()):
        found.append(
            f"{run.last.refused} workspaces were refused, so convolutions ran other engines than "
            f"under stock, and bits may differ for that: see the layers in {DUMP.name}"
        )
    return found


def table(runs: list[Run]) -> Table:
    result = Table(title=f"{STEPS} steps of a small VGG on handwritten digits, memory in MiB")
    result.add_column("training", no_wrap=True)
    for heading in ("budget", "peak", "on device", "out/step", "in/step", "step time"):
        result.add_column(heading, justify="right")
    for run in runs:
        before, last = run.steps[-2:]
        moved = (last.moved_out - before.moved_out, last.moved_in - before.moved_in)
        sizes = (run.budget, last.peak, last.device, *moved)
        result.add_row(run.title, *map(mebibytes, sizes), f"{run.step_ms:.0f} ms")
    return result


def mebibytes(count: int | None) -> str:
    return f"{count / 2**20:.1f}" if count else "-"


def report(runs: list[Run], same: dict[str, bool], console: Console) -> None:
    console.print(table(runs))
    for name, is_same in same.items():
        console.print(f"{name} identical: {'yes' if is_same else 'no'}")
    last = runs[-1].last
    if last.witness:
        console.print(f"device memory by the kernel's count: {mebibytes(last.witness)} MiB")
    console.print(f"workspaces refused: {last.refused}{'' if last.refused else SAME_ENGINES}")
    console.print(f"identical: {'yes' if all(same.values()) else 'no'}")
    console.print(f"all figures of the last training: {DUMP.name}")


def main() -> int:
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        try:
            runs = train_all(Path(folder), console)
        except TrainingError as error:
            console.print(str(error), style="red")
            return 1
        same = identical(runs)
    report(runs, same, console)
    found = faults(runs[-1], same)
    for sentence in found:
        console.print(f"FAILED: {sentence}", style="red")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
