"""The exceptions of vdnn_alloc; each carries one sentence that says what to do."""

from __future__ import annotations


class VdnnError(RuntimeError):
    """Base of everything that vdnn_alloc raises itself."""


class ConfigError(VdnnError, ValueError):
    """A setting that makes no sense, or that this machine cannot give."""


class InstallError(VdnnError):
    """vdnn_alloc cannot become torch's allocator here; nothing has been changed."""


class DriverError(VdnnError):
    """The device, its driver or the core refused a call."""


class BudgetError(VdnnError):
    """The budget cannot serve a request; users see it as torch.OutOfMemoryError."""
