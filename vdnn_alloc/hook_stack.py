"""Our place on each thread's stack of saved-tensor hooks, and what else torch must not notice of
the hooks that are always on: stand-ins for functions that it looks up at each call.

Note [Stepping aside]
torch.func.grad, vjp, jacrev and hessian refuse to run while any saved-tensor hook is pushed, and
so does torch.autograd.graph.disable_saved_tensors_hooks for users. All of them, in eager code and
in graphs that Dynamo captured, end in two C functions: `_saved_tensors_hooks_disable(message)` and,
when the outermost region ends, `_saved_tensors_hooks_enable()`. Both are looked up in
torch._C._autograd at each call, so we stand in for them there: disable first takes our pair off
if it is on top of this thread's stack, enable puts it back. What is saved in between does not
move, and is right. Hooks of the user are left alone: they make torch raise as they always do.
(The second argument false, as compiled regions pass it, means that hooks may stay; so ours do.)
The public Python functions keep their identity, which Dynamo recognises them by. torch 2.11-2.14.

Note [Tracing]
torch.jit.trace and make_fx record every operator of the thread, pack's among them. A trace drops
them as dead code, but they have moved the numbers in its names, and its check compares names: so
another pack is pushed there, which the tracer does not see. In a graph of make_fx they stay, and
tensors that it did not see are constants to it: so nothing of ours is pushed there.

Note [Saved parameters]
Under hooks ctx.saved_tensors of the user's own functions are new tensors. For a parameter that is
too little: its attributes are gone (`weight.main_grad`, which large trainers add gradients to). The
node that will accumulate its gradient knows the very parameter, so we hand that out.

Note [Global hooks]
A module that torch.compile has wrapped warns at each call that global module hooks would run once
more. Ours may; so only hooks of others are counted there. (Only that warning asks.)
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_core: Any = torch._C
_autograd: Any = _core._autograd
_PROXIES: Any = _core._TorchDispatchModeKey.PROXY
_modules: Any = torch.nn.modules.module
_Context: Any = torch.autograd.function.BackwardCFunction
_torch_saved_tensors: Any = _core._FunctionBase.saved_tensors


class _Aside(threading.local):
    """Whether our pair has stepped aside on this thread."""

    value = False


class HookStack:
    """Pushes a pair of saved-tensor hooks, thread by thread, and makes room when it must."""

    def __init__(
        self,
        pack: Callable[[torch.Tensor], Any] | None,
        unpack: Callable[[Any], torch.Tensor] | None,
    ) -> None:
        """Without a pair nothing is pushed."""
        self._pack = pack
        self._untraced_pack = self._pack_untraced  # one object, so that it can be recognised
        self._unpack = unpack
        self._aside = _Aside()
        self._torch_disable = _autograd._saved_tensors_hooks_disable
        self._torch_enable = _autograd._saved_tensors_hooks_enable
        self._torch_has_global_hook = _modules._has_any_global_hook
        _autograd._saved_tensors_hooks_disable = self._disable
        _autograd._saved_tensors_hooks_enable = self._enable
        _modules._has_any_global_hook = _others_have_global_hooks
        _Context.saved_tensors = property(_saved_tensors)

    def ensure(self) -> None:
        """Pushes our pair on this thread, unless a pair is there or none may be."""
        pack = self._wanted_pack()
        top = _autograd._top_saved_tensors_default_hooks(True)
        if top is not None and top[0] is pack:
            return
        self._step_down()
        if pack is not None and self._may_push():
            _autograd._push_saved_tensors_default_hooks(pack, self._unpack)

    def close(self) -> None:
        """Takes our pair off this thread and gives torch its functions back."""
        self._step_down()
        _autograd._saved_tensors_hooks_disable = self._torch_disable
        _autograd._saved_tensors_hooks_enable = self._torch_enable
        _modules._has_any_global_hook = self._torch_has_global_hook
        del _Context.saved_tensors

    def _wanted_pack(self) -> Callable[[torch.Tensor], Any] | None:
        """None: not now. See Note [Tracing]."""
        if _core._get_dispatch_mode(_PROXIES) is not None:
            return None
        if self._pack is None:
            return None
        return self._untraced_pack if _core._is_tracing() else self._pack

    def _may_push(self) -> bool:
        is_free = _autograd._top_saved_tensors_default_hooks(True) is None
        is_allowed = _autograd._saved_tensors_hooks_get_disabled_error_message() is None
        return is_free and is_allowed

    def _pack_untraced(self, x: torch.Tensor) -> object:
        tracing = _core._get_tracing_state()
        _core._set_tracing_state(None)
        assert self._pack is not None
        try:
            return self._pack(x)
        finally:
            _core._set_tracing_state(tracing)

    def _step_down(self) -> bool:
        """Takes our pair off if it is on top; whether it was."""
        if self._is_on_top():
            _autograd._pop_saved_tensors_default_hooks()
            return True
        return False

    def _is_on_top(self) -> bool:
        top = _autograd._top_saved_tensors_default_hooks(True)
        return top is not None and top[0] in (self._pack, self._untraced_pack)

    def _disable(self, message: str, fail_if_non_empty: bool = True) -> None:
        if fail_if_non_empty and self._step_down():
            self._aside.value = True
        self._torch_disable(message, fail_if_non_empty)

    def _enable(self) -> None:
        self._torch_enable()
        if self._aside.value:
            self._aside.value = False
            _autograd._push_saved_tensors_default_hooks(self._pack, self._unpack)


def _others_have_global_hooks() -> bool:
    """See Note [Global hooks]."""
    hooks = (
        _modules._global_backward_pre_hooks,
        _modules._global_backward_hooks,
        _modules._global_forward_pre_hooks,
        _modules._global_forward_hooks,
    )
    return any(
        not str(getattr(hook, "__module__", "")).startswith("vdnn_alloc.")
        for registered in hooks
        for hook in registered.values()
    )


def _saved_tensors(context: Any) -> tuple[torch.Tensor | None, ...]:
    """See Note [Saved parameters]."""
    saved: tuple[torch.Tensor | None, ...] = _torch_saved_tensors.__get__(context)
    if not any(x is not None and x.is_leaf and x.requires_grad for x in saved):
        return saved
    parameters = [
        node.variable
        for node, _ in context.next_functions
        if isinstance(getattr(node, "variable", None), torch.nn.Parameter)
    ]
    return tuple(_as_parameter(x, parameters) for x in saved)


def _as_parameter(
    x: torch.Tensor | None, parameters: list[torch.nn.Parameter]
) -> torch.Tensor | None:
    """The one that x shows whole; x itself if there is none."""
    if type(x) is not torch.Tensor or not x.is_leaf or not x.requires_grad:
        return x
    same = {
        id(parameter): parameter
        for parameter in parameters
        if parameter.data_ptr() == x.data_ptr() and parameter.shape == x.shape
    }
    return next(iter(same.values())) if len(same) == 1 else x
