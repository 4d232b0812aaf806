"""The access guard on a GPU: what a program holds leaves, and is right for whoever reads it.

A flat U-Net trains within half of its peak, bit for bit; kernels that pass no dispatcher read the
host memory that stands in for the frames, over PCIe.
"""

from __future__ import annotations

import hashlib
from functools import cache, partial

import pytest
import torch
from torch import Tensor

from tests.helpers import fresh, gpu_training
from tests.helpers.models import FlatUNet, Workload, match, pictures_and_masks

PERCENT = 50
STEPS = 4
UNET = Workload(partial(FlatUNet, width=32, depth=6), pictures_and_masks(16, side=128), match)

FEATURE_BYTES = 32 << 20
COUNT = 24
BUDGET = 512 << 20  # of the 768 MiB that the features take


def settings(budget: int, *, guard: str = "auto", check: int = 1) -> fresh.Settings:
    return {**gpu_training.settings(budget), "guard": guard, "check": check}


# --- training -----------------------------------------------------------------------------------


def train(optimizer: str) -> tuple[list[float], list[str]]:
    """Losses, and hashes of all gradients and parameters, of a few steps."""
    gpu_training.be_deterministic()
    model = UNET.build().cuda()
    kinds = {"sgd": partial(torch.optim.SGD, momentum=0.9), "adam": torch.optim.Adam}
    updates = kinds[optimizer](model.parameters(), lr=0.001)
    losses, digests = [], []
    for step in range(STEPS):
        drawn = UNET.batch(torch.Generator().manual_seed(step))
        picture, mask = (tensor.cuda() for tensor in drawn)
        updates.zero_grad()
        loss = UNET.loss(model, (picture, mask))
        loss.backward()
        updates.step()
        losses.append(loss.item())
        digests.append(gpu_training.digest(model))
    return losses, digests


def peak_of_training(optimizer: str) -> int:
    """The most bytes that the training has live at once."""
    import vdnn_alloc

    train(optimizer)
    return vdnn_alloc.stats().live_bytes_max


@cache
def half_of_the_peak(optimizer: str) -> int:
    ample = {**gpu_training.settings(), "policy": "none"}
    return int(fresh.call(peak_of_training, optimizer, install=ample).result) * PERCENT // 100


@cache
def trained_by_stock(optimizer: str) -> object:
    return fresh.call(train, optimizer).result


# Rules 2 and 11.
@pytest.mark.parametrize("check", [1, 3])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_flat_unet_trains_within_half_of_its_peak(optimizer: str, check: int) -> None:
    budget = half_of_the_peak(optimizer)

    ours = fresh.call(train, optimizer, install=settings(budget, check=check))

    assert ours.stats is not None
    assert ours.stats["workspace_refusals"] == 0, "other engines: nothing to compare"
    assert ours.result == trained_by_stock(optimizer)
    assert ours.stats["guarded_out_bytes"] > 0
    assert ours.stats["created_bytes_max"] <= budget


def test_without_the_guard_it_does_not() -> None:
    ended = fresh.run(train, "sgd", install=settings(half_of_the_peak("sgd"), guard="off"))

    assert ended.exit_code != 0
    assert "cannot leave with guard=off" in ended.text


# --- readers of other kinds ---------------------------------------------------------------------


