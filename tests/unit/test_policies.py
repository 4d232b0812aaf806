"""Which saves each policy sends away at once."""

from __future__ import annotations

import pytest

from vdnn_alloc.plan import LayerKind, NativePolicy
from vdnn_alloc.policies import POLICIES


@pytest.mark.parametrize(
    ("name", "native", "eager"),
    [
        ("none", NativePolicy.NONE, set()),
        ("all", NativePolicy.EAGER, set(LayerKind)),
        ("conv", NativePolicy.EAGER, {LayerKind.CONVOLUTION}),
        ("dyn", NativePolicy.PRESSURE, set()),
    ],
)
def test_a_policy_sends_away_what_the_paper_says(
    name: str, native: NativePolicy, eager: set[LayerKind]
) -> None:
    plan = POLICIES[name].choose()

    assert plan.native_policy is native
    assert {kind for kind in LayerKind if plan.is_eager(kind)} == eager


def test_every_policy_has_one_line_on_itself() -> None:
    assert all(policy.summary and "\n" not in policy.summary for policy in POLICIES.values())
    assert len(POLICIES) == 4
