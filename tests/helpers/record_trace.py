"""Records what a training step of a real model asks of an allocator, for tests/native to replay.

    python -m tests.helpers.record_trace vgg tests/native/traces/vgg.txt

The file is text, one event a line; every number but `bytes` and `index` names a storage:

    alloc ID BYTES       a storage is born, and the program holds it
    drop ID              the program lets go of it (once for its birth, once for each `use`)
    op READS WRITES      an operator: storages with commas, or - for none
    save INDEX ID        autograd saves it; from here on the graph holds it too
    use INDEX            autograd asks for it; the program holds it once more
    unsave INDEX         the graph lets go
    layer NUMBER         a module begins (0: none)
    step                 what is above happened once, what follows is one step of a loop
    optimizer            the optimizer's step begins
    becomes NEW OLD      in the next round, what is NEW now plays the part of OLD
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SEED = 7


class Recorder(TorchDispatchMode):
    """Gives every storage a number and writes down what happens to it."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.sizes: dict[int, int] = {}
        self._ids: dict[int, int] = {}
        self._finalizers: list[weakref.finalize[Any, Any]] = []
        self._saves = 0
        self._is_paused = False

    def write(self, *fields: object) -> None:
        self.lines.append(" ".join(str(field) for field in fields))

    def begin_step(self) -> None:
        self._saves = 0
        self.write("step")

    def close(self) -> None:
        """What dies from now on is not part of the step."""
        for finalizer in self._finalizers:
            finalizer.detach()

    def number(self, tensor: torch.Tensor) -> int:
        """The storage's number; a storage that was never seen is born now."""
        key = tensor.untyped_storage()._cdata
        if key not in self._ids:
            storage = len(self.sizes) + 1
            self.sizes[storage] = tensor.untyped_storage().nbytes()
            self.write("alloc", storage, self.sizes[storage])
            self._follow(tensor, storage)
        return self._ids[key]

    def _follow(self, tensor: torch.Tensor, storage: int) -> None:
        untyped = tensor.untyped_storage()
        self._ids[untyped._cdata] = storage
        self._finalizers.append(weakref.finalize(untyped, self._drop, untyped._cdata, storage))

    def _drop(self, key: int, storage: int) -> None:
        del self._ids[key]
        self.write("drop", storage)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if self._is_paused:
            return func(*args, **kwargs)
        reads = self._numbers((args, kwargs))
        writes = self._numbers(_written(func, args, kwargs))
        out = func(*args, **kwargs)
        writes += [n for n in self._numbers(out) if n not in reads and n not in writes]
        if writes or not isinstance(out, torch.Tensor):
            self.write("op", _listed(reads), _listed(writes))
        return out

    def _numbers(self, tree: object) -> list[int]:
        tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
        filled = [t for t in tensors if t.untyped_storage().nbytes() > 0]
        return list(dict.fromkeys(self.number(t) for t in filled))

    def pack(self, x: torch.Tensor) -> Saved | torch.Tensor:
        """Keeps a copy, so that the death of x's storage shows when the program lets go."""
        is_parameter = isinstance(x, nn.Parameter) or isinstance(x._base, nn.Parameter)
        if is_parameter or x.untyped_storage().nbytes() == 0:
            return x
        saved = Saved(self, self._saves, self.number(x), self._copy(x))
        self._saves += 1
        self.write("save", saved.index, saved.storage)
        return saved

    def unpack(self, saved: Saved | torch.Tensor) -> torch.Tensor:
        if isinstance(saved, torch.Tensor):
            return saved
        self.write("use", saved.index)
        fresh = self._copy(saved.copy)
        self._follow(fresh, saved.storage)
        return fresh

    def _copy(self, x: torch.Tensor) -> torch.Tensor:
        self._is_paused = True
        try:
            return x.detach().clone()
        finally:
            self._is_paused = False


class Saved:
    """What autograd keeps in place of one saved tensor."""

    def __init__(self, recorder: Recorder, index: int, storage: int, copy: torch.Tensor) -> None:
        self.index, self.storage, self.copy = index, storage, copy
        recorder._finalizers.append(weakref.finalize(self, recorder.write, "unsave", index))


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    written = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(args[place] if place < len(args) else kwargs.get(argument.name))
    return written


def _listed(numbers: list[int]) -> str:
    return ",".join(str(n) for n in numbers) or "-"


