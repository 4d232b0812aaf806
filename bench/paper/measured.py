"""The finished cells beside the paper's figures: rows, and Markdown."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from bench.paper import published
from bench.paper.cells import MIB
from bench.paper.networks import WORKLOADS

if TYPE_CHECKING:
    from bench.paper.cells import Cell, Outcome

HEADINGS = (
    *("network", "policy", "update", "step", "of the oracle", "paper", "offloaded, MiB a step"),
    *("paper", "device average, MiB", "paper", "device peak, MiB", "paper", "refused", "identical"),
)


@dataclass(frozen=True)
class Row:
    """One cell beside its oracle."""

    cell: Cell
    outcome: Outcome
    performance: float | None
    """The oracle's median step over this one's; None: no oracle yet, or it does not fit."""
    is_identical: bool | None
    """None: there is nothing to compare."""
    missing_bytes: int


def rows(cells: dict[Cell, Outcome]) -> list[Row]:
    """In the order of the paper's figures."""
    networks = list(WORKLOADS)
    ordered = sorted(cells, key=lambda c: (c.precision, networks.index(c.network), c.name))
    return [_row(cell, cells) for cell in ordered]


def _row(cell: Cell, cells: dict[Cell, Outcome]) -> Row:
    outcome = cells[cell]
    fastest = cells.get(replace(cell, policy="oracle(p)"))
    # paper-dyn took a cell's numbers over, and with them its kind of engines.
    policy = outcome.get("chosen") or cell.policy
    mode = "oracle(m)" if "(m)" in policy else "oracle(p)"
    same_mode = cells.get(replace(cell, policy=mode))
    performance = None
    if outcome["fits"] and fastest is not None and fastest["fits"]:
        performance = median(fastest["step_ms"]) / median(outcome["step_ms"])
    return Row(
        cell,
        outcome,
        performance,
        _identical(outcome, same_mode),
        _missing(cell, outcome, same_mode),
    )


def _identical(outcome: Outcome, oracle: Outcome | None) -> bool | None:
    if oracle is None or "equality" not in oracle or "equality" not in outcome:
        return None
    return bool(outcome["equality"] == oracle["equality"])


def _missing(cell: Cell, outcome: Outcome, oracle: Outcome | None) -> int:
    """Of none, what the oracle needs above the budget; else of the request that failed."""
    if outcome["fits"]:
        return 0
    at_request = int(outcome["missing_bytes"])
    if cell.moves != "none" or oracle is None or "live_bytes_max" not in oracle:
        return at_request
    return max(at_request, int(oracle["live_bytes_max"]) - cell.budget_bytes)


def markdown(cells: dict[Cell, Outcome]) -> str:
    """A table for each precision and budget."""
    text = ["# The paper's figures, measured", ""]
    found = rows(cells)
    groups = sorted({(r.cell.precision, -r.cell.budget_bytes) for r in found})
    for precision, negative_budget in groups:
        budget = -negative_budget
        group = [
            r for r in found if r.cell.precision == precision and r.cell.budget_bytes == budget
        ]
        text += [f"## {precision}, {budget // MIB} MiB", ""]
        text += ["| " + " | ".join(HEADINGS) + " |", "|---" * len(HEADINGS) + "|"]
        text += ["| " + " | ".join(_cells(row)) + " |" for row in group] + [""]
    return "\n".join(text)


def _cells(row: Row) -> list[str]:
    cell, outcome = row.cell, row.outcome
    batch = f", batch {cell.batch}" if cell.batch else ""
    policy = cell.policy + (f" ({outcome['chosen']})" if outcome.get("chosen") else "")
    start = [WORKLOADS[cell.network].title + batch, policy, cell.update]
    if not outcome["fits"]:
        place = f"{outcome['where']}, {row.missing_bytes} bytes missing"
        return [*start, f"does not fit: {place}", *[""] * (len(HEADINGS) - 4)]
    summed = " (summed latency)" if outcome.get("oracle") == "summed latency" else ""
    return [
        *start,
        f"{median(outcome['step_ms']):.1f} ms{summed}",
        "" if row.performance is None else f"{row.performance:.3f}",
        _paper(published.PERFORMANCE, cell),
        _mib(outcome.get("per_step", {}).get("offloaded_bytes")),
        _paper(published.OFFLOADED_MIB, cell),
        _mib(outcome.get("owned_bytes_average")),
        _paper(published.AVERAGE_MIB, cell),
        _mib(outcome.get("owned_bytes_max")),
        _paper(published.MAXIMUM_MIB, cell),
        str(outcome.get("workspace_refusals", "")),
        {True: "yes", False: "no", None: ""}[row.is_identical],
    ]


def _mib(count: float | None) -> str:
    return "" if count is None else f"{count / MIB:.0f}"


def _paper(figure: dict[str, dict[str, int]] | dict[str, dict[str, float]], cell: Cell) -> str:
    """The paper's figure; of paper-dyn it is that of dyn, of offloading the kind of layers'."""
    if cell.batch:
        return ""  # not the paper's
    policy = "dyn" if cell.policy == "paper-dyn" else cell.policy
    of_policy = figure.get(policy) or figure.get(policy.partition("(")[0]) or {}
    return str(of_policy.get(cell.network, ""))
