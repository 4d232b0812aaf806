"""The core under torch's own pluggable class, without the glue that is compiled at first use.

As a program, this file trains that way and prints what came out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch

from tests.helpers import fresh, gpu_training

ROOT = Path(__file__).parents[2]
STEPS = 3


def install_plain() -> None:
    """What a user without a compiler writes."""
    from vdnn_alloc import native

    core = native.Native(native.find_library())
    core.start(
        native.NativeConfig(
            backend=native.BACKENDS["cuda"],
            budget_bytes=gpu_training.AMPLE,
            host_budget_bytes=1 << 30,
        )
    )
    plain = torch.cuda.memory.CUDAPluggableAllocator(
        str(core.path), "vdnn_torch_malloc", "vdnn_torch_free"
    )
    plain._allocator.set_record_stream_fn(core.address_of("vdnn_torch_record_stream"))
    torch.cuda.memory.change_current_allocator(plain)


def train_and_print() -> None:
    """Refuses to print if the plain class does not serve."""
    install_plain()
    gpu_training.be_deterministic()
    model = gpu_training.conv_net()
    assert torch.cuda.memory.get_allocator_backend() == "pluggable"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses = [gpu_training.one_step(model, optimizer) for _ in range(STEPS)]
    print(json.dumps({"losses": losses, "digest": gpu_training.digest(model)}))


def test_it_trains_with_stocks_bits() -> None:
    command = [sys.executable, "-m", "tests.gpu.test_plain_path"]
    printed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    ours = json.loads(printed.stdout.splitlines()[-1])
    stock = fresh.call(gpu_training.train, STEPS).result
    assert (ours["losses"], ours["digest"]) == (stock.losses, stock.digests[-1])


if __name__ == "__main__":
    train_and_print()
