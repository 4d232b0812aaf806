"""The finished cells of the sweep: tables, and plots of step time against the limit."""

from __future__ import annotations

from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING

from rich.table import Table

from bench.models import TINY, WORKLOADS
from bench.peers.cells import STOCK, Cell, Outcome
from bench.peers.tools import TOOLS
from vdnn_alloc.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Finished = dict[Cell, Outcome]
Group = tuple[str, str, str]
"""Workload, precision, backend."""
GIB = 1 << 30
BOUND_OF = "vdnn_alloc"
"""Whose recorded steps the bound is of: nothing is recomputed, no workspace is given up."""
HEADINGS = (
    *("tool", "limit", "step", "of stock", "of the bound", "device peak", "allocated peak"),
    *("out a step", "in a step", "loss"),
)


def step_ms(outcome: Outcome) -> float:
    """The median after the warm-up."""
    return median(outcome["step_ms"][outcome["settings"]["warm_up"] :])


def outcome_of(cell: Cell, finished: Finished) -> Outcome | None:
    """Its own, or what that of another limit says of it."""
    if cell in finished or not TOOLS[cell.tool].is_static:
        return finished.get(cell)
    for other, outcome in finished.items():
        is_same = (_group(other), other.tool) == (_group(cell), cell.tool)
        if is_same and _says(outcome, is_looser=other.percent > cell.percent):
            return outcome
    return None


def _says(outcome: Outcome, *, is_looser: bool) -> bool:
    """If a static tool does the same under another limit as under this looser or tighter one."""
    if outcome["ended"] == "trained":
        return not is_looser and outcome["per_step"].get("retries", 0) == 0
    return is_looser or outcome["ended"] != "out of memory"


def _group(cell: Cell) -> Group:
    return cell.workload, cell.precision, cell.backend


def groups(finished: Finished) -> Iterator[tuple[Group, list[Cell]]]:
    """Cells of one workload and precision, in the order of the tables."""
    workloads, tools = [*WORKLOADS, *TINY], list(TOOLS)

    def place(cell: Cell) -> tuple[object, ...]:
        where = workloads.index(cell.workload), cell.precision, cell.backend
        return *where, tools.index(cell.tool), -cell.percent

    for group, found in groupby(sorted(finished, key=place), key=_group):
        yield group, list(found)


def tables(finished: Finished) -> Iterator[Table]:
    """One a workload and precision, one row a cell."""
    for (workload, precision, backend), found in groups(finished):
        stock = finished.get(found[0].stock)
        title = f"{({**WORKLOADS, **TINY})[workload].title}, {precision}"
        table = Table(title=title + " (host backend)" * (backend == "host"))
        for number, heading in enumerate(HEADINGS):
            table.add_column(heading, justify="right" if number else "left")
        for cell in found:
            table.add_row(*_row(cell, finished, stock))
        yield table


def _row(cell: Cell, finished: Finished, stock: Outcome | None) -> list[str]:
    outcome = finished[cell]
    limit = "none" if cell == cell.stock else f"{cell.percent} %"
    if outcome["ended"] != "trained":
        return [cell.tool, limit, f"{outcome['ended']}: {outcome['error'][:60]}"]
    bound = bound_ms(cell, finished)
    moved = outcome["per_step"]
    return [
        cell.tool,
        limit,
        f"{step_ms(outcome):.1f} ms",
        _ratio(outcome, step_ms(stock) if stock and stock["ended"] == "trained" else None),
        _ratio(outcome, bound),
        _gib(outcome["peaks"].get("used_max")),
        _gib(outcome["peaks"].get("allocated_max")),
        _gib(moved.get("offloaded_bytes")),
        _gib(moved.get("prefetched_bytes")),
        _loss(outcome, stock),
    ]


def bound_ms(cell: Cell, finished: Finished) -> float | None:
    """Of this workload at this limit; None: not known, or no wait makes the limit enough."""
    source = Cell(cell.workload, cell.precision, BOUND_OF, cell.percent, cell.backend)
    found: float | None = (finished.get(source, {}).get("bound") or {}).get("step_ms")
    return found


def _ratio(outcome: Outcome, base_ms: float | None) -> str:
    return "" if base_ms is None else f"{step_ms(outcome) / base_ms:.3f} x"


def _gib(count: float | None) -> str:
    return "" if count is None else f"{count / GIB:.2f} GiB"


def _loss(outcome: Outcome, stock: Outcome | None) -> str:
    if stock is None or stock["ended"] != "trained":
        return f"{outcome['loss']:.6g}"
    if outcome["loss"] == stock["loss"]:
        return "equal"
    return f"{outcome['loss'] - stock['loss']:+.1e}"


def draw(finished: Finished, folder: Path) -> Iterator[Path]:
    """Writes a plot for each workload and precision; yields the files.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise ConfigError("plots need matplotlib; install it, then --report draws them") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    for (workload, precision, _), found in groups(finished):
        figure, axes = pyplot.subplots(figsize=(8, 5))
        percents = sorted({cell.percent for cell in found if cell != cell.stock})
        for label, points in _lines(found, finished, percents).items():
            axes.plot(list(points), list(points.values()), "o-", label=label)
        axes.set_title(f"{({**WORKLOADS, **TINY})[workload].title}, {precision}")
        axes.set_xlabel("limit, % of the peak of stock's tensors")
        axes.set_xticks(percents)
        axes.set_ylabel("step, median (ms)")
        axes.set_ylim(bottom=0)
        axes.invert_xaxis()
        axes.legend()
        path = folder / f"{workload}-{precision}.png"
        figure.tight_layout()
        figure.savefig(path, dpi=100)
        pyplot.close(figure)
        yield path


def _lines(
    found: list[Cell], finished: Finished, percents: list[int]
) -> dict[str, dict[int, float]]:
    """By label, the step by limit; a tool that trained at no limit has no line."""
    first = found[0]
    lines: dict[str, dict[int, float]] = {}
    for tool in dict.fromkeys(cell.tool for cell in found):
        for percent in percents:
            cell = Cell(first.workload, first.precision, tool, percent, first.backend)
            outcome = outcome_of(cell.stock if tool == STOCK else cell, finished)
            if outcome is not None and outcome["ended"] == "trained":
                name = f"{STOCK}, without limit" if tool == STOCK else tool
                lines.setdefault(name, {})[percent] = step_ms(outcome)
    for percent in percents:
        bound = bound_ms(
            Cell(first.workload, first.precision, STOCK, percent, first.backend), finished
        )
        if bound is not None:
            lines.setdefault("bound", {})[percent] = bound
    return lines
