"""Our place on each thread's stack of saved-tensor hooks.

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
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_autograd: Any = torch._C._autograd


class _Aside(threading.local):
    """Whether our pair has stepped aside on this thread."""

    value = False


class HookStack:
    """Pushes a pair of saved-tensor hooks, thread by thread, and makes room when it must."""

    def __init__(
        self,
        pack: Callable[[torch.Tensor], Any],
        unpack: Callable[[Any], torch.Tensor],
    ) -> None:
        self._pack = pack
        self._unpack = unpack
        self._aside = _Aside()
        self._torch_disable = _autograd._saved_tensors_hooks_disable
        self._torch_enable = _autograd._saved_tensors_hooks_enable
        _autograd._saved_tensors_hooks_disable = self._disable
        _autograd._saved_tensors_hooks_enable = self._enable

    def ensure(self) -> None:
        """Pushes our pair on this thread, unless a pair is there or none may be."""
        is_free = _autograd._top_saved_tensors_default_hooks(True) is None
        if is_free and _autograd._saved_tensors_hooks_get_disabled_error_message() is None:
            _autograd._push_saved_tensors_default_hooks(self._pack, self._unpack)

    def close(self) -> None:
        """Takes our pair off this thread and gives torch its functions back."""
        if self._is_on_top():
            _autograd._pop_saved_tensors_default_hooks()
        _autograd._saved_tensors_hooks_disable = self._torch_disable
        _autograd._saved_tensors_hooks_enable = self._torch_enable

    def _is_on_top(self) -> bool:
        top = _autograd._top_saved_tensors_default_hooks(True)
        return top is not None and top[0] is self._pack

    def _disable(self, message: str, fail_if_non_empty: bool = True) -> None:
        if fail_if_non_empty and self._is_on_top():
            _autograd._pop_saved_tensors_default_hooks()
            self._aside.value = True
        self._torch_disable(message, fail_if_non_empty)

    def _enable(self) -> None:
        self._torch_enable()
        if self._aside.value:
            self._aside.value = False
            _autograd._push_saved_tensors_default_hooks(self._pack, self._unpack)
