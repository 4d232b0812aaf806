"""What a container leaves: the least over all its cgroups, from files laid out as the kernel's."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from vdnn_alloc.host_memory import available_bytes, default_host_budget

GIB = 1 << 30
MACHINE = 1024 * GIB


@pytest.fixture(autouse=True)
def large_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = psutil.virtual_memory()._replace(available=MACHINE)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def version_2(root: Path, folder: str, limit: object, use: int, stat: str = "") -> None:
    base = f"sys/fs/cgroup/{folder}"
    write(root, f"{base}/memory.max", f"{limit}\n")
    write(root, f"{base}/memory.current", f"{use}\n")
    write(root, f"{base}/memory.stat", stat)


def test_the_limit_less_the_use_counts(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/job\n")
    version_2(tmp_path, "job", 8 * GIB, 3 * GIB)

    assert available_bytes(tmp_path) == 5 * GIB
    assert default_host_budget(5 * GIB) == 4 * GIB


def test_a_tighter_parent_counts(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/slice/job\n")
    version_2(tmp_path, "slice", 6 * GIB, 4 * GIB)
    version_2(tmp_path, "slice/job", 8 * GIB, 3 * GIB)

    assert available_bytes(tmp_path) == 2 * GIB


def test_a_container_sees_its_own_cgroup_as_the_root(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/\n")
    version_2(tmp_path, "", 8 * GIB, 3 * GIB)

    assert available_bytes(tmp_path) == 5 * GIB


def test_cache_that_the_kernel_gives_back_is_room(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/job\n")
    version_2(tmp_path, "job", 8 * GIB, 7 * GIB, f"anon 1\ninactive_file {4 * GIB}\n")

    assert available_bytes(tmp_path) == 5 * GIB


def test_version_1_counts_too(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "5:cpu,cpuacct:/job\n4:memory:/job\n0::/\n")
    base = "sys/fs/cgroup/memory/job"
    write(tmp_path, f"{base}/memory.limit_in_bytes", f"{8 * GIB}\n")
    write(tmp_path, f"{base}/memory.usage_in_bytes", f"{3 * GIB}\n")

    assert available_bytes(tmp_path) == 5 * GIB


def test_no_limit_leaves_the_machine(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/job\n")
    version_2(tmp_path, "job", "max", 3 * GIB)

    assert available_bytes(tmp_path) == MACHINE
    assert available_bytes(tmp_path / "no such root") == MACHINE


def test_a_limit_that_cannot_be_read_leaves_half(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/job\n")
    write(tmp_path, "sys/fs/cgroup/job/memory.max", "8 GiB or so\n")

    assert available_bytes(tmp_path) == MACHINE // 2


def test_a_cgroup_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/job\n")
    version_2(tmp_path, "job", 8 * GIB, 9 * GIB)

    assert available_bytes(tmp_path) == 0