# --- models: many small maps, few weights -------------------------------------------------------


def conv_block(channels: int, count: int) -> Iterator[nn.Module]:
    for _ in range(count):
        yield nn.Conv2d(channels, channels, 3, padding=1)
        yield nn.ReLU(inplace=True)


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.body(x)
        out += x
        return torch.relu_(out)


class Recurrent(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(width, width)
        self.out = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        assert state is not None
        return self.out(state[0])


def vgg() -> tuple[nn.Module, torch.Size]:
    layers = [nn.Conv2d(3, 8, 3, padding=1), *conv_block(8, 14), nn.MaxPool2d(2)]
    layers += [*conv_block(8, 6), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 8 * 8, 10))
    return model, torch.Size((2, 3, 32, 32))


def resnet() -> tuple[nn.Module, torch.Size]:
    blocks = [Residual(8) for _ in range(7)]
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )
    return model, torch.Size((2, 3, 32, 32))


def transformer() -> tuple[nn.Module, torch.Size]:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    return nn.Sequential(encoder, nn.Flatten(), nn.Linear(32 * 24, 10)), torch.Size((8, 24, 32))


def lstm() -> tuple[nn.Module, torch.Size]:
    return Recurrent(40), torch.Size((64, 12, 40))


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Size]]] = {
    "vgg": vgg,
    "resnet": resnet,
    "transformer": transformer,
    "lstm": lstm,
}
# The gradients of one step live until the next backward: two steps overlap.
ZERO_GRAD_LATE = {"transformer"}


# --- recording ----------------------------------------------------------------------------------


@contextmanager
def layers_noted(recorder: Recorder, model: nn.Module) -> Iterator[None]:
    """Writes a line as each module that has no children begins."""
    leaves = [module for module in model.modules() if not list(module.children())]
    numbers = {module: number for number, module in enumerate(leaves, start=1)}

    def note(module: nn.Module, args: object) -> None:
        del args
        recorder.write("layer", numbers[module])

    handles = [module.register_forward_pre_hook(note) for module in leaves]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    shape: torch.Size,
    *,
    zero_grad_late: bool,
    before_optimizer: Callable[[], object],
) -> None:
    inputs, targets = torch.randn(shape), torch.randint(10, (shape[0],))
    loss = nn.functional.cross_entropy(model(inputs), targets)
    del inputs
    if zero_grad_late:
        optimizer.zero_grad()
    loss.backward()
    before_optimizer()
    optimizer.step()
    if not zero_grad_late:
        optimizer.zero_grad()


def record(name: str) -> list[str]:
    """The third step, when momentum exists and everything repeats."""
    torch.manual_seed(SEED)
    model, shape = MODELS[name]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    late = name in ZERO_GRAD_LATE
    for _ in range(2):
        train_step(model, optimizer, shape, zero_grad_late=late, before_optimizer=lambda: None)
    recorder = Recorder()
    for tensor in persistent(model, optimizer):
        recorder.number(tensor)
    recorder.begin_step()
    hooks = torch.autograd.graph.saved_tensors_hooks(recorder.pack, recorder.unpack)
    with layers_noted(recorder, model), recorder, hooks:
        train_step(
            model,
            optimizer,
            shape,
            zero_grad_late=late,
            before_optimizer=lambda: recorder.write("optimizer"),
        )
    recorder.close()
    return [*recorder.lines, *renames(recorder)]


def persistent(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    yield from model.parameters()
    yield from model.buffers()
    yield from (p.grad for p in model.parameters() if p.grad is not None)
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def renames(recorder: Recorder) -> Iterator[str]:
    """What was born and stayed takes the part of what was there before and went."""
    start = recorder.lines.index("step")
    before = [int(line.split()[1]) for line in recorder.lines[:start]]
    dropped = [int(line.split()[1]) for line in recorder.lines if line.startswith("drop")]
    gone = [n for n in before if n in dropped]
    living = set(recorder._ids.values()) - set(before)
    for new in sorted(living):
        old = next(n for n in gone if recorder.sizes[n] == recorder.sizes[new])
        gone.remove(old)
        yield f"becomes {new} {old}"


if __name__ == "__main__":
    Path(sys.argv[2]).write_text("\n".join(record(sys.argv[1])) + "\n")