def features() -> tuple[Tensor, list[Tensor]]:
    """A leaf, and a chain of tensors that autograd saved and the caller holds."""
    torch.manual_seed(1)
    leaf = torch.randn(FEATURE_BYTES // 4, device="cuda").requires_grad_()
    x, held = leaf, []
    for _ in range(COUNT):
        x = torch.tanh(1.3 * x)
        held.append(x)
    return leaf, held


def hashed(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def bytes_at(address: int, count: int) -> bytes:
    """As the driver copies them, from whatever is mapped there."""
    from cuda.bindings import driver

    torch.cuda.synchronize()
    buffer = bytearray(count)
    (code,) = driver.cuMemcpyDtoH(buffer, address, count)
    assert int(code) == 0, code
    return bytes(buffer)


def away() -> int:
    """How many of the held tensors are on the host; 0 under stock."""
    if torch.cuda.memory.get_allocator_backend() == "native":
        return 0
    import vdnn_alloc

    return vdnn_alloc.stats().guarded_blocks


def read_by_address() -> list[str]:
    _, held = features()
    before = away()
    seen = [hashed(bytes_at(feature.data_ptr(), FEATURE_BYTES)) for feature in held[:4]]
    assert away() == before, "an address brings nothing home"
    return seen


def read_by_a_triton_kernel() -> list[str]:
    """A generated kernel is given the addresses alone."""
    double = torch.compile(lambda x: x * 2.0 + 1.0, fullgraph=True)
    double(torch.zeros(FEATURE_BYTES // 4, device="cuda"))
    _, held = features()
    return [hashed(double(f.detach()).cpu().numpy().tobytes()) for f in held[:4]]


def read_by_operators() -> list[float]:
    """Everything comes home, in turn."""
    leaf, held = features()
    seen = [feature.mean().item() for feature in held]
    held[-1].sum().backward()
    assert leaf.grad is not None
    return [*seen, leaf.grad.sum().item(), *(feature.max().item() for feature in held)]


def read_on_a_side_stream() -> list[float]:
    """Held by the program all the while, so nobody calls record_stream."""
    side = torch.cuda.Stream()
    _, held = features()
    side.wait_stream(torch.cuda.current_stream())
    sums = []
    with torch.cuda.stream(side):
        for feature in held:
            torch.cuda._sleep(20_000_000)
            sums.append(feature.sum())
    more = [torch.full((FEATURE_BYTES // 4,), 3.0, device="cuda") for _ in range(4)]
    torch.cuda.current_stream().wait_stream(side)
    return [total.item() for total in sums] + [float(one[0]) for one in more]


def read_through_dlpack() -> list[float]:
    _, held = features()
    return [torch.from_dlpack(feature.detach()).sum().item() for feature in held[::3]]


def written_in_place() -> list[float]:
    _, held = features()
    with torch.no_grad():
        for feature in held[:4]:
            feature.mul_(0.5)
        held[5].copy_(held[6])
    return [feature.sum().item() for feature in held]


def replayed_beside() -> list[float]:
    """A graph that was captured while tensors were away, and whose input is one of them."""
    _, held = features()
    del held[6:-1]  # what was born before a capture stays put while it is held
    source, result = held[0].detach(), torch.zeros(FEATURE_BYTES // 4, device="cuda")
    torch.add(source, 1.0, out=result)  # the libraries have started
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.mul(source, 2.0, out=result)
    seen = []
    for feature in held[1:6]:
        result.zero_()
        graph.replay()
        seen += [result.sum().item(), feature.mean().item()]
    return seen


PROGRAMS = [
    read_by_address,
    read_by_a_triton_kernel,
    read_by_operators,
    read_on_a_side_stream,
    read_through_dlpack,
    written_in_place,
    replayed_beside,
]


# Rules 1, 2 and 5.
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_program_sees_the_same_bytes(program: object) -> None:
    assert callable(program)
    ours = fresh.same_as_stock(program, install=settings(BUDGET, guard="on"))

    assert ours.stats is not None
    assert ours.stats["guarded_out_bytes"] > 0
    assert ours.stats["created_bytes_max"] <= BUDGET


def overwrite_and_walk() -> str:
    leaf, held = features()
    with torch.no_grad():
        held[3].add_(1.0)
    try:
        held[-1].sum().backward()
    except RuntimeError as error:
        return str(error)
    return str(leaf.grad)


def test_overwriting_what_is_away_is_rejected() -> None:
    ended = fresh.call(overwrite_and_walk, install=settings(BUDGET, guard="on"))

    assert "modified by an inplace operation" in ended.result
    assert ended.stats is not None
    assert ended.stats["guarded_out_bytes"] > 0
