"""The policies by the names that users write; one file each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vdnn_alloc.policies.dynamic import Dynamic
from vdnn_alloc.policies.offload_all import OffloadAll
from vdnn_alloc.policies.offload_conv import OffloadConv
from vdnn_alloc.policies.offload_none import OffloadNone

if TYPE_CHECKING:
    from vdnn_alloc.plan import Policy

POLICIES: dict[str, Policy] = {
    "none": OffloadNone(),
    "all": OffloadAll(),
    "conv": OffloadConv(),
    "dyn": Dynamic(),
}
