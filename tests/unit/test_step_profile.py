"""Profiles: what contradicts itself is refused with a sentence, and files keep every figure."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

from bench import recorded_steps
from bench.bound import chain
from tests.helpers.step_profiles import Row, crossing_profiles, make_profile
from vdnn_alloc.plan import LayerKind
from vdnn_alloc.step_profile import EventKind, LayerTime, ProfileError, StepProfile

DATA = Path(__file__).parent / "data"


def test_the_peak_is_the_most_that_is_live() -> None:
    rows = [(0, "free", 0), (1, "alloc", 1), (2, "alloc", 2), (3, "free", 1), (4, "alloc", 3)]
    profile = make_profile([8, 5, 7, 4], rows, 10, base_bytes=20)

    assert profile.peak_bytes == 20 - 8 + 5 + 7


@given(crossing_profiles())
def test_a_profile_comes_back_from_its_file(profile: StepProfile) -> None:
    assert StepProfile.from_json(profile.to_json()) == profile


def test_layers_and_workspaces_are_in_the_file() -> None:
    profile = make_profile([3], [(0, "alloc", 0), (1, "free", 0)], 2, workspaces=[0])
    layers = (*profile.layers, LayerTime("VGG.features.0", LayerKind.CONVOLUTION, 3, 5))
    profile = replace(profile, layers=layers, blocks=(replace(profile.blocks[0], layer=1),))

    assert StepProfile.from_json(profile.to_json()) == profile


def test_a_stretched_step_has_every_time_in_proportion() -> None:
    profile = replace(chain(2), layers=(LayerTime("outside", LayerKind.OUTSIDE, 10, 20),))

    longer = profile.stretched_to(3 * profile.duration_ns)

    assert [e.time_ns for e in longer.events] == [3 * e.time_ns for e in profile.events]
    assert (longer.layers[0].forward_ns, longer.layers[0].backward_ns) == (30, 60)
    assert longer.blocks == profile.blocks


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([(5, "alloc", 0), (4, "free", 0)], "event 1 is at 4 ns, and must be between 5 and 10"),
        ([(11, "alloc", 0)], "event 0 is at 11 ns, and must be between 0 and 10"),
        ([(0, "alloc", 1)], "event 0 is of block 1, of 1"),
        ([(0, "alloc", 0), (1, "alloc", 0)], "event 1 is a alloc of block 0, which is live then"),
        ([(0, "free", 0), (1, "alloc", 0)], "event 1 is a alloc of block 0, which is freed then"),
        ([(0, "alloc", 0), (1, "cold", 0)], "event 1 is a cold of block 0, which is live then"),
        ([(0, "alloc", 0), (1, "use", 0)], "event 1 is a use of block 0, which is live then"),
        ([(0, "alloc", 0), (1, "free", 0), (2, "save", 0)], "event 2 is a save .* freed then"),
        ([(0, "free", 0)], "blocks of 4 bytes were there before the step, which began with 0"),
    ],
)
def test_events_that_contradict_themselves_are_refused(rows: list[Row], sentence: str) -> None:
    with pytest.raises(ProfileError, match=sentence):
        make_profile([4], rows, 10)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"out_bytes_per_second": 0.0}, "needs copy rates above zero"),
        ({"in_bytes_per_second": -1.0}, "needs copy rates above zero"),
        ({"duration_ns": 0}, "a step of 0 ns"),
        ({"base_bytes": -1}, "over -1 bytes"),
        ({"layers": ()}, "block 0 has 4000 bytes and layer 0, of 0 layers"),
    ],
)
def test_figures_that_make_no_sense_are_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ProfileError, match=sentence):
        StepProfile(**{**vars(chain(1)), **change})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"version": 2}, "expected vdnn_alloc.step_profile version 1, found .* version 2"),
        ({"format": "vdnn_alloc.stats"}, "found vdnn_alloc.stats version 1"),
        ({"events": [[0, "born", 0]]}, "lacks a part or has a wrong one: KeyError\\('born'\\)"),
        ({"events": [[0, "alloc"]]}, "lacks a part or has a wrong one: ValueError"),
        ({"blocks": 7}, "lacks a part or has a wrong one: TypeError"),
    ],
)
def test_a_file_of_another_kind_is_refused(change: dict[str, object], sentence: str) -> None:
    document = {**json.loads(chain(1).to_json()), **change}

    with pytest.raises(ProfileError, match=sentence):
        StepProfile.from_json(json.dumps(document))


@pytest.mark.parametrize("text", ["", "{", "[]", "7"])
def test_a_text_that_is_no_profile_is_refused(text: str) -> None:
    with pytest.raises(ProfileError):
        StepProfile.from_json(text)


@pytest.mark.parametrize("name", ["vgg19_256_fp32", "resnet50_256_tf32"])
def test_recorded_steps_are_whole(name: str) -> None:
    profile = recorded_steps.read(DATA / f"{name}.step.json.gz")

    kinds = [event.kind for event in profile.events]
    assert kinds.count(EventKind.COLD) == kinds.count(EventKind.USE) > 30
    assert profile.peak_bytes > 20 << 30
    assert any(block.is_workspace for block in profile.blocks)
