"""The bytes of every network in the paper's accounting, beside the paper's own: no GPU needed."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table

from bench.paper import accounting, published
from bench.paper.accounting import average_bytes, maximum_bytes, timeline
from bench.paper.layers import trace
from bench.paper.networks import WORKLOADS

MIB = 1 << 20


@dataclass(frozen=True)
class Bytes:
    """One network; all in bytes."""

    offloaded: dict[str, int]
    """By policy, all and conv: feature maps alone."""
    indices: int
    branches: int
    classifier: int
    baseline: accounting.Baseline
    average: dict[str, float]
    maximum: dict[str, int]

    def pytorch_adds(self) -> tuple[int, int, int]:
        """To what `all` moves here: MaxPool's int64 indices, ReLU's results that a concatenation
        copies, and the inputs of the classifier, which the paper leaves alone."""
        return self.indices, self.branches, self.classifier

    def saved(self, policy: str, workspace_bytes: int) -> float:
        """The share of the baseline's bytes that are, on average, not needed."""
        return 1 - self.average[policy] / (self.baseline.total_bytes + workspace_bytes)


def of_network(name: str, batch: int | None = None) -> Bytes:
    traced = trace(WORKLOADS[name], batch)
    lines = {policy: timeline(traced, policy) for policy in ("all", "conv")}
    return Bytes(
        offloaded={policy: accounting.offloaded_bytes(traced, policy) for policy in lines},
        indices=accounting.index_bytes(traced),
        branches=accounting.branch_bytes(traced),
        classifier=accounting.classifier_bytes(traced),
        baseline=accounting.baseline(traced),
        average={policy: average_bytes(line) for policy, line in lines.items()},
        maximum={policy: maximum_bytes(line) for policy, line in lines.items()},
    )


def _mib(count: float) -> str:
    return f"{count / MIB:.0f}"


def offload_table(rows: dict[str, Bytes]) -> Table:
    """Figure 12, and what PyTorch adds."""
    table = Table(
        title="bytes that a policy moves to the host, each way, a step (MiB)",
        caption="What autograd keeps beside them, and our `all` moves too: MaxPool's indices; "
        "branches, ReLU's results that a concatenation copies; the classifier's inputs.",
    )
    table.add_column("network")
    for heading in ("all", "paper", "conv", "paper", "indices", "branches", "classifier"):
        table.add_column(heading, justify="right")
    for name, row in rows.items():
        figures = []
        for policy in ("all", "conv"):
            known = published.OFFLOADED_MIB[policy].get(name)
            if policy == "all" and known is None:
                known = published.VERY_DEEP_MIB["dyn, CPU"].get(name)
            figures += [_mib(row.offloaded[policy]), str(known or "")]
        title = WORKLOADS[name].title
        table.add_row(title, *figures, *map(_mib, row.pytorch_adds()))
    return table


def baseline_table(rows: dict[str, Bytes]) -> Table:
    """Figures 1 and 4, for convolutions without workspaces, and what all(m) saves of it."""
    table = Table(title="baseline in the paper's accounting (MiB), and what all(m) saves of it")
    table.add_column("network")
    headings = ("W", "X", "dX, dY", "none(m)", "paper", "saved", "paper's workspace", "saved")
    for heading in headings:
        table.add_column(heading, justify="right")
    for name, row in rows.items():
        base = row.baseline
        parts = (base.weight_bytes, base.map_bytes, base.gradient_bytes, base.total_bytes)
        known = published.AVERAGE_MIB["none(m)"].get(name)
        if known is None:
            known = published.VERY_DEEP_MIB["baseline"].get(name)
        workspace = published.WORKSPACE_MIB.get(name)
        with_workspace = "" if workspace is None else f"{row.saved('all', workspace * MIB):.1%}"
        cells = [*map(_mib, parts), str(known), f"{row.saved('all', 0):.1%}"]
        table.add_row(WORKLOADS[name].title, *cells, str(workspace or ""), with_workspace)
    return table


def memory_table(rows: dict[str, Bytes]) -> Table:
    """Figure 11 for convolutions without workspaces: feature extraction alone."""
    table = Table(title="GPU memory of feature extraction, without workspaces (MiB)")
    table.add_column("network")
    for policy in ("all(m)", "conv(m)"):
        for heading in (f"{policy} average", "paper", "maximum", "paper"):
            table.add_column(heading, justify="right")
    for name, row in rows.items():
        cells = []
        for policy in ("all", "conv"):
            figures = f"{policy}(m)"
            cells += [_mib(row.average[policy]), str(published.AVERAGE_MIB[figures].get(name, ""))]
            cells += [_mib(row.maximum[policy]), str(published.MAXIMUM_MIB[figures].get(name, ""))]
        table.add_row(WORKLOADS[name].title, *cells)
    return table


def tables(rows: dict[str, Bytes]) -> list[Table]:
    return [offload_table(rows), baseline_table(rows), memory_table(rows)]
