"""The runs of one program: by PyTorch alone, and with vdnn_alloc under four kinds of settings.

Of those there are: room for everything; all that may move moves; a tight budget, with frames that
are reused at once or with what is away unmapped.

By hand, to reproduce a failing test:
    python -m tests.programs.runs models.recurrent.lstm [--check 3] [--percent 60] [--cuda]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial

from tests.helpers import fresh
from tests.programs import catalogue
from tests.programs.program import Run, run_once
from tests.programs.seen import differences

AMPLE_BYTES = {"cpu": 1 << 30, "cuda": 16 << 30}
SMALL_FRAME_BYTES = 64 << 10  # as under a tight budget, so that the same blocks may move
TIMEOUT_S = 100

# Libraries that the programs import: nothing is asked of the network, no colours, no bars.
os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    DO_NOT_TRACK="1",
    TOKENIZERS_PARALLELISM="false",
    PYTHONHASHSEED="0",
)


@dataclass(frozen=True)
class Job:
    """One run. Without a budget PyTorch runs alone."""

    name: str
    budget_bytes: int | None = None
    check: int = 1
    kind: str = "cpu"
    policy: str = "dyn"
    frame_bytes: int | None = None  # None: what install() chooses

    def settings(self) -> fresh.Settings | None:
        """The arguments of vdnn_alloc.install."""
        if self.budget_bytes is None:
            return None
        backend = {"cpu": "host", "cuda": "cuda"}[self.kind]
        return {
            "budget": self.budget_bytes,
            "check": self.check,
            "backend": backend,
            "policy": self.policy,
            "frame": self.frame_bytes,
        }


@cache
def _some_at_a_time(kind: str) -> ThreadPoolExecutor:
    cores = os.cpu_count() or 1
    return ThreadPoolExecutor(max_workers={"cpu": 2, "cuda": max(2, cores // 2)}[kind])


@cache
def _started(job: Job) -> Future[fresh.Ended]:
    run = partial(fresh.run, install=job.settings(), timeout_s=TIMEOUT_S)
    return _some_at_a_time(job.kind).submit(run, run_once, job.name, job.kind)


def ended(job: Job) -> fresh.Ended:
    """How its process ended, which must be well; each job is run once a session."""
    result = _started(job).result().check()
    assert isinstance(result.result, Run)
    return result


def stock(name: str, kind: str = "cpu") -> Job:
    """By PyTorch alone."""
    return Job(name, kind=kind)


def ample(name: str, kind: str = "cpu") -> Job:
    """With vdnn_alloc, and room for everything."""
    return Job(name, AMPLE_BYTES[kind], kind=kind)


def eager(name: str, kind: str = "cpu") -> Job:
    """With vdnn_alloc, room for everything, and a policy that moves whatever it may."""
    frame_bytes = SMALL_FRAME_BYTES if kind == "cpu" else None
    return Job(name, AMPLE_BYTES[kind], kind=kind, policy="all", frame_bytes=frame_bytes)


def tight(name: str, check: int, percent: int | None = None, kind: str = "cpu") -> Job:
    """With vdnn_alloc, under the program's share of the peak that the ample run had."""
    stats = ended(ample(name, kind)).stats
    assert stats is not None
    known = catalogue.find(name)
    share = percent or {"cpu": known.percent, "cuda": known.gpu_percent}[kind]
    return Job(name, stats["live_bytes_max"] * share // 100, check, kind)


def start(*jobs: Job) -> None:
    """Begins runs that will be asked for soon."""
    for job in jobs:
        _started(job)


def what_differs(ours: Run, theirs: Run) -> list[str]:
    """Numbers, exceptions, graphs; and warnings that PyTorch alone did not give."""
    found = differences(ours.seen, theirs.seen)
    found += [f"warned: {text} ({n} x)" for text, n in (ours.warned - theirs.warned).items()]
    if ours.compiled != theirs.compiled:
        found.append(f"compiled: {ours.compiled} against {theirs.compiled}")
    return found


def main() -> int:
    """Runs one program in every way and prints what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(catalogue.on_cpu()))
    parser.add_argument("--cuda", action="store_const", const="cuda", default="cpu")
    parser.add_argument("--check", type=int, default=1)
    parser.add_argument("--percent", type=int)
    args = parser.parse_args()
    started = time.perf_counter()
    failed = [name for name in args.names if not is_as_before(name, args)]
    seconds = time.perf_counter() - started
    print(f"{len(args.names)} programs, {len(failed)} not as before, {seconds:.0f} s in all")
    return min(len(failed), 1)


def is_as_before(name: str, args: argparse.Namespace) -> bool:
    """Runs one program in every way and prints what came of it."""
    try:
        theirs = ended(stock(name, args.cuda)).result
    except AssertionError as error:
        print(f"{name}: PyTorch alone: {error}")
        return False
    if not report(ample(name, args.cuda), theirs):
        return False
    if not report(eager(name, args.cuda), theirs):
        return False
    return report(tight(name, args.check, args.percent, args.cuda), theirs)


def report(job: Job, theirs: Run) -> bool:
    """Prints one run; true if it is as PyTorch's."""
    run = _started(job).result()
    if run.exit_code != 0 or run.stats is None:
        print(
            f"{job.name}: budget {job.budget_bytes}: exit code {run.exit_code}\n{run.text[-2500:]}"
        )
        return False
    found = what_differs(run.result, theirs)
    megabytes = {
        key: round(run.stats[key] / (1 << 20), 2)
        for key in ("budget_bytes", "live_bytes_max", "created_bytes_max", "offloaded_bytes")
    }
    print(f"{job.name}: {run.result.seconds:.2f} s, {theirs.seconds:.2f} s alone, {megabytes}")
    print("".join(f"  differs: {line}\n" for line in found), end="")
    return not found


if __name__ == "__main__":
    sys.exit(main())
