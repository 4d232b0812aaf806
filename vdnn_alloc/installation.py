"""install() and what can be asked of an installed vdnn_alloc.

The order is what keeps a failure harmless: settings, libraries and budgets are checked first, then
the core starts, and only then does torch get its new allocator and its hooks.
"""

from __future__ import annotations

import atexit
import os
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from vdnn_alloc import __version__
from vdnn_alloc.border import Border, choose_border
from vdnn_alloc.budgets import Budgets, Room, decide
from vdnn_alloc.config import Config, configure, describe
from vdnn_alloc.controller import Controller
from vdnn_alloc.errors import InstallError
from vdnn_alloc.exit_report import exit_sentence, say, start_sentence
from vdnn_alloc.host_memory import available_bytes
from vdnn_alloc.native import (
    BACKENDS,
    GUARDS,
    WORKSPACES,
    Glue,
    Native,
    NativeConfig,
    find_library,
)
from vdnn_alloc.policies import POLICIES
from vdnn_alloc.reports import json_file
from vdnn_alloc.snapshot import Stats, read_stats

if TYPE_CHECKING:
    from pathlib import Path

_DEVICE = 0  # of the host backend, and the one that totals are read from


@dataclass(frozen=True)
class Installation:
    """The one allocator of this process. It is never taken down: tensors hold its memory."""

    config: Config
    border: Border
    native: Native
    glue: Glue
    controller: Controller
    process: int


_installation: Installation | None = None


def install(
    budget: str | int | None = None,
    *,
    policy: str | None = None,
    host_budget: str | int | None = None,
    guard: str | None = None,
    workspace: str | None = None,
    backend: str | None = None,
    dump: str | os.PathLike[str] | None = None,
    check: int | None = None,
    seed: int | None = None,
    frame: str | int | None = None,
    host_bandwidth: str | int | None = None,
) -> None:
    """Makes vdnn_alloc torch's allocator: from now on training stays within `budget`.

    Call it before the first tensor on the device. Arguments hold over VDNN_ALLOC in the
    environment, and that over the defaults; each is documented in vdnn_alloc.config.Config. A size
    is text with a unit ("12GiB"), or an int, which is bytes. Installing the same again does
    nothing.

    Raises:
        ConfigError: a setting that does not exist or cannot be given here.
        InstallError: it cannot be installed here, or is installed with other settings.
    """
    config = configure(
        {
            "budget": budget,
            "policy": policy,
            "host_budget": host_budget,
            "guard": guard,
            "workspace": workspace,
            "backend": backend,
            "dump": dump,
            "check": check,
            "seed": seed,
            "frame": frame,
            "host_bandwidth": host_bandwidth,
        }
    )
    if _installation is not None:
        _require_same(_installation, config)
        return
    _install(config)


def installation() -> Installation:
    """The installed allocator.

    Raises:
        InstallError: there is none, or this is a forked child, which has torch's own.
    """
    if _installation is None:
        raise InstallError("vdnn_alloc is not installed; call install() or set VDNN_ALLOC=1")
    if _installation.process != os.getpid():
        raise InstallError("vdnn_alloc does nothing in a forked child; ask its parent")
    return _installation


def stats(device: int = _DEVICE) -> Stats:
    """The counters of one device now; vdnn_alloc.snapshot.Stats documents each."""
    return _read(installation(), device)


def reset_peaks(device: int = _DEVICE) -> None:
    """All `_max` values and averages begin again from what is now."""
    installation().native.reset_peaks(device)


def dump(path: str | Path) -> None:
    """Writes the statistics as JSON.

    Raises:
        OSError: the path cannot be written.
    """
    json_file.write(path, _document(installation()))


def _install(config: Config) -> None:
    global _installation
    border = choose_border(config.backend)
    core = Native(find_library())
    glue = border.load_glue(core)
    budgets = decide(config.budget, config.host_budget, _room(config, border, core))
    plan = POLICIES[config.policy].choose()
    core.start(_native_config(config, border, budgets))
    border.install(glue)
    controller = Controller(core, glue, plan)
    controller.attach()
    _installation = Installation(config, border, core, glue, controller, os.getpid())
    atexit.register(_at_exit)
    say(start_sentence(border.backend, config.policy, budgets.device, budgets.host))


def _room(config: Config, border: Border, core: Native) -> Room:
    return Room(
        device_free=border.free_bytes(),
        host_left=available_bytes(),
        minimum_budget=core.minimum_budget(border.backend, config.frame),
        shares_host_memory=border.shares_host_memory,
    )


def _native_config(config: Config, border: Border, budgets: Budgets) -> NativeConfig:
    return NativeConfig(
        backend=BACKENDS[border.backend],
        policy=POLICIES[config.policy].choose().native_policy,
        check=config.check,
        guard=GUARDS[config.guard],
        workspace=WORKSPACES[config.workspace],
        budget_bytes=budgets.device,
        host_budget_bytes=budgets.host,
        frame_bytes=config.frame,
        seed=config.seed,
        host_bytes_per_second=config.host_bandwidth,
    )


def _require_same(installed: Installation, config: Config) -> None:
    if installed.config != config:
        raise InstallError(
            f"vdnn_alloc is installed with {describe(installed.config)}, and a process can have "
            f"it once only; {describe(config)} was asked for"
        )


def _document(installed: Installation) -> str:
    device = {**installed.border.describe(), "torch": torch.__version__}
    configuration = {**asdict(installed.config), "vdnn_alloc": __version__}
    return json_file.build(_read(installed, _DEVICE), configuration, device)


def _read(installed: Installation, device: int) -> Stats:
    return read_stats(installed.native, device, installed.controller.hooks.shrunk_bytes)


def _at_exit() -> None:
    """The report and the dump. Whatever fails here is said, and the exit goes on."""
    installed = _installation
    if installed is None or installed.process != os.getpid():
        return
    say(exit_sentence(_read(installed, _DEVICE), is_compiled=has_compiled()))
    if installed.config.dump is None:
        return
    try:
        json_file.write(installed.config.dump, _document(installed))
    except OSError as error:
        say(f"dump={installed.config.dump} was not written: {error.strerror or error}")


def has_compiled() -> bool:
    """Whether Dynamo made a graph in this process."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and dynamo.counters["stats"]["unique_graphs"] > 0
