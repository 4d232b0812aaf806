"""The conductor: torch's hooks in, calls of the core out. It decides when an episode opens and
where each thread is; what moves is the core's business.

Every hook is a small method that does nothing in a forked child and nothing while Dynamo traces
(it would otherwise trace the hook into the user's graph).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from vdnn_alloc.episodes import Episodes
from vdnn_alloc.hook_stack import HookStack
from vdnn_alloc.layers import OUTSIDE_LAYER, Layers, ThreadState
from vdnn_alloc.native import FORWARD, OUTSIDE
from vdnn_alloc.saved_tensors import SavedTensors

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from vdnn_alloc.native import Glue, Native
    from vdnn_alloc.plan import Plan


class Controller:
    """Lives as long as the process once attached."""

    def __init__(self, native: Native, glue: Glue, plan: Plan) -> None:
        self._native = native
        self._glue = glue
        self._thread = ThreadState()
        self._episodes = Episodes()
        self._layers = Layers(native.name_layer)
        self.saved_tensors = SavedTensors(
            glue, self._episodes, self._layers, self._thread, plan, self._open_episode
        )
        self._handles: list[RemovableHandle] = []
        self._stack: HookStack | None = None
        self._is_inert = False

    def attach(self) -> None:
        """Hangs the hooks into torch: this thread at once, others at their first module call."""
        register = torch.nn.modules.module
        self._stack = HookStack(self.saved_tensors.pack, self.saved_tensors.unpack)
        self._stack.ensure()
        self._handles = [
            register.register_module_forward_pre_hook(self._enter_module),
            register.register_module_forward_hook(self._leave_module, always_call=True),
            register_optimizer_step_pre_hook(self._before_step),
        ]
        os.register_at_fork(after_in_child=self._become_inert)

    def close(self) -> None:
        """Takes every hook out again; graphs that are alive keep ours and stay right."""
        for handle in self._handles:
            handle.remove()
        if self._stack is not None:
            self._stack.close()

    def _enter_module(self, module: torch.nn.Module, args: object) -> None:
        del args
        if torch.compiler.is_dynamo_compiling() or self._is_inert:
            return
        if not self._thread.stack:
            self._enter_root()
        layer = self._layers.number(module)
        self._thread.stack.append(layer)
        self._move_to(layer, FORWARD)

    def _leave_module(self, module: torch.nn.Module, args: object, output: object) -> None:
        """Also runs when the forward raised; a pre-hook of the user may have hidden its begin."""
        del args
        if torch.compiler.is_dynamo_compiling() or self._is_inert:
            return
        if output is None:  # it raised (or returns nothing): see vdnn_boundary
            self._move_to(OUTSIDE_LAYER, OUTSIDE)
        stack = self._thread.stack
        layer = self._layers.number(module)
        while layer in stack and stack.pop() != layer:
            pass
        if stack:
            self._move_to(stack[-1], FORWARD)
        else:
            self._move_to(OUTSIDE_LAYER, OUTSIDE)

    def _enter_root(self) -> None:
        assert self._stack is not None
        self._stack.ensure()
        if torch.is_grad_enabled() and self._episodes.wants_opening:
            self._open_episode()

    def _before_step(self, optimizer: object, args: object, kwargs: object) -> None:
        del optimizer, args, kwargs
        if torch.compiler.is_dynamo_compiling() or self._is_inert:
            return
        self._episodes.note_step()
        self._move_to(OUTSIDE_LAYER, OUTSIDE)
        self._native.end_of_step()

    def _open_episode(self) -> None:
        """Not inside a backward: what checkpoints recompute and double backwards save belongs to
        the episode that they are part of."""
        is_in_backward = torch._C._current_graph_task_id() != -1
        if is_in_backward and self._episodes.current is not None:
            return
        opening = self._episodes.open()
        self._native.begin_episode(opening.finished, opening.expected, opening.ranks)

    def _move_to(self, layer: int, phase: int) -> None:
        position = (layer, phase)
        if self._thread.position != position:
            self._thread.position = position
            self._glue.boundary(layer, phase)

    def _become_inert(self) -> None:
        self._is_inert = True
        self.saved_tensors.is_inert = True
        self._glue.become_inert()
