"""The conductor: hangs our hooks into torch, and answers what they ask.

What runs for every saved tensor and every module is in C++ (allocator/torch_glue/hooks.cpp); what
moves is the core's business. Here is what is seldom: a module met for the first time, another
episode, an error. Every hook does nothing in a forked child and nothing while Dynamo traces (it
would otherwise trace the hook into the user's graph).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.compiler import is_dynamo_compiling
from torch.optim.optimizer import register_optimizer_step_pre_hook

from vdnn_alloc.episodes import Episodes
from vdnn_alloc.errors import BudgetError
from vdnn_alloc.hook_stack import HookStack
from vdnn_alloc.layers import Layers
from vdnn_alloc.native import SAVE_EAGER, SAVES_INDICES, SAVES_SIGNS
from vdnn_alloc.plan import LayerKind, NativePolicy
from vdnn_alloc.plan_keeper import PlanKeeper
from vdnn_alloc.pool_indices import may_shrink, narrow, smallest_type, widen
from vdnn_alloc.rectified import revive, saves_signs, signs
from vdnn_alloc.saved_tensors import (
    backward_node,
    name_node,
    raise_detached,
    raise_modified,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.utils.hooks import RemovableHandle

    from vdnn_alloc.native import Glue, Native
    from vdnn_alloc.plan import Plan
    from vdnn_alloc.step_profile import StepProfile


_DEVICE = 0
"""Asked for what fits. Where it says so and another lacks room, something moves there, once."""


class Controller:
    """Lives as long as the process once attached."""

    def __init__(self, native: Native, glue: Glue, plan: Plan) -> None:
        self._native = native
        self._plan = plan
        self._episodes = Episodes()
        self._layers = Layers(native.name_layer)
        self._plans = PlanKeeper(native) if plan.is_refined else None
        self._handles: list[RemovableHandle] = []
        callbacks: dict[str, Callable[..., object]] = {
            "enter_root": self._enter_root,
            "open_episode": self._open_episode,
            "describe": self._describe,
            "name_node": name_node,
            "modified": raise_modified,
            "backward_node": backward_node,
            "detached": raise_detached,
            "failed": self._raise_failed,
            "narrow": narrow,
            "widen": widen,
            "signs": signs,
            "revive": revive,
        }
        outside = self._save_flags(LayerKind.OUTSIDE)
        self.hooks = glue.make_hooks(callbacks, outside, torch.empty(0, device="cpu"))
        self._shrunk_bytes = 0
        """When the latest episode began."""
        if plan.native_policy is not NativePolicy.PRESSURE:
            self.hooks.stop_shrinking()
        self._stack = HookStack(self.hooks.pack, self.hooks.unpack)

    def attach(self) -> None:
        """Hangs the hooks into torch: this thread at once, others at their first module call."""
        register = torch.nn.modules.module
        self._stack.ensure()
        self._handles = [
            register.register_module_forward_pre_hook(self._enter_module),
            register.register_module_forward_hook(self._leave_module, always_call=True),
            register_optimizer_step_pre_hook(self._before_step),
        ]

    @property
    def latest_profile(self) -> StepProfile | None:
        """Of the step that was recorded last; None: none was, or it moved and saved nothing."""
        return None if self._plans is None else self._plans.latest_profile

    def close(self) -> None:
        """Takes every hook out again; graphs that are alive keep ours and stay right."""
        for handle in self._handles:
            handle.remove()
        self._stack.close()

    def _enter_module(self, module: torch.nn.Module, args: tuple[object, ...]) -> None:
        if not is_dynamo_compiling() and self.hooks.enter(module):
            self.hooks.expect_indices(smallest_type(module, args))

    def _leave_module(self, module: torch.nn.Module, _args: object, output: object) -> None:
        if not is_dynamo_compiling():
            self.hooks.leave(module, output is None)  # it raised (or returns nothing)

    def _before_step(self, optimizer: object, args: object, kwargs: object) -> None:
        del optimizer, args, kwargs
        if not is_dynamo_compiling() and self.hooks.end_step():
            self._native.end_of_step()

    def _enter_root(self) -> None:
        self._stack.ensure()
        if torch.is_grad_enabled() and self.hooks.wants_opening:
            self._open_episode()

    def _open_episode(self) -> None:
        self._consider_shrinking()
        opening = self._episodes.open(self.hooks.begin_episode())
        if self._plans is not None:
            self._plans.before_episode(opening)
        self._native.begin_episode(opening.finished, opening.expected, opening.ranks)

    def _consider_shrinking(self) -> None:
        """The first steps shrink what they can, for nobody knows yet what fits; where the one that
        has ended would have fitted without, the next ones do not."""
        before, self._shrunk_bytes = self._shrunk_bytes, self.hooks.shrunk_bytes
        saved = self._shrunk_bytes - before
        if saved == 0 or self.hooks.has_moved:
            return
        stats = self._native.read_stats(_DEVICE)
        if stats["owned_bytes_max"] + saved <= stats["budget_bytes"]:
            self.hooks.stop_shrinking()

    def _describe(self, module: torch.nn.Module) -> tuple[int, int]:
        """The module's layer, and the flags of what it saves."""
        layer = self._layers.number(module)
        indices = SAVES_INDICES if may_shrink(module) else 0
        rectified = SAVES_SIGNS if saves_signs(module) else 0
        return layer, self._save_flags(self._layers.kinds[layer]) | indices | rectified

    def _save_flags(self, kind: LayerKind) -> int:
        return SAVE_EAGER if self._plan.is_eager(kind) else 0

    def _raise_failed(self, status: int) -> None:
        """What was saved cannot come back."""
        try:
            self._native.check(status)
        except BudgetError as error:
            raise torch.OutOfMemoryError(str(error)) from None
