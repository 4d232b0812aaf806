"""Trains one named model for a few steps, with or without vdnn_alloc, and keeps every number.

By hand, to reproduce a failing test (a budget of "40%" is a share of the measured peak):
    python -m tests.helpers.run_training --model vgg --optimizer sgd --budget 40% --check 3
trains in two fresh processes, stock and not, prints what differs, and exits with 1 if anything.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache

import torch

from tests.helpers import fresh
from tests.helpers.compare import Outcome, arrays, differences, stats_row
from tests.helpers.models import HOLDING, WORKLOADS

AMPLE_BYTES = 1 << 30  # a budget that no model here fills
OPTIMIZERS = ("sgd", "adam")
MODELS = {**WORKLOADS, **HOLDING}


@dataclass(frozen=True)
class Job:
    """One training. Without a budget it is stock PyTorch, and vdnn_alloc is not imported."""

    model: str
    optimizer: str = "sgd"
    steps: int = 5
    budget_bytes: int | None = None
    policy: str = "dyn"
    seed: int = 0
    check: int = 1
    frame_bytes: int | None = None  # None: what install() chooses
    guard: str = "auto"
    fixed_batch: bool = False  # the same tensors in every step, as in a loop that changes nothing

    def settings(self) -> fresh.Settings | None:
        """The arguments of vdnn_alloc.install, or None."""
        if self.budget_bytes is None:
            return None
        return {
            "budget": self.budget_bytes,
            "policy": self.policy,
            "seed": self.seed,
            "check": self.check,
            "frame": self.frame_bytes,
            "guard": self.guard,
        }


def make_optimizer(name: str, model: torch.nn.Module) -> torch.optim.Optimizer:
    """SGD with momentum, or Adam."""
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return torch.optim.Adam(model.parameters(), lr=0.001)


def train(job: Job) -> Outcome:
    """The training loop that everybody writes, in this process."""
    torch.manual_seed(1234)
    workload, outcome = MODELS[job.model], Outcome()
    model = workload.build()
    optimizer = make_optimizer(job.optimizer, model)
    batch = workload.batch(torch.Generator().manual_seed(0)) if job.fixed_batch else None
    for step in range(job.steps):
        started = time.perf_counter()
        if not job.fixed_batch:
            batch = workload.batch(torch.Generator().manual_seed(step))
        assert batch is not None
        optimizer.zero_grad()
        loss = workload.loss(model, batch)
        loss.backward()
        outcome.add_step(model, loss.item())
        optimizer.step()
        del loss
        outcome.step_ms.append((time.perf_counter() - started) * 1e3)
        if job.budget_bytes is not None:
            read_counters(outcome)
    outcome.parameters = arrays(model.state_dict())
    return outcome


def read_counters(outcome: Outcome) -> None:
    """Adds what vdnn_alloc and the witness say now."""
    import vdnn_alloc
    from tests.helpers import simulation

    outcome.stats.append(stats_row(vdnn_alloc.stats()))
    outcome.witness_bytes.append(simulation.witness_bytes())


@cache
def _two_at_a_time() -> ThreadPoolExecutor:
    """Each thread waits for one fresh process."""
    return ThreadPoolExecutor(max_workers=2)


@cache
def _started(job: Job) -> Future[fresh.Ended]:
    return _two_at_a_time().submit(fresh.run, train, job, install=job.settings())


def start(*jobs: Job) -> None:
    """Begins trainings that will be asked for soon."""
    for job in jobs:
        _started(job)


def outcome_of(job: Job) -> Outcome:
    """What a training left behind; each is run once a session, in a process of its own."""
    ended = _started(job).result().check()
    assert ended.has_vdnn_alloc == (job.budget_bytes is not None)
    assert isinstance(ended.result, Outcome)
    return ended.result


def stock(job: Job) -> Outcome:
    """The same training by PyTorch alone."""
    return outcome_of(Job(job.model, job.optimizer, job.steps))


def unlimited(job: Job) -> Job:
    """The same training under a budget that never binds, where nothing moves."""
    return Job(job.model, job.optimizer, job.steps, AMPLE_BYTES, policy="none")


def peak_bytes(job: Job) -> int:
    """The most bytes that the training has live at once, under policy none."""
    return outcome_of(unlimited(job)).stats[-1]["live_bytes_max"]


def at_share(job: Job, percent: int) -> Job:
    """The same training under a budget of so many hundredths of its peak."""
    return replace(job, budget_bytes=peak_bytes(job) * percent // 100)


def command(job: Job, percent: int) -> str:
    """How to run a training again by hand."""
    return (
        f"python -m tests.helpers.run_training --model {job.model} --optimizer {job.optimizer}"
        f" --budget {percent}% --policy {job.policy} --seed {job.seed} --check {job.check}"
        f" --guard {job.guard}" + (f" --frame {job.frame_bytes}" if job.frame_bytes else "")
    )


def main() -> int:
    """Trains twice, prints the bytes and the differences."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd")
    parser.add_argument("--budget", default="60%", help="a share of the peak, or bytes")
    parser.add_argument("--policy", default="dyn")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--guard", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", type=int, default=1)
    parser.add_argument("--frame", type=int, help="bytes of one frame")
    args = parser.parse_args()
    job = Job(
        model=args.model,
        optimizer=args.optimizer,
        steps=args.steps,
        policy=args.policy,
        seed=args.seed,
        check=args.check,
        frame_bytes=args.frame,
        guard=args.guard,
    )
    if args.budget.endswith("%"):
        job = at_share(job, int(args.budget[:-1]))
    else:
        job = replace(job, budget_bytes=int(args.budget))
    ours = outcome_of(job)
    for name in ("live_bytes_max", "created_bytes_max", "mappings"):
        print(f"{name:24} {ours.stats[-1][name]:12}")
    for name in ("offloaded_bytes", "prefetched_bytes", "driver_create", "driver_map"):
        print(f"{name:24} {ours.per_step(name)} a step")
    print(f"{'budget_bytes':24} {job.budget_bytes:12}, witness {max(ours.witness_bytes)}")
    print(f"{'step_ms':24} {[round(ms) for ms in ours.step_ms]}")
    found = differences(ours, stock(job))
    print("\n".join(found) or "identical")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
