"""The paper's networks have the bytes that its figures show, and autograd saves just those."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bench.paper import __main__ as command
from bench.paper import accounting, byte_table, published
from bench.paper.layers import Kind, trace
from bench.paper.networks import WORKLOADS

MIB = 1 << 20
ANALYTIC_MIB = {  # all, conv
    "alexnet": (349, 165),
    "overfeat": (1157, 385),
    "googlenet": (2341, 1367),
    "vgg16-64": (4030, 2536),
    "vgg16-128": (8060, 5072),
    "vgg16-256": (16121, 10143),
    "vgg116": (16960, 16213),
    "vgg216": (31905, 31158),
    "vgg316": (46850, 46103),
    "vgg416": (61795, 61048),
}
LEAST_SAVED = {"alexnet": 0.89, "overfeat": 0.91, "googlenet": 0.95}
CHART_MIB = 40  # how far a figure can be read off its chart
each_network = pytest.mark.parametrize("name", WORKLOADS)


@each_network
def test_what_is_offloaded_is_what_the_paper_offloads(name: str) -> None:
    traced = trace(WORKLOADS[name])

    moved = [accounting.offloaded_bytes(traced, policy) / MIB for policy in ("all", "conv")]

    assert moved == pytest.approx(ANALYTIC_MIB[name], abs=0.5 + 1e-9)
    assert accounting.offloaded_bytes(traced, "none") == 0


@pytest.mark.parametrize("name", ["alexnet", "overfeat", "googlenet", "vgg16-64", "vgg116"])
def test_autograd_saves_the_offloaded_maps_and_what_the_table_says_that_pytorch_adds(
    name: str,
) -> None:
    workload = WORKLOADS[name]
    saved: dict[int, int] = {}
    held: list[Tensor] = []  # so that no storage takes another's place
    with torch.device("meta"):
        network = workload.build()
        images = torch.empty(workload.images_shape())
    weights = {p.untyped_storage()._cdata for p in network.parameters()}

    def pack(x: Tensor) -> Tensor:
        held.append(x)
        storage = x.untyped_storage()
        if storage._cdata not in weights:
            saved[storage._cdata] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        network(images)

    bytes_ = byte_table.of_network(name)
    assert sum(saved.values()) == bytes_.offloaded["all"] + sum(bytes_.pytorch_adds())


@pytest.mark.parametrize("name", published.SIX)
def test_memory_is_what_the_paper_charts_show(name: str) -> None:
    bytes_ = byte_table.of_network(name)

    for policy in ("all", "conv"):
        average = published.AVERAGE_MIB[f"{policy}(m)"][name]
        assert bytes_.average[policy] / MIB == pytest.approx(average, rel=0.09)
    allowed = published.MAXIMUM_MIB["all(m)"][name] + CHART_MIB
    assert bytes_.maximum["all"] / MIB <= allowed
    workspace = published.WORKSPACE_MIB[name] * MIB
    assert bytes_.saved("all", workspace) >= LEAST_SAVED.get(name, 0.9)


@each_network
def test_a_network_has_as_many_convolutions_as_its_name_says(name: str) -> None:
    layers = trace(WORKLOADS[name]).layers

    count = sum(layer.kind is Kind.CONV for layer in layers)

    named = "".join(c for c in name.partition("-")[0] if c.isdigit())
    assert count == (int(named) if named else {"alexnet": 5, "overfeat": 6, "googlenet": 57}[name])


def test_the_quick_command_prints_the_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--quick"]) == 0

    printed = capsys.readouterr().out
    for mebibytes in (16960, 31905, 46850, 61795, 16121):
        assert f" {mebibytes} " in printed
