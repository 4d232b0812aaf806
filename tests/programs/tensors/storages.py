"""Memory that is shared, written and replaced where autograd does not look."""

from __future__ import annotations

import copy
import ctypes
import io

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.programs.data import labels, rows, sgd
from tests.programs.loops.between_steps import classifier, one_step
from tests.programs.loops.objectives import WIDTH
from tests.programs.program import device, program
from tests.programs.seen import Seen


class Split:
    """A classifier whose forward stops half-way: what is there then is saved, and in our hands."""

    def __init__(self) -> None:
        self.model, self.seen = classifier(depth=16), Seen()
        self.optimizer = sgd(self.model)

    def half(self, step: int) -> Tensor:
        return torch.as_tensor(self.model[:16](rows(2048, WIDTH, step)))

    def rest(self, hidden: Tensor, step: int) -> None:
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.model[16:](hidden), labels(2048, step))
        loss.backward()
        self.optimizer.step()
        self.seen.step(self.model, loss)


@program()
def shared_with_numpy() -> Seen:
    """A saved map is a numpy array at the same time, read after the backward that released it."""
    split = Split()
    for step in range(3):
        hidden = split.half(step)
        array = hidden.detach().cpu().numpy()
        total = float(np.abs(array).sum(dtype=np.float64))
        split.rest(hidden, step)
        del hidden
        one_step(split.model, split.optimizer, split.seen, 10 + step)
        assert float(np.abs(array).sum(dtype=np.float64)) == total
        split.seen.note("sum", total)
    return split.seen


@program(cpu_only="there kernels read by address: see cuda.kernels")
def read_by_address() -> Seen:
    """C code is given the address of a map that is saved, before its backward and after."""
    split = Split()
    for step in range(3):
        hidden = split.half(step)
        held, count = hidden.detach(), min(1 << 16, hidden.nbytes)
        before = ctypes.string_at(held.data_ptr(), count)
        split.rest(hidden, step)
        del hidden
        one_step(split.model, split.optimizer, split.seen, 10 + step)
        split.seen.note("bytes", before == ctypes.string_at(held.data_ptr(), count), held)
        del held
    return split.seen


