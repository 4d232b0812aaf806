"""Six models on a GPU, in fp32 and under autocast with bf16, with SGD and Adam, under 60 % of their
own peak: every loss, gradient and parameter is stock PyTorch's, and the budget holds.

The trainings run one at a time: the outside witness counts the whole device.
"""

from __future__ import annotations

from functools import cache

import pytest

from tests.helpers import fresh, gpu_training
from tests.helpers.compare import differences
from tests.helpers.gpu_matrix import (
    CASES,
    PRECISIONS,
    Case,
    Limited,
    Stock,
    train_all_by_stock,
    train_within,
)

PERCENT = 60
TIMEOUT_S = 150
TOLERANCE_BYTES = 64 << 20  # page-locking takes some tables

pytestmark = pytest.mark.timeout(2 * TIMEOUT_S)


@cache
def stock() -> Stock:
    trained = fresh.call(train_all_by_stock, timeout_s=TIMEOUT_S).result
    assert isinstance(trained, Stock)
    return trained


def budgets(model: str) -> dict[str, int]:
    """For each precision, a share of the smaller of its peaks."""
    peaks = stock().peaks
    smaller = {
        precision: min(
            peak
            for case, peak in peaks.items()
            if (case.model, case.precision) == (model, precision)
        )
        for precision in PRECISIONS
    }
    return {precision: peak * PERCENT // 100 for precision, peak in smaller.items()}


@cache
def limited(model: str) -> dict[Case, Limited]:
    within = budgets(model)
    settings = gpu_training.settings(max(within.values()))
    return fresh.call(  # type: ignore[no-any-return]
        train_within, model, within, install=settings, timeout_s=TIMEOUT_S
    ).result


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_numbers_are_stocks(case: Case) -> None:
    ours = limited(case.model)[case]
    assert ours.offloaded_bytes > 0
    assert ours.workspace_refusals == 0
    assert differences(ours.outcome, stock().outcomes[case]) == []


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_budget_holds(case: Case) -> None:
    ours = limited(case.model)[case]
    assert ours.created_bytes_max <= ours.budget_bytes
    allowed = ours.budget_bytes + stock().outside_allocator + TOLERANCE_BYTES
    assert ours.used_bytes_max <= allowed
