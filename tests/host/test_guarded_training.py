"""Models that hold their feature maps train within half of their peak, with the same bits.

Without the access guard they do not: nothing that a variable holds may leave.
"""

from __future__ import annotations

import pytest
import torch

from tests.helpers import fresh
from tests.helpers.compare import differences
from tests.helpers.models import HOLDING
from tests.helpers.run_training import (
    OPTIMIZERS,
    Job,
    at_share,
    command,
    outcome_of,
    start,
    stock,
    train,
    unlimited,
)

PERCENT = 50
ALIASED, UNMAPPED = 1, 3  # check levels

models = pytest.mark.parametrize("model", HOLDING)
optimizers = pytest.mark.parametrize("optimizer", OPTIMIZERS)


def trained(job: Job) -> Job:
    """The same at half of its peak; what it is compared with is begun."""
    start(Job(job.model, job.optimizer), unlimited(Job(job.model, job.optimizer)))
    small = at_share(job, PERCENT)
    start(small)
    return small


# Rule 11; and rule 2: what is held leaves only under the guard.
@models
@optimizers
@pytest.mark.parametrize("check", [ALIASED, UNMAPPED], ids=["aliased", "unmapped"])
def test_half_of_the_peak_is_enough_and_changes_no_bit(
    model: str, optimizer: str, check: int
) -> None:
    job = trained(Job(model, optimizer, check=check))

    ours = outcome_of(job)

    assert differences(ours, stock(job)) == [], command(job, PERCENT)
    assert ours.stats[0]["guarded_out_bytes"] > 0, "the first step needed the guard, and had it"
    assert job.budget_bytes is not None
    assert max(ours.witness_bytes) <= job.budget_bytes
    assert ours.stats[-1]["created_bytes_max"] <= job.budget_bytes


@models
@pytest.mark.parametrize("seed", range(1, 7))
def test_copies_that_finish_as_late_as_they_may_change_no_bit(model: str, seed: int) -> None:
    job = trained(Job(model, seed=seed, guard="on"))

    ours = outcome_of(job)

    assert differences(ours, stock(job)) == [], command(job, PERCENT)


@models
@pytest.mark.parametrize("policy", ["all", "conv"])
def test_the_eager_policies_have_the_guard_too(model: str, policy: str) -> None:
    job = trained(Job(model, policy=policy))

    assert differences(outcome_of(job), stock(job)) == [], command(job, PERCENT)


@models
def test_without_the_guard_half_of_the_peak_is_not_enough_and_the_error_says_why(
    model: str,
) -> None:
    job = trained(Job(model, guard="off"))

    ended = fresh.run(train, job, install=job.settings())

    assert ended.exit_code != 0
    assert torch.OutOfMemoryError.__name__ in ended.text
    assert "are held by variables of the program, and cannot leave with guard=off" in ended.text


@models
def test_where_all_fits_the_guard_never_comes_on(model: str) -> None:
    job = Job(model, budget_bytes=1 << 28)

    ours = outcome_of(job)

    assert [row["guard_is_on"] for row in ours.stats] == [0] * job.steps
    assert differences(ours, stock(job)) == []


def test_a_model_that_lets_go_of_its_feature_maps_never_needs_the_guard() -> None:
    job = at_share(Job("vgg"), PERCENT)

    ours = outcome_of(job)

    assert [row["guard_is_on"] for row in ours.stats] == [0] * job.steps
    assert ours.stats[-1]["offloaded_bytes"] > 0
