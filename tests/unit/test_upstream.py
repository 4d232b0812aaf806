"""The runner of PyTorch's own tests, on a checkout of two tests: one that our hooks cannot pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.upstream.suites import Outcome, compare, run

SUITE = """
import unittest
import torch

class TestHooks(unittest.TestCase):
    def test_gradient(self):
        x = torch.ones(4096, requires_grad=True)
        x.exp().exp().sum().backward()
        self.assertEqual(x.grad.shape, x.shape)

    def test_that_no_hook_is_there(self):
        self.assertIsNone(torch._C._autograd._top_saved_tensors_default_hooks(True))

    def test_that_fails(self):
        self.assertEqual(1, 2)

    @unittest.skip("not here")
    def test_that_is_skipped(self):
        pass
"""


def test_what_fails_only_with_vdnn_alloc_is_told_from_what_fails_anyway(tmp_path: Path) -> None:
    folder = tmp_path / "test" / "nn"
    folder.mkdir(parents=True)
    (folder / "test_hooks.py").write_text(SUITE)

    outcome = run(tmp_path, "nn/test_hooks.py", "", "host")

    assert outcome == Outcome(
        passed=1,
        skipped=1,
        failed_anyway=["TestHooks.test_that_fails"],
        failed_with=["TestHooks.test_that_no_hook_is_there"],
    )


def test_a_file_that_cannot_be_run_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()

    with pytest.raises(RuntimeError, match="test_absent"):
        run(tmp_path, "test_absent.py", "", "host")


def test_a_test_that_is_missing_in_one_run_failed_there() -> None:
    assert compare({"a": "passed", "b": "skipped"}, {"b": "skipped"}).failed_with == ["a"]
