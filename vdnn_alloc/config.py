"""Settings: arguments over the VDNN_ALLOC environment variable over defaults.

VDNN_ALLOC="budget=12GiB,policy=dyn,host_budget=64GiB,backend=auto,dump=run.json"

Unset, empty or 0 means: vdnn_alloc does nothing. 1 means: on, with defaults.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from vdnn_alloc.errors import ConfigError
from vdnn_alloc.policies import POLICIES
from vdnn_alloc.units import format_bytes, parse_bytes, require_positive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

VARIABLE = "VDNN_ALLOC"
_GUARD_VARIABLE = "VDNN_ALLOC_GUARD"
_WORKSPACE_VARIABLE = "VDNN_ALLOC_WORKSPACE"
BACKENDS = ("auto", "host", "cuda")
GUARDS = ("auto", "on", "off")
WORKSPACES = ("stock", "none", "planned")


@dataclass(frozen=True)
class Config:
    """What the user asked for. None means: whatever install() finds best on this machine."""

    budget: int | None = None
    """Device bytes per device, never passed. None: what is free now, less 5 %."""
    policy: str = "dyn"
    """A name in vdnn_alloc.policies."""
    host_budget: int | None = None
    """Page-locked host bytes in all. None: 80 % of what the machine and its cgroup leave."""
    guard: str = "auto"
    """Whether operators are watched, so that tensors which the program holds may leave too: "on",
    "off", or "auto": where the budget is short without (VDNN_ALLOC_GUARD in the environment is the
    default)."""
    workspace: str = "stock"
    """What a convolution of cuDNN may take for itself while it runs. "stock": what it asks for, by
    eviction if need be; "none": nothing, where cudnn.benchmark chooses its engine; "planned": not
    what would push out more than it is worth (VDNN_ALLOC_WORKSPACE in the environment is the
    default)."""
    backend: str = "auto"
    """"cuda", "host" (a simulated device under CPU tensors), or "auto": cuda where there is one."""
    dump: str | None = None
    """Where the statistics are written at exit."""
    check: int = 0
    """0 to 3: how much the core checks itself (VDNN_CHECK in the environment is the default)."""
    seed: int = 0
    """Host backend: draws how late the simulated streams run. 0: not late."""
    frame: int = 0
    """Host backend: bytes of one frame. 0: budget / 512, at least 64 KiB."""
    host_bandwidth: int = 0
    """Host backend: bytes per second of each copy direction. 0: as fast as memcpy."""


def configure(
    arguments: Mapping[str, object], environment: Mapping[str, str] | None = None
) -> Config:
    """The settings that hold for a call of install(**arguments); None is "not given".

    Raises:
        ConfigError: a key or value that does not exist.
    """
    environment = os.environ if environment is None else environment
    settings = parse_settings(environment.get(VARIABLE, ""))
    given = {key: value for key, value in arguments.items() if value is not None}
    defaults = Config(
        check=_check_default(environment),
        guard=_parse_guard(environment.get(_GUARD_VARIABLE) or "auto", _GUARD_VARIABLE),
        workspace=_parse_workspace(
            environment.get(_WORKSPACE_VARIABLE) or "stock", _WORKSPACE_VARIABLE
        ),
    )
    return replace(defaults, **_parse_all({**settings, **given}))


def is_enabled(text: str) -> bool:
    """Whether VDNN_ALLOC=text asks for vdnn_alloc at all."""
    return text.strip() not in ("", "0")


def parse_settings(text: str) -> dict[str, str]:
    """The key=value pairs of VDNN_ALLOC, unparsed."""
    if not is_enabled(text) or text.strip() == "1":
        return {}
    pairs = [pair.strip() for pair in text.split(",") if pair.strip()]
    settings: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not value:
            raise ConfigError(f"{VARIABLE}: {pair!r} is no key=value; keys are {_key_list()}")
        if key in settings:
            raise ConfigError(f"{VARIABLE}: {key} is given twice")
        settings[key] = value
    return settings


def describe(config: Config) -> str:
    """The settings that differ from the defaults, as VDNN_ALLOC would be written."""
    plain = Config()
    parts = [
        f"{field.name}={_show(getattr(config, field.name))}"
        for field in fields(Config)
        if getattr(config, field.name) != getattr(plain, field.name)
    ]
    return ",".join(parts) or "1"


def _show(value: object) -> str:
    is_size = isinstance(value, int) and value >= 1024
    return format_bytes(float(str(value))).replace(" ", "") if is_size else str(value)


def _parse_all(settings: Mapping[str, object]) -> dict[str, Any]:
    unknown = [key for key in settings if key not in _PARSERS]
    if unknown:
        raise ConfigError(f"unknown key {unknown[0]!r}; keys are {_key_list()}")
    return {key: _PARSERS[key](value, key) for key, value in settings.items()}


def _parse_size(value: object, key: str) -> int:
    """Text needs a unit; an int from Python code is bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        return require_positive(value, key, value)
    return parse_bytes(str(value), key)


def _parse_count(value: object, key: str) -> int:
    text = str(value)
    if not text.isdecimal():
        raise ConfigError(f"{key}={text}: must be a whole number, zero or above")
    return int(text)


def _parse_check(value: object, key: str) -> int:
    level = _parse_count(value, key)
    if level > 3:
        raise ConfigError(f"{key}={level}: levels are 0 to 3")
    return level


def _parse_policy(value: object, key: str) -> str:
    if value not in POLICIES:
        raise ConfigError(f"{key}={value}: no such policy; there are {', '.join(POLICIES)}")
    return str(value)


def _parse_backend(value: object, key: str) -> str:
    if value not in BACKENDS:
        raise ConfigError(f"{key}={value}: no such backend; there are {', '.join(BACKENDS)}")
    return str(value)


def _parse_guard(value: object, key: str) -> str:
    if value not in GUARDS:
        raise ConfigError(f"{key}={value}: no such choice; there are {', '.join(GUARDS)}")
    return str(value)


def _parse_workspace(value: object, key: str) -> str:
    if value not in WORKSPACES:
        raise ConfigError(f"{key}={value}: no such choice; there are {', '.join(WORKSPACES)}")
    return str(value)


def _parse_path(value: object, key: str) -> str:
    del key  # any text is a path; whether it can be written shows at exit
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


_PARSERS: dict[str, Callable[[object, str], object]] = {
    "budget": _parse_size,
    "policy": _parse_policy,
    "host_budget": _parse_size,
    "guard": _parse_guard,
    "workspace": _parse_workspace,
    "backend": _parse_backend,
    "dump": _parse_path,
    "check": _parse_check,
    "seed": _parse_count,
    "frame": _parse_size,
    "host_bandwidth": _parse_size,
}


def _key_list() -> str:
    return ", ".join(_PARSERS)


def _check_default(environment: Mapping[str, str]) -> int:
    return _parse_check(environment.get("VDNN_CHECK") or 0, "VDNN_CHECK")
