"""Settings: arguments over VDNN_ALLOC over defaults, and a sentence for everything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from vdnn_alloc.config import (
    BACKENDS,
    GUARDS,
    WORKSPACES,
    Config,
    configure,
    describe,
    is_enabled,
    parse_settings,
)
from vdnn_alloc.errors import ConfigError
from vdnn_alloc.policies import POLICIES


def with_variable(text: str, **arguments: object) -> Config:
    return configure(arguments, {"VDNN_ALLOC": text})


def test_every_key_of_the_variable_is_read() -> None:
    text = (
        "budget=12GiB, policy=conv,host_budget=64GiB,backend=host,dump=run.json,guard=on,"
        "workspace=planned,"
        "check=2,seed=7,frame=128KiB,host_bandwidth=2GB"
    )

    assert with_variable(text) == Config(
        budget=12 << 30,
        policy="conv",
        host_budget=64 << 30,
        guard="on",
        workspace="planned",
        backend="host",
        dump="run.json",
        check=2,
        seed=7,
        frame=128 << 10,
        host_bandwidth=2 * 10**9,
    )


@pytest.mark.parametrize("text", ["", "1", " 1 "])
def test_one_and_nothing_mean_the_defaults(text: str) -> None:
    assert with_variable(text) == Config()


@pytest.mark.parametrize(
    ("text", "enabled"), [("", False), ("0", False), (" ", False), ("1", True)]
)
def test_zero_and_nothing_switch_it_off(text: str, enabled: bool) -> None:
    assert is_enabled(text) is enabled


def test_arguments_hold_over_the_variable_and_that_over_the_defaults() -> None:
    config = with_variable(
        "budget=1GiB,policy=all", budget="2GiB", policy=None, dump=Path("a.json")
    )

    assert (config.budget, config.policy, config.dump) == (2 << 30, "all", "a.json")
    assert config.backend == "auto"


def test_the_guard_has_a_variable_of_its_own_for_its_default() -> None:
    environment = {"VDNN_ALLOC_GUARD": "off"}

    assert configure({}, environment).guard == "off"
    assert configure({"guard": "on"}, environment).guard == "on"
    with pytest.raises(ConfigError, match="VDNN_ALLOC_GUARD=maybe"):
        configure({}, {"VDNN_ALLOC_GUARD": "maybe"})


def test_the_workspace_has_a_variable_of_its_own_for_its_default() -> None:
    environment = {"VDNN_ALLOC_WORKSPACE": "none"}

    assert configure({}, environment).workspace == "none"
    assert configure({"workspace": "stock"}, environment).workspace == "stock"
    with pytest.raises(ConfigError, match="VDNN_ALLOC_WORKSPACE=all"):
        configure({}, {"VDNN_ALLOC_WORKSPACE": "all"})


def test_a_number_in_python_is_bytes() -> None:
    assert with_variable("", budget=984).budget == 984


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bugdet=1GiB", ["bugdet", "budget", "host_bandwidth"]),
        ("budget=12", ["which unit"]),
        ("budget", ["key=value", "budget"]),
        ("budget=", ["key=value"]),
        ("budget=1GiB,budget=2GiB", ["twice"]),
        ("policy=magic", ["magic", *POLICIES]),
        ("backend=tpu", ["tpu", *BACKENDS]),
        ("guard=maybe", ["maybe", *GUARDS]),
        ("workspace=maybe", ["maybe", *WORKSPACES]),
        ("check=4", ["0 to 3"]),
        ("seed=-1", ["seed=-1", "zero or above"]),
        ("frame=-4KiB", ["frame=-4KiB", "above zero"]),
    ],
)
def test_a_bad_value_is_refused_with_what_there_is(text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        with_variable(text)
    sentence = str(caught.value)
    assert [word for word in words if word not in sentence] == []
    assert "\n" not in sentence


@pytest.mark.parametrize("value", [0, -1, True])
def test_a_python_number_that_is_no_size_is_refused(value: int) -> None:
    with pytest.raises(ConfigError, match="budget="):
        with_variable("", budget=value)


def test_the_check_level_of_the_environment_is_the_default() -> None:
    assert configure({}, {"VDNN_CHECK": "3"}).check == 3
    assert configure({"check": 1}, {"VDNN_CHECK": "3"}).check == 1


def test_a_description_reads_back_as_the_same_settings() -> None:
    config = with_variable("budget=12GiB,policy=all,seed=7")

    described = parse_settings(describe(config))

    assert configure(described, {}) == config
    assert describe(Config()) == "1"
