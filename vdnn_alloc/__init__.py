"""vdnn_alloc: train PyTorch models whose feature maps do not fit, within a byte budget.

Importing this changes nothing and does not import torch; install() or VDNN_ALLOC=... does.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from vdnn_alloc.errors import BudgetError, ConfigError, DriverError, InstallError, VdnnError

if TYPE_CHECKING:
    from vdnn_alloc.installation import dump, install, reset_peaks, stats

__version__ = "0.1.0"
__all__ = [
    "BudgetError",
    "ConfigError",
    "DriverError",
    "InstallError",
    "VdnnError",
    "__version__",
    "dump",
    "install",
    "reset_peaks",
    "stats",
]
_NEED_TORCH = ("dump", "install", "reset_peaks", "stats")


def __getattr__(name: str) -> object:
    if name in _NEED_TORCH:
        return getattr(importlib.import_module("vdnn_alloc.installation"), name)
    raise AttributeError(f"module 'vdnn_alloc' has no attribute {name!r}")


def _autoload() -> None:
    """Torch calls this at the end of its own import (entry point torch.backends)."""
    if os.environ.get("VDNN_ALLOC", "").strip() in ("", "0"):
        return
    try:
        importlib.import_module("vdnn_alloc.installation").install()
    except VdnnError as error:
        # Any other exception would surface as torch's "Failed to load the backend extension".
        raise SystemExit(f"vdnn_alloc: {error}") from None
