"""Every program there is."""

from __future__ import annotations

import importlib

from tests.programs.program import REGISTRY, Program

MODULES: dict[str, list[str]] = {
    "models": ["convolutional", "recurrent", "attention"],
    "loops": ["objectives", "between_steps", "interrupted", "optimizers", "memory"],
    "autograd": ["graphs", "misuse", "hooks", "checkpoints", "transforms"],
    "tensors": ["kinds", "storages", "modes"],
    "processes": ["threads", "children"],
    "compiled": ["dynamo", "torchscript"],
    "libraries": ["hugging_face", "lightning_trainer"],
}
CUDA_MODULES = ["graphs", "streams", "kernels", "libraries"]
"""Of the group "cuda": what there is only on a GPU."""


def on_cpu() -> dict[str, Program]:
    """All programs that need no GPU, by name, in the order of the list above."""
    return {
        program.name: program
        for group, modules in MODULES.items()
        for module in modules
        for program in _of(f"{group}.{module}")
    }


def on_gpu() -> dict[str, Program]:
    """All that have something to do on a GPU."""
    shared = {name: program for name, program in on_cpu().items() if not program.cpu_only}
    own = (program for module in CUDA_MODULES for program in _of(f"cuda.{module}"))
    return shared | {program.name: program for program in own}


def find(name: str) -> Program:
    """One program, without importing the others' modules."""
    _of(name.rpartition(".")[0])
    return REGISTRY[name]


def _of(module: str) -> list[Program]:
    """The programs of a module, in their order there."""
    importlib.import_module(f"tests.programs.{module}")
    return [program for name, program in REGISTRY.items() if name.rpartition(".")[0] == module]
