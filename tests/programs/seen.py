"""What a program saw while it trained, exact to the bit, in words that can be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn


def raw(tensor: Tensor) -> np.ndarray:
    """A copy of the tensor's bytes in numpy's memory. The tensor's own never meets numpy, for that
    would change it: a storage that numpy shares can no longer be resized."""
    copied = np.empty(tensor.numel() * tensor.element_size(), dtype=np.uint8)
    if tensor.numel():
        place = torch.from_numpy(copied).view(tensor.dtype).view(tensor.shape)
        place.copy_(tensor.detach())
    return copied


def exact(value: object) -> object:
    """The value itself, or for a tensor a text: its type, its shape and the hash of its bits."""
    if isinstance(value, Tensor):
        return _exact_tensor(value)
    if isinstance(value, float):
        return value.hex()  # NaN equals NaN, and 0.0 is not -0.0
    if isinstance(value, Mapping):
        return {str(key): exact(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [exact(item) for item in value]
    return value if isinstance(value, str | bytes | int | None) else repr(value)


def _exact_tensor(tensor: Tensor) -> object:
    if tensor.is_nested:
        return [exact(part) for part in tensor.unbind()]
    if tensor.layout == torch.sparse_coo:
        whole = tensor.coalesce()
        return [exact(whole.indices()), exact(whole.values())]
    bits = hashlib.sha256(raw(tensor)).hexdigest()[:32]
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{kind}{list(tensor.shape)} {bits}"


class Seen(dict[str, list[object]]):
    """Everything noted, by name, in order. Nothing in it is torch's memory."""

    def note(self, name: str, *values: object) -> None:
        """Adds values under a name."""
        self.setdefault(name, []).extend(exact(value) for value in values)

    def step(self, model: nn.Module, loss: Tensor) -> None:
        """The loss, and every gradient as it is now."""
        self.note("loss", loss)
        self.gradients(model)

    def gradients(self, model: nn.Module) -> None:
        """Those that exist, by the parameter's name."""
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                self.note(f"gradient of {name}", parameter.grad)

    def state(self, *holders: nn.Module | torch.optim.Optimizer) -> None:
        """Parameters, buffers, and what optimizers remember."""
        for number, holder in enumerate(holders):
            self.note(f"state {number}", holder.state_dict())

    @contextmanager
    def catching(self, *types: type[BaseException]) -> Iterator[None]:
        """Notes which exception ended the block, if one did, and hides it."""
        try:
            yield
        except types as error:
            self.note("raised", f"{type(error).__name__}: {error}")
        else:
            self.note("raised", "nothing")


def differences(ours: Seen, stock: Seen) -> list[str]:
    """Every name under which two runs of a program saw something else, and where first."""
    found = [f"{name}: on one side only" for name in sorted(ours.keys() ^ stock.keys())]
    for name in sorted(ours.keys() & stock.keys()):
        mine, theirs = ours[name], stock[name]
        if len(mine) != len(theirs):
            found.append(f"{name}: {len(mine)} values against {len(theirs)}")
            continue
        unequal = [at for at in range(len(mine)) if mine[at] != theirs[at]]
        if unequal:
            at = unequal[0]
            found.append(
                f"{name}: {len(unequal)} of {len(mine)} differ; number {at} is {mine[at]!r} "
                f"against {theirs[at]!r}"
            )
    return found
