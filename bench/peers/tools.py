"""How each tool of the sweep is started: PyTorch's own ways, other people's, and ours.

Other people's code is loaded when a cell runs, from what is installed, or from a wheel in the
folder of --wheels; nothing of it is part of this project.
"""

from __future__ import annotations

import importlib
import logging
import sys
import tempfile
import types
import zipfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.autograd.graph import save_on_cpu

if TYPE_CHECKING:
    from torch import nn

    from bench.models import Scope, Workload

MIB = 1 << 20


class UnavailableError(Exception):
    """The tool is not installed, or not for this workload; the text says which."""


@dataclass(frozen=True)
class Subject:
    """What a tool is attached to."""

    model: nn.Module
    workload: Workload
    is_cuda: bool
    wheels: Path | None

    def block(self) -> type[nn.Module]:
        return self.workload.block(self.model)


@dataclass(frozen=True)
class Scopes:
    """What a step runs in."""

    forward: Scope = nullcontext
    step: Scope = nullcontext
    """Forward and backward."""


def _nothing(subject: Subject) -> Scopes:
    del subject
    return Scopes()


@dataclass(frozen=True)
class Tool:
    """One way to train in less memory."""

    attach: Callable[[Subject], Scopes] = _nothing
    ours: Mapping[str, str] | None = None
    """Arguments of vdnn_alloc.install(); None: PyTorch's own allocator."""
    allocator_settings: str = ""
    """Of PyTorch's allocator, as in PYTORCH_ALLOC_CONF."""

    @property
    def is_static(self) -> bool:
        """It does the same whatever the limit is."""
        return self.ours is None


def _checkpoint(subject: Subject) -> Scopes:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        CheckpointImpl,
        apply_activation_checkpointing,
        checkpoint_wrapper,
    )

    block = subject.block()
    apply_activation_checkpointing(
        subject.model,
        checkpoint_wrapper_fn=lambda module: checkpoint_wrapper(
            module, checkpoint_impl=CheckpointImpl.NO_REENTRANT
        ),
        check_fn=lambda module: isinstance(module, block),
    )
    return Scopes()


def _save_on_cpu(subject: Subject) -> Scopes:
    return Scopes(forward=lambda: save_on_cpu(pin_memory=subject.is_cuda))


def _offload(subject: Subject) -> Scopes:
    """Of transformers: checkpointing, with the layers' inputs on the host."""
    if not subject.workload.is_transformers:
        raise UnavailableError("for models of transformers alone")
    model: Any = subject.model
    enable = model.gradient_checkpointing_enable
    enable(gradient_checkpointing_kwargs={"use_reentrant": False}, offload=True)
    return Scopes()


def _trl(subject: Subject) -> Scopes:
    accelerate = _import("accelerate")
    accelerate.PartialState()  # its logger needs one
    trl = load_module(subject, "trl", "trl.models.activation_offloading")
    scope = trl.get_act_offloading_ctx_manager(subject.model, warn_if_no_head=False)
    return Scopes(step=lambda: scope)


def _torchtune(subject: Subject) -> Scopes:
    class Absent:
        """Stands for a class of torchao or torchtune that no model here has."""

    stubs = {
        "torchao": {"__version__": "9.9"},
        "torchao.dtypes": {},
        "torchao.dtypes.nf4tensor": {"NF4Tensor": Absent},
        "torchtune": {},
        "torchtune.modules": {"TiedLinear": Absent},
        "torchtune.utils": {"get_logger": lambda *_: logging.getLogger("torchtune")},
    }
    name = "torchtune.training._activation_offloading"
    torchtune = load_module(subject, "torchtune", name, stubs)
    return Scopes(forward=lambda: torchtune.OffloadActivations(use_pin_memory=subject.is_cuda))


def _trainstream(subject: Subject) -> Scopes:
    """Activations alone; it compiles itself at its first import."""
    try:
        hooks = importlib.import_module("trainstream.hooks")
    except ModuleNotFoundError:
        folder = tempfile.mkdtemp(prefix="trainstream-")
        zipfile.ZipFile(_wheel(subject, "trainstream")).extractall(folder)
        sys.path.insert(0, folder)
        hooks = importlib.import_module("trainstream.hooks")
    block = subject.block()
    blocks = [module for module in subject.model.modules() if isinstance(module, block)]
    hooks.ActivationOffloader(subject.model, blocks, offload=1.0, min_bytes=MIB, prefetch_depth=1)
    return Scopes()


TOOLS = {
    "stock": Tool(),
    "vdnn_alloc": Tool(ours={}),
    "vdnn_alloc+planned": Tool(ours={"workspace": "planned"}),
    "vdnn_alloc+checkpoint": Tool(_checkpoint, ours={}),
    "checkpoint": Tool(_checkpoint),
    "save_on_cpu": Tool(_save_on_cpu),
    "expandable_segments": Tool(allocator_settings="expandable_segments:True"),
    "offload": Tool(_offload),
    "trl": Tool(_trl),
    "torchtune": Tool(_torchtune),
    "trainstream": Tool(_trainstream),
}
OWN = ("stock", *(name for name, tool in TOOLS.items() if not tool.is_static))
"""What may end by nothing but a lack of memory."""


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UnavailableError(f"not installed: {error.name}") from None


def _wheel(subject: Subject, package: str) -> Path:
    found = sorted(subject.wheels.glob(f"{package}-*.whl")) if subject.wheels else []
    if not found:
        raise UnavailableError(f"not installed: {package}, and no wheel of it in --wheels")
    return found[-1]


def load_module(
    subject: Subject, package: str, name: str, stubs: Mapping[str, Mapping[str, object]] = {}
) -> Any:
    """A module of a peer: the installed one, or its one file out of the wheel, with stubs in place
    of what that file imports and does not need here."""
    try:
        return importlib.import_module(name)
    except ImportError:
        wheel = _wheel(subject, package)
    for stub, attributes in stubs.items():
        module = types.ModuleType(stub)
        module.__dict__.update(attributes, __path__=[])
        sys.modules[stub] = module
    member = name.replace(".", "/") + ".py"
    module = types.ModuleType(name)
    sys.modules[name] = module
    source = zipfile.ZipFile(wheel).read(member).decode()
    exec(compile(source, member, "exec"), module.__dict__)
    return module
