"""The statistics file: every counter is in it once, and it is written whole or not at all."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from vdnn_alloc.reports import json_file
from vdnn_alloc.snapshot import LayerStats, Stats

LAYER = LayerStats(1, "VGG.features.0", *range(10, 18))


def numbered() -> Stats:
    """Every counter has a value of its own."""
    names = [field.name for field in fields(Stats) if field.name != "layers"]
    return Stats(**{name: 1000 + i for i, name in enumerate(names)}, layers=(LAYER,))


def leaves(value: object) -> list[object]:
    if isinstance(value, dict):
        return [leaf for part in value.values() for leaf in leaves(part)]
    return [value]


def test_every_counter_is_in_the_file_once() -> None:
    document = json.loads(json_file.build(numbered(), {}, {}))

    layers = document.pop("layers")
    values = [value for value in leaves(document) if isinstance(value, int) and value >= 1000]
    assert sorted(values) == list(range(1000, 1000 + len(fields(Stats)) - 1))
    assert layers[0]["name"] == "VGG.features.0"
    assert layers[0]["offloaded_bytes"] == LAYER.offloaded_bytes


def test_it_says_where_convolutions_may_run_other_engines_than_stocks() -> None:
    refused = json.loads(json_file.build(numbered(), {}, {}))["workspaces"]
    stock = json_file.build(replace(numbered(), workspace_refusals=0, layers=()), {}, {})

    assert refused["may_differ_from_stock"] is True
    assert refused["refused_layers"] == ["VGG.features.0"]
    assert json.loads(stock)["workspaces"]["may_differ_from_stock"] is False


def test_it_says_what_it_is_and_where_it_was_made() -> None:
    document = json.loads(json_file.build(numbered(), {"budget": 984}, {"torch": "2.13.0"}))

    assert (document["format"], document["version"]) == ("vdnn_alloc.stats", 1)
    assert document["configuration"] == {"budget": 984}
    assert document["device"] == {"torch": "2.13.0"}


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("old")

    json_file.write(path, "new")

    assert path.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]


def test_a_path_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        json_file.write(tmp_path / "missing" / "run.json", "new")
    assert list(tmp_path.iterdir()) == []
