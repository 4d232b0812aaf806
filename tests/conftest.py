"""What every test shares: tests under tests/gpu carry the gpu marker and need a GPU.

Nothing imports from here; helpers for tests live in tests/helpers.
"""

from __future__ import annotations

from pathlib import Path

import pytest

GPU_TESTS = Path(__file__).parent / "gpu"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if GPU_TESTS in item.path.parents:
            item.add_marker(pytest.mark.gpu)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not _has_gpu():
        pytest.skip("needs a GPU that torch can use")


def _has_gpu() -> bool:
    # Here and not above: most tests run without torch, and importing it takes seconds.
    import torch

    return torch.cuda.is_available()
