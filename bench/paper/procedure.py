"""The paper's own procedure for vDNN_dyn, `paper-dyn`: it tries whole policies, in its order.

First all(m): if that cannot train, nothing can. Then the first that fits of none(p), conv(p),
all(p); then conv and all with the greedy choice, in which a convolution whose workspace does not
fit takes the next smaller engine; else all(m).

What the paper leaves open, decided here: "fits" means that the pass ran with the engines it asked
for, so without one refused workspace. Ours degrades by itself, a layer at a time, where a workspace
is refused, which is the greedy choice; so the greedy passes are the (p) cells, refusals allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.paper.cells import Cell, Outcome

FEASIBILITY = "all(m)"
WHOLE = ("none(p)", "conv(p)", "all(p)")
GREEDY = ("conv(p)", "all(p)")


def choose(cell: Cell, outcome_of: Callable[[Cell], Outcome]) -> Outcome:
    """The outcome of the first policy that fits, with `chosen` and all that was `tried`."""
    tried: list[str] = []

    def attempt(policy: str, *, greedy: bool) -> Outcome | None:
        tried.append(f"{policy} greedy" if greedy else policy)
        outcome = outcome_of(replace(cell, policy=policy))
        fits = outcome["fits"] and (greedy or not outcome["workspace_refusals"])
        return {**outcome, "chosen": tried[-1], "tried": tried} if fits else None

    fallback = outcome_of(replace(cell, policy=FEASIBILITY))
    tried.append(FEASIBILITY)
    if not fallback["fits"]:
        return {**fallback, "chosen": None, "tried": tried}
    for greedy, policies in ((False, WHOLE), (True, GREEDY)):
        for policy in policies:
            if (found := attempt(policy, greedy=greedy)) is not None:
                return found
    return {**fallback, "chosen": FEASIBILITY, "tried": tried}
