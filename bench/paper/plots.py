"""Figures 11, 12, 14 and 15 beside the paper's, and memory over one step, as PNG files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.paper import byte_table, published
from bench.paper.cells import MIB, PAPER_BUDGET, POLICIES, Cell
from bench.paper.measured import Row, rows
from bench.paper.networks import WORKLOADS
from vdnn_alloc.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from bench.paper.cells import Outcome

Values = dict[tuple[str, str], float]
"""By policy and network."""
SHOWN = tuple(p for p in POLICIES if not p.startswith("oracle"))


def draw(cells: dict[Cell, Outcome], folder: Path) -> list[Path]:
    """Writes what the finished fp32 cells at the paper's budget show; returns the files.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise ConfigError("plots need matplotlib; install it, then --report draws them") from None
    matplotlib.use("Agg")
    found = [r for r in rows(cells) if r.cell.precision == "fp32" and r.outcome["fits"]]
    paper = [r for r in found if r.cell.budget_bytes == PAPER_BUDGET and not r.cell.batch]
    peaks = _of(paper, "owned_bytes_max")
    averages = _of(paper, "owned_bytes_average")
    speed = {(r.cell.policy, r.cell.network): r.performance for r in paper if r.performance}
    files = [
        _bars(folder / "figure11-average.png", "memory, average (MiB)", averages, "AVERAGE_MIB"),
        _bars(folder / "figure11-maximum.png", "memory, maximum (MiB)", peaks, "MAXIMUM_MIB"),
        _bars(folder / "figure12.png", "offloaded a step (MiB)", _offloaded(), "OFFLOADED_MIB"),
        _bars(folder / "figure14.png", "performance, of the oracle's", speed, "PERFORMANCE"),
        _very_deep(folder / "figure15.png", found),
    ]
    return files + [_over_one_step(row, folder) for row in found if row.outcome["memory"]]


def _of(found: list[Row], figure: str) -> Values:
    return {
        (r.cell.policy, r.cell.network): r.outcome[figure] / MIB
        for r in found
        if figure in r.outcome
    }


def _offloaded() -> Values:
    """In the paper's accounting; exact, so there is nothing to measure."""
    bytes_ = {name: byte_table.of_network(name) for name in published.SIX}
    return {
        (policy, name): row.offloaded[policy] / MIB
        for policy in ("all", "conv")
        for name, row in bytes_.items()
    }


def _axes(count: int, title: str) -> list[Axes]:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(count, 1, figsize=(9, 2.6 * count), squeeze=False)
    figure.suptitle(title)
    return [row[0] for row in axes]


def _save(axes: Axes, path: Path) -> Path:
    from matplotlib import pyplot

    figure = axes.figure
    figure.get_figure(root=True).tight_layout()
    figure.get_figure(root=True).savefig(path, dpi=100)
    pyplot.close("all")
    return path


def _bars(path: Path, title: str, ours: Values, figure: str) -> Path:
    """A panel for each network: each policy's bar beside the paper's."""
    paper: dict[str, dict[str, float]] = getattr(published, figure)
    policies = [p for p in (*SHOWN, "all", "conv") if p in paper or (p, "vgg16-256") in ours]
    panels = _axes(len(published.SIX), title)
    for axes, name in zip(panels, published.SIX, strict=True):
        known = [paper.get(p, {}).get(name, 0) for p in policies]
        measured = [ours.get((p, name), 0) for p in policies]
        places = range(len(policies))
        axes.bar([n - 0.2 for n in places], known, 0.4, label="paper")
        axes.bar([n + 0.2 for n in places], measured, 0.4, label="ours")
        axes.set_xticks(list(places), policies)
        axes.set_title(WORKLOADS[name].title)
    panels[0].legend()
    return _save(panels[0], path)


def _very_deep(path: Path, found: list[Row]) -> Path:
    """The paper's GPU and CPU parts of dyn, and ours at each budget that was run."""
    axes = _axes(1, "very deep networks, batch 32: memory (MiB)")[0]
    for label, values in published.VERY_DEEP_MIB.items():
        axes.plot(list(values), list(values.values()), "o--", label=f"paper: {label}")
    ours = [r for r in found if r.cell.network in published.VERY_DEEP and r.cell.policy == "dyn"]
    for budget in sorted({r.cell.budget_bytes for r in ours}):
        for figure, place in (("owned_bytes_max", "GPU"), ("host_bytes_max", "CPU")):
            at = {r.cell.network: r.outcome[figure] / MIB for r in ours if _is(r, budget)}
            label = f"ours: dyn, {place}, {budget // MIB} MiB"
            axes.plot(list(at), list(at.values()), "s-", label=label)
    axes.set_yscale("log")
    axes.legend()
    return _save(axes, path)


def _is(row: Row, budget_bytes: int) -> bool:
    return row.cell.budget_bytes == budget_bytes


def _over_one_step(row: Row, folder: Path) -> Path:
    """Bytes after each layer, forward and back; as many names as can be read."""
    cell = row.cell
    axes = _axes(1, f"{WORKLOADS[cell.network].title}, {cell.policy}: memory over one step")[0]
    memory = row.outcome["memory"]
    axes.plot([held / MIB for _, _, held in memory])
    every = max(1, len(memory) // 45)
    places = range(0, len(memory), every)
    axes.set_xticks(list(places), [memory[n][0] for n in places], rotation=90, fontsize=6)
    axes.axvline(sum(phase == "forward" for _, phase, _ in memory) - 0.5, linestyle=":")
    axes.set_ylabel("MiB in use; backward right of the line")
    return _save(axes, folder / f"memory-{cell.name}.png")