@program(cpu_only="numpy arrays are host memory")
def made_from_numpy() -> Seen:
    """The batch is numpy's memory, and is overwritten for the next one, as loaders do."""
    model, seen = classifier(), Seen()
    optimizer, buffer = sgd(model), np.zeros((2048, WIDTH), dtype=np.float32)
    for step in range(4):
        buffer[:] = rows(2048, WIDTH, step).numpy()
        loss = functional.cross_entropy(model(torch.from_numpy(buffer)), labels(2048, step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
    return seen


@program()
def shared_through_dlpack() -> Seen:
    """Another library holds a map that is saved: by the protocol, and as a raw capsule."""
    split = Split()
    for step in range(3):
        hidden = split.half(step)
        alias = torch.from_dlpack(hidden.detach())
        again = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(hidden.detach()))
        split.rest(hidden, step)
        del hidden
        one_step(split.model, split.optimizer, split.seen, 10 + step)
        split.seen.note("alias", alias, again)
    return split.seen


@program()
def written_through_data() -> Seen:
    """x.data is written before backward: autograd does not see it, and uses the new values."""
    split = Split()
    for step in range(3):
        hidden = split.half(step)
        saved = hidden.exp()
        with torch.no_grad():
            hidden.data.mul_(0.5)
            saved.data.add_(1.0)
        split.rest(hidden + 0.01 * saved, step)
        del hidden, saved
    return split.seen


@program()
def written_after_it_was_released() -> Seen:
    """A detached alias is kept, and written into once its graph is gone."""
    split = Split()
    for step in range(3):
        hidden = split.half(step)
        kept = hidden.detach()
        split.rest(hidden, step)
        del hidden
        kept.add_(float(step))
        one_step(split.model, split.optimizer, split.seen, 10 + step)
        split.seen.note("kept", kept)
        del kept
    return split.seen


@program()
def storage_held_by_itself() -> Seen:
    """Only the untyped storage of a saved map is kept; a tensor is made over it again later."""
    split = Split()
    for step in range(3):
        hidden = split.half(step)
        shape, storage = hidden.shape, hidden.untyped_storage()
        split.rest(hidden, step)
        del hidden
        one_step(split.model, split.optimizer, split.seen, 10 + step)
        again = torch.empty(0, device=device()).set_(storage, 0, shape)
        split.seen.note("again", again, storage.nbytes())
        del again, storage
    return split.seen


@program()
def storages_resized_and_exchanged() -> Seen:
    """What sharding libraries do to parameters: emptied between uses, filled before the next."""
    model, seen = classifier(), Seen()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    whole = [parameter.detach().clone() for parameter in model.parameters()]
    for step in range(3):
        for parameter, values in zip(model.parameters(), whole, strict=True):
            parameter.untyped_storage().resize_(values.nbytes)
            parameter.data.copy_(values)
        loss = functional.cross_entropy(model(rows(2048, WIDTH, step)), labels(2048, step))
        loss.backward()
        seen.step(model, loss)
        for parameter, values in zip(model.parameters(), whole, strict=True):
            values.sub_(parameter.grad, alpha=0.01)
            parameter.untyped_storage().resize_(0)
    for parameter, values in zip(model.parameters(), whole, strict=True):
        parameter.data = values
    seen.state(model)
    return seen


@program()
def copy_on_write_clones() -> Seen:
    """A map that is saved shares its memory with a lazy clone until one of the two is written."""
    split = Split()
    for step in range(4):
        hidden = split.half(step)
        clone = torch._lazy_clone(hidden.detach())
        early = torch._lazy_clone(hidden.detach())
        early.add_(1.0)  # now it has memory of its own, and the map does not change
        split.rest(hidden, step)
        del hidden
        if step % 2 == 0:
            clone.mul_(2.0)
        one_step(split.model, split.optimizer, split.seen, 10 + step)
        split.seen.note("clones", clone, early)
        del clone, early
    return split.seen


@program()
def buffers_reused_with_out() -> Seen:
    """out= writes into one buffer again and again, resize_ grows it, set_ points it elsewhere."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    buffer = torch.empty(0, device=device())
    for step in range(4):
        one_step(model, optimizer, seen, step)
        x = rows(1024 + 256 * step, WIDTH, step)
        buffer.resize_(x.shape)
        with torch.no_grad():
            torch.mul(x, 2.0, out=buffer)
            torch.add(buffer, model[:2](x), out=buffer)
            seen.note("buffer", buffer, model(buffer).sum())
        if step == 2:
            buffer.set_(torch.zeros(4, 4, device=device()))
            seen.note("set", buffer)
    return seen


@program()
def views_saved_many_times() -> Seen:
    """One product is cut, transposed, expanded and strided, and every view is saved."""
    torch.manual_seed(2)
    weight = nn.Parameter((torch.randn(WIDTH, 3 * WIDTH) / 12).to(device()))
    seen = Seen()
    for step in range(3):
        x = rows(1024, WIDTH, step)
        for _ in range(8):
            query, key, value = (x @ weight).chunk(3, dim=1)
            flipped = query.T.reshape(query.shape) * key
            strided = value.as_strided(value.shape, value.stride()) * query.unfold(1, 1, 1)[..., 0]
            x = torch.tanh(flipped + strided + value[:, :1].expand(-1, WIDTH) * key.roll(1, 0))
        loss = x.square().mean()
        del x, query, key, value, flipped, strided
        weight.grad = None
        loss.backward()
        seen.note("loss", loss)
        seen.note("gradient", weight.grad)
        weight.data.sub_(weight.grad, alpha=0.01)  # type: ignore[arg-type]
    return seen


@program()
def copied_out_of_a_live_graph() -> Seen:
    """Maps in the middle of a step are copied, moved, pickled, printed and compared."""
    split = Split()
    for step in range(3):
        hidden = split.half(step)
        file = io.BytesIO()
        torch.save(hidden.detach(), file)
        file.seek(0)
        split.seen.note("pickled", torch.load(file))
        split.seen.note("copied", copy.deepcopy(hidden.detach()), hidden.detach().to("cpu"))
        split.seen.note("printed", str(hidden.detach()[:2, :3].cpu()), hidden.mean().item())
        split.seen.note("list", hidden[0].tolist(), torch.equal(hidden, hidden.clone()))
        split.rest(hidden, step)
        del hidden
    return split.seen


@program()
def pinned_and_sent_in_parts() -> Seen:
    """Batches are stacked from slices, permuted, and flipped in memory order."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    pool = rows(4096, WIDTH, 77)
    for step in range(4):
        order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(step))
        x = pool[order[: len(pool) // 2].to(device())]
        x = x.t().contiguous().t() if step % 2 == 0 else x.flip(0)
        loss = functional.cross_entropy(model(x), labels(2048, step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
    return seen
