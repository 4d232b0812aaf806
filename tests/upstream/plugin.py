"""A plugin of pytest that installs vdnn_alloc, as VDNN_ALLOC says, before any test is imported."""

from __future__ import annotations

import vdnn_alloc

vdnn_alloc.install()
