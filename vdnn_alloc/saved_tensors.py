"""What is said of a saved tensor that was modified: torch's own sentence, word for word.

Saved-tensor hooks switch off autograd's own check for in-place changes, so ours make it for every
tensor (allocator/torch_glue/packing.cpp). The text is here, for it is seldom needed and differs by
torch's version and mode.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_C: Any = torch._C
_autograd: Any = torch._C._autograd
_PythonNode: Any = torch.autograd.function.BackwardCFunction


def name_node(x: torch.Tensor) -> tuple[str, bool]:
    """The name of the node that x comes from, and whether all nodes of its C++ class have it."""
    node = x.grad_fn
    assert node is not None
    return node.name(), not isinstance(node, _PythonNode)


def backward_node() -> tuple[Any, bool]:
    """The node whose backward runs on this thread, or None, and whether it is Python's."""
    node = _C._current_autograd_node()
    return node, isinstance(node, _PythonNode)


def raise_detached() -> None:
    """Always raises.

    Raises:
        RuntimeError: autograd's sentence on an input that was detached in place.
    """
    raise RuntimeError(_torchs_words(_detach))


def raise_modified(
    alias: torch.Tensor,
    version: int,
    node: str | None,
    output: int,
    is_view: bool,
) -> None:
    """Always raises. `node` and `output` say where the tensor came from when it was saved.

    Raises:
        RuntimeError: autograd's sentence.
    """
    torchs = _torchs_text()
    hint = torchs.partition(" instead.")[2]
    origin = "" if node is None else _origin_text(node, output, torchs, is_view=is_view)
    raise RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace "
        f"operation: [{alias.type()} {list(alias.shape)}]{origin} is at version {alias._version}; "
        f"expected version {version} instead.{hint}"
    )


def _origin_text(node: str, output: int, torchs: str, *, is_view: bool) -> str:
    """A view whose base was modified has got another node by now."""
    if is_view:
        node, output = "AsStridedBackward0", 0
    if "ExpBackward0" not in torchs:  # some versions leave the ending out
        node = re.sub(r"Backward\d*$", "", node)
    return f", which is output {output} of {node},"


def _torchs_text() -> str:
    """What torch, in its version and mode, says of an exponential that was modified."""
    return _torchs_words(_modify)


def _modify(x: torch.Tensor) -> None:
    y: Any = x.exp()
    y.detach().add_(1)
    _ = y.grad_fn._saved_result


def _detach(x: torch.Tensor) -> None:
    y = x.exp()
    z = y * y
    y.detach_()
    torch.autograd.backward(z)


def _torchs_words(misuse: Callable[[torch.Tensor], None]) -> str:
    """What torch says of a misuse where no hooks are in force."""
    hooks: list[Any] = []
    while (pair := _autograd._top_saved_tensors_default_hooks(True)) is not None:
        hooks.append(pair)
        _autograd._pop_saved_tensors_default_hooks()
    try:
        with torch.enable_grad():
            misuse(torch.zeros((), device="cpu", requires_grad=True))
    except RuntimeError as error:
        return str(error)
    finally:
        for pack, unpack in reversed(hooks):
            _autograd._push_saved_tensors_default_hooks(pack, unpack)
    raise AssertionError("torch accepts what it used to reject")
