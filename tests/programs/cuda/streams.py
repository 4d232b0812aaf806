"""Streams of the user: prefetched batches, forward and backward on other streams, replicas."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.programs.data import labels, rows, sgd
from tests.programs.loops.between_steps import classifier, loss_of, one_step
from tests.programs.loops.objectives import WIDTH
from tests.programs.program import program
from tests.programs.seen import Seen


class Prefetcher:
    """Copies the next pinned batch to the GPU on a side stream while the current one is used."""

    def __init__(self, count: int) -> None:
        self.batches = [rows(2048, WIDTH, step).cpu().pin_memory() for step in range(count)]
        self.stream = torch.cuda.Stream()
        self.next: Tensor | None = None
        self.fetch()

    def fetch(self) -> None:
        if not self.batches:
            self.next = None
            return
        with torch.cuda.stream(self.stream):
            self.next = self.batches.pop(0).to("cuda", non_blocking=True) * 1.0

    def take(self) -> Tensor | None:
        torch.cuda.current_stream().wait_stream(self.stream)
        batch = self.next
        if batch is not None:
            batch.record_stream(torch.cuda.current_stream())
        self.fetch()
        return batch


@program()
def batches_from_a_side_stream() -> Seen:
    model, batches, seen = classifier(), Prefetcher(4), Seen()
    optimizer, step = sgd(model), 0
    while (x := batches.take()) is not None:
        loss = functional.cross_entropy(model(x), labels(2048, step))
        del x
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
        step += 1
    return seen


@program()
def forward_and_backward_on_other_streams() -> Seen:
    """A stream for the forward, another for the backward, and the optimizer on the usual one."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    there, back = torch.cuda.Stream(), torch.cuda.Stream()
    for step in range(3):
        optimizer.zero_grad()
        there.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(there):
            loss = loss_of(model, step)
        back.wait_stream(there)
        with torch.cuda.stream(back):
            loss.backward()
        torch.cuda.current_stream().wait_stream(back)
        optimizer.step()
        seen.step(model, loss)
    return seen


@program()
def stream_of_another_library() -> Seen:
    """It is made and destroyed outside of torch, and memory that was used on it serves others."""
    from cuda.bindings import runtime

    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    for step in range(3):
        error, stream = runtime.cudaStreamCreateWithFlags(runtime.cudaStreamNonBlocking)
        assert int(error) == 0
        theirs = torch.cuda.ExternalStream(int(stream))
        theirs.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(theirs):
            hidden = model[:12](rows(2048, WIDTH, step)).square()
            seen.note("mean", hidden.mean())
            del hidden
        theirs.synchronize()
        del theirs
        (error,) = runtime.cudaStreamDestroy(stream)
        assert int(error) == 0
        one_step(model, optimizer, seen, 10 + step)
    return seen


@program()
def two_branches_on_two_streams() -> Seen:
    """Halves of one forward run at once and meet again; backward follows them on their streams."""
    one, two, seen = classifier(depth=10), classifier(depth=10), Seen()
    model = nn.ModuleList([one, two])
    optimizer, side = sgd(model), torch.cuda.Stream()
    for step in range(3):
        x = rows(2048, WIDTH, step)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            right = two(x)
        x.record_stream(side)
        left = one(x)
        torch.cuda.current_stream().wait_stream(side)
        right.record_stream(torch.cuda.current_stream())
        loss = functional.cross_entropy(left + right, labels(2048, step))
        del x, left, right
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
    return seen


@program()
def gradients_copied_out_on_a_side_stream() -> Seen:
    """Each gradient goes to pinned host memory as soon as it is there, behind an event."""
    model, seen = classifier(), Seen()
    optimizer, side = sgd(model), torch.cuda.Stream()
    copies = {p: torch.zeros(p.shape).pin_memory() for p in model.parameters()}

    def copy_out(parameter: Tensor) -> None:
        side.wait_stream(torch.cuda.current_stream())
        assert parameter.grad is not None
        with torch.cuda.stream(side):
            copies[parameter].copy_(parameter.grad, non_blocking=True)  # type: ignore[index]
        parameter.grad.record_stream(side)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(copy_out)
    for step in range(3):
        one_step(model, optimizer, seen, step)
        side.synchronize()
        seen.note("copies", *copies.values())
    return seen


@program()
def data_parallel() -> Seen:
    """nn.DataParallel over every GPU there is; its replicas run in threads of its own."""
    model, seen = classifier(), Seen()
    optimizer, parallel = sgd(model), nn.DataParallel(model)
    for step in range(3):
        loss = functional.cross_entropy(parallel(rows(2048, WIDTH, step)), labels(2048, step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
    return seen
