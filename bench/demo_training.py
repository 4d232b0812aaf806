"""One training of the demo, in a process of its own: a small VGG learns handwritten digits.

bench/demo.py starts it three times and reads what it prints: one JSON object a step. The losses,
the last gradients and the parameters go to a file, and a digest of each step's gradients with
them, so that two trainings can be compared bit for bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

SEED = 20160618
# Convolutions before each pooling. cuDNN 9.19 asks for workspaces of up to 577 MiB here (H200); one
# that is refused means another engine, with other bits than stock's. So on a GPU the network is
# deep enough that 40 % of its peak (about 3.5 GiB) holds the largest one beside the four maps of
# 128 MiB, at most, that its layer needs: none is refused, and all trainings run the same engines.
DEPTHS = {"cpu": (4, 4, 4, 4), "cuda": (8, 8, 4, 4)}
CHANNELS = (16, 32, 64, 64)
SIDE = 64  # the digits are 8 x 8; enlarged, their feature maps dwarf the weights
BATCH = {"cpu": 16, "cuda": 512}
# Where nothing has to move. On the simulated device a frame is 1/512 of it; a GPU's is fixed.
AMPLE_BUDGET = {"cpu": 1 << 28, "cuda": None}


def vgg(device: str) -> nn.Module:
    """VGG with batch norm, its ReLUs in place; weights, gradients, momentum are 6 % of its peak."""
    layers: list[nn.Module] = []
    inputs = 1
    for depth, channels in zip(DEPTHS[device], CHANNELS, strict=True):
        for _ in range(depth):
            convolution = nn.Conv2d(inputs, channels, 3, padding=1, bias=False)
            nn.init.kaiming_normal_(convolution.weight, mode="fan_out")
            layers += [convolution, nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
            inputs = channels
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


def batches(device: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Normalised images with their labels, reshuffled at each pass, without end."""
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().unsqueeze(1)
    images = (images - images.mean()) / images.std()
    labels = torch.from_numpy(digits.target)
    while True:
        for chosen in torch.randperm(len(labels)).split(BATCH[device])[:-1]:
            small = images[chosen].to(device)
            large = functional.interpolate(small, size=(SIDE, SIDE), mode="nearest")
            yield large, labels[chosen].to(device)


class Training:
    """The model, its optimizer and its data; step() trains on one batch."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(SEED)
        self.device = device
        self.model = vgg(device).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.batches = batches(device)
        self.losses: list[Tensor] = []
        self.digests: list[str] = []

    def step(self) -> float:
        """Returns how long forward, backward and optimizer took, in milliseconds."""
        images, labels = next(self.batches)
        self.synchronize()
        start = time.perf_counter()
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        self.synchronize()
        elapsed_ms = (time.perf_counter() - start) * 1e3
        self.losses.append(loss.detach().cpu())
        self.digests.append(digest(self.gradients()))
        return elapsed_ms

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def gradients(self) -> dict[str, Tensor]:
        named = self.model.named_parameters()
        return {name: p.grad.cpu() for name, p in named if p.grad is not None}

    def save(self, path: Path) -> None:
        state = {name: value.cpu() for name, value in self.model.state_dict().items()}
        results = {
            "losses": torch.stack(self.losses),
            "gradients": self.gradients(),
            "parameters": state,
            "digests": self.digests,
        }
        torch.save(results, path)


def digest(tensors: dict[str, Tensor]) -> str:
    sha = hashlib.sha256()
    for tensor in tensors.values():
        sha.update(tensor.contiguous().numpy().data)
    return sha.hexdigest()


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def train(arguments: argparse.Namespace, counted: Callable[[], dict[str, int]]) -> None:
    """Prints, a line a step: its loss, its time, and what `counted` says after it."""
    training = Training(device())
    for _ in range(arguments.steps):
        elapsed_ms = training.step()
        step = {"ms": elapsed_ms, "loss": float(training.losses[-1]), **counted()}
        print(json.dumps(step), flush=True)
    training.save(arguments.results)


def train_stock(arguments: argparse.Namespace) -> None:
    train(arguments, dict)
    assert "vdnn_alloc" not in sys.modules, "the stock training must not have loaded vdnn_alloc"


def train_virtual(arguments: argparse.Namespace) -> None:
    import vdnn_alloc
    from vdnn_alloc.native import Native, find_library

    budget = arguments.budget or AMPLE_BUDGET[device()]
    vdnn_alloc.install(budget=budget, policy=arguments.policy)

    def counted() -> dict[str, int]:
        stats = vdnn_alloc.stats()
        return {
            "peak": stats.live_bytes_max,
            "device": stats.created_bytes_max,
            "witness": witness.largest,
            "moved_out": stats.offloaded_bytes,
            "moved_in": stats.prefetched_bytes,
            "refused": stats.workspace_refusals,
        }

    # What the kernel counts behind the simulated device; 0 on a GPU. Of no use outside a proof.
    with Watch(Native(find_library()).witness_bytes) as witness:
        train(arguments, counted)
    if arguments.dump:
        vdnn_alloc.dump(arguments.dump)


class Watch:
    """Reads a number every two milliseconds, on a thread, and keeps the largest."""

    def __init__(self, read: Callable[[], int]) -> None:
        self.largest = 0
        self._read = read
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._stop.wait(0.002):
            self.largest = max(self.largest, self._read())

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def settle() -> None:
    """The same kernels in the same order every time, and a core left free for the copies: on a
    GPU they have engines of their own, and threads of one operator that wait for a core spin."""
    torch.set_num_threads(1)
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("policy", help="'stock' for PyTorch alone, else a policy of vdnn_alloc")
    parser.add_argument("--budget", type=int, help="bytes; left out: vdnn_alloc's default")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--results", type=Path, required=True, help="the tensors, for comparison")
    parser.add_argument("--dump", type=Path, help="vdnn_alloc's statistics")
    return parser.parse_args(arguments)


def main() -> None:
    arguments = parse(sys.argv[1:])
    settle()
    if arguments.policy == "stock":
        train_stock(arguments)
    else:
        train_virtual(arguments)


if __name__ == "__main__":
    main()
