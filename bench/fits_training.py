"""One training of bench/fits.py, in a process of its own; prints one JSON object.

With --ours under vdnn_alloc and its default budget, which the model fits; else by stock PyTorch.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Protocol

import torch
from torch import Tensor

from bench import processes, vgg_training
from bench.vgg_training import SEED


class Steps(Protocol):
    """A model with its optimizer and its one batch."""

    def step(self) -> Tensor:
        """Forward, backward and update; returns the loss."""


def classifier(network: str, precision: str, *, channels_last: bool) -> Steps:
    """A torchvision network on 256 images."""
    args = argparse.Namespace(network=network, batch=256, precision=precision)
    training = vgg_training.Training(args)
    if channels_last:
        training.model.to(memory_format=torch.channels_last)
        training.images = training.images.contiguous(memory_format=torch.channels_last)
    return training


class LanguageModel:
    """A transformer of GPT-2 medium's shape in bf16, on 8 sequences of 1024 tokens."""

    def __init__(self) -> None:
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.manual_seed(SEED)
        config = GPT2Config(n_layer=24, n_head=16, n_embd=1024, n_positions=1024, use_cache=False)
        with torch.device("cuda"):
            self.model = GPT2LMHeadModel(config).to(torch.bfloat16).train()
            self.tokens = torch.randint(config.vocab_size, (8, config.n_positions))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def step(self) -> Tensor:
        self.optimizer.zero_grad()
        loss: Tensor = self.model(input_ids=self.tokens, labels=self.tokens).loss
        loss.backward()
        self.optimizer.step()
        return loss.detach()


WORKLOADS = {
    "VGG-19, 256 images, fp32": lambda: classifier("vgg19", "fp32", channels_last=False),
    "ResNet-50, 256 images, TF32, channels last": lambda: classifier(
        "resnet50", "tf32", channels_last=True
    ),
    "GPT-2 medium, 8 x 1024 tokens, bf16, AdamW": LanguageModel,
}


def timed(training: Steps) -> float:
    """One step, in milliseconds."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    training.step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e3


def moved_bytes() -> int:
    """Out and in, since the start."""
    import vdnn_alloc

    stats = vdnn_alloc.stats()
    return stats.offloaded_bytes + stats.prefetched_bytes


def main() -> None:
    """Trains and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", choices=WORKLOADS, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--ours", action="store_true")
    args = parser.parse_args()
    if args.ours:
        import vdnn_alloc

        vdnn_alloc.install(backend="cuda")
    training = WORKLOADS[args.workload]()
    said = {
        "ms": [timed(training) for _ in range(args.steps)],
        "loss": training.step().item(),
        "moved_bytes": moved_bytes() if args.ours else 0,
        "reserved_max": torch.cuda.max_memory_reserved(),
        **processes.facts(),
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
