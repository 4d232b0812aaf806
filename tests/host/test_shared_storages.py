"""One storage that is saved in many places leaves once nobody but the graphs holds it."""

from __future__ import annotations

import sys
import threading

import torch

from tests.helpers import fresh

SHAPE = (123 * 8, 256)  # just under 1 MB
EAGER = {"budget": "64MiB", "policy": "all", "check": 3, "frame": "64KiB"}
THREADS, SAVES = 4, 40


def offloaded_bytes() -> int:
    """Until now. The request before it lets what is cold leave."""
    import vdnn_alloc

    torch.empty(SHAPE)
    return vdnn_alloc.stats().offloaded_bytes


def saved_by_threads_at_once() -> tuple[int, int, float]:
    """Each saves the same tensor again and again, as branches of one model in threads do."""
    kept = torch.full(SHAPE, 3.0)
    weights = [torch.ones(SHAPE, requires_grad=True) for _ in range(THREADS)]
    together, losses = threading.Barrier(THREADS), []
    sys.setswitchinterval(1e-5)

    def save(weight: torch.Tensor, kept: torch.Tensor) -> None:
        torch.nn.Identity()(weight)  # a thread has our hooks from its first module on
        together.wait()
        losses.append(sum((kept * weight).sum() for _ in range(SAVES)))

    threads = [threading.Thread(target=save, args=(weight, kept)) for weight in weights]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held = offloaded_bytes()
    del kept
    let_go = offloaded_bytes()
    torch.stack([torch.as_tensor(loss) for loss in losses]).sum().backward()
    return held, let_go, float(sum(weight.grad[5, 5] for weight in weights))


def test_a_storage_that_threads_save_at_once_is_known_once() -> None:
    held, let_go, gradient = fresh.call(saved_by_threads_at_once, install=EAGER).result

    assert held == 0
    assert let_go == 4 * SHAPE[0] * SHAPE[1]
    assert gradient == THREADS * SAVES * 3.0
