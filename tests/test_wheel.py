"""What a user installs: the library, the sources of the torch glue, and torch's entry point."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    """Built from the kept build folder, so that nothing is compiled a second time."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", folder, ROOT], check=True)
    (built,) = folder.glob("*.whl")
    return ZipFile(built)


def test_the_wheel_serves_every_python_3(wheel: ZipFile) -> None:
    assert "-py3-none-" in str(wheel.filename)


def test_the_wheel_holds_the_library_and_every_module(wheel: ZipFile) -> None:
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "vdnn_alloc").rglob("*.py")}
    assert modules | {"vdnn_alloc/libvdnn_alloc.so"} <= set(wheel.namelist())


def test_the_wheel_holds_all_sources_of_the_glue(wheel: ZipFile) -> None:
    sources = [*(ROOT / "allocator/torch_glue").iterdir(), *(ROOT / "allocator").glob("*.h")]
    prefix = "vdnn_alloc/glue_src/"
    held = {name for name in wheel.namelist() if name.startswith(prefix)}
    assert held == {prefix + path.name for path in sources}
    assert all(wheel.read(prefix + path.name) == path.read_bytes() for path in sources)


def test_torch_finds_the_entry_point(wheel: ZipFile) -> None:
    (entry_points,) = (name for name in wheel.namelist() if name.endswith("/entry_points.txt"))
    text = wheel.read(entry_points).decode()
    assert "[torch.backends]" in text
    assert "vdnn_alloc = vdnn_alloc:_autoload" in text
