"""Builds the torch glue once per torch and Python: plain g++, no CUDA toolkit, some seconds.

The library depends on torch's C++ layout, so it is compiled against the torch that is installed
and kept in a directory that only this user can write: what lies there is loaded as code. Its name
holds everything it was built from, so nothing in it is ever out of date.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import sysconfig
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from vdnn_alloc.errors import InstallError
from vdnn_alloc.native import Glue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vdnn_alloc.native import Native

CACHE_VARIABLE = "VDNN_ALLOC_CACHE"
HOST_SOURCE, HOST_LIBRARIES = "host_glue.cpp", ("c10", "torch_cpu", "torch_python")
_SHARED_SOURCES = (
    *("access_guard.cpp", "convolutions.cpp"),
    *("hooks.cpp", "packing.cpp", "saved_tensor.cpp"),
)
"""What every glue is made of besides its own file."""
_FLAGS = ("-std=c++20", "-O2", "-DNDEBUG", "-fPIC", "-shared")
_TORCH = Path(torch.__file__).parent


def load_glue(
    source: str, libraries: tuple[str, ...], native: Native, *, flags: tuple[str, ...] = ()
) -> Glue:
    """The glue made from `source` (a file of torch_glue/), built first if it has to be.

    Raises:
        InstallError: no compiler, a failed build, or a library of another torch.
    """
    glue = Glue(build(source, libraries, flags), native)
    if glue.torch_version() != _torch_version():
        raise InstallError(
            f"the torch glue was built for torch {glue.torch_version() / 100:.2f}, and "
            f"{torch.__version__} runs; delete {cache_directory()}"
        )
    return glue


def build(source: str, libraries: tuple[str, ...], flags: tuple[str, ...] = ()) -> Path:
    """The library's path. Processes that start together build it once."""
    sources = _find_sources(source)
    command = [*_compiler(), *_flags(sources), *flags]
    links = [f"-L{_TORCH / 'lib'}", *(f"-l{library}" for library in libraries)]
    library = cache_directory() / f"{Path(source).stem}-{_key(sources, command + links)}.so"
    with _lock(library.with_suffix(".lock")):
        if not library.exists():
            compiled = [str(path) for path in sources if path.suffix == ".cpp"]
            _compile([*command, *compiled, *links], library)
    return library


def cache_directory() -> Path:
    """Private to the user: its contents are executed."""
    named = os.environ.get(CACHE_VARIABLE)
    folder = Path(named) if named else Path.home() / ".cache" / "vdnn_alloc"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InstallError(f"{folder} cannot be made ({error}); set {CACHE_VARIABLE}") from error
    found = folder.stat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise InstallError(
            f"{folder} can be written by others, and code is loaded from it; make it yours with "
            f"mode 0700, or set {CACHE_VARIABLE}"
        )
    return folder


def _find_sources(source: str) -> list[Path]:
    """The glue's sources, then all headers they may need: in the repository, or installed."""
    import vdnn_alloc

    allocator = Path(__file__).parent.parent / "allocator"
    checkout = [allocator / "torch_glue", allocator]
    installed = [[Path(folder) / "glue_src"] for folder in vdnn_alloc.__path__]
    for folders in (checkout, *installed):
        if (folders[0] / source).exists():
            headers = [*folders[0].glob("*.hpp"), folders[-1] / "vdnn_alloc.h"]
            shared = [folders[0] / name for name in _SHARED_SOURCES]
            return [folders[0] / source, *shared, *sorted(headers)]
    raise InstallError(f"{source}, a source of the torch glue, is not in {installed[0][0]}")


def _compiler() -> list[str]:
    named = shlex.split(os.environ.get("CXX", "g++"))
    if not named or shutil.which(named[0]) is None:
        raise InstallError(
            f"no C++ compiler: {' '.join(named) or 'g++'} was not found, and the part that meets "
            "torch is compiled at first use; install g++ (12 or later) or set CXX"
        )
    return named


def _flags(sources: list[Path]) -> list[str]:
    folders = dict.fromkeys(str(path.parent) for path in sources)
    return [
        *_FLAGS,
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *(f"-I{folder}" for folder in folders),
        f"-isystem{_TORCH / 'include'}",
        f"-isystem{_python_headers()}",
    ]


def _python_headers() -> Path:
    folder = Path(sysconfig.get_path("include"))
    if not (folder / "Python.h").exists():
        raise InstallError(
            f"Python.h is not in {folder}, and the part that meets torch is compiled at first "
            "use; install this Python's headers (python3-dev, or a Python that brings them)"
        )
    return folder


def _key(sources: list[Path], command: list[str]) -> str:
    digest = hashlib.sha256()
    version = subprocess.run([command[0], "--version"], capture_output=True, check=False).stdout
    facts = [torch.__version__, str(sysconfig.get_config_var("SOABI")), *command]
    digest.update(version + "\0".join(facts).encode())
    for path in sources:
        digest.update(path.read_bytes())
    return f"torch{torch.__version__}-{digest.hexdigest()[:16]}"


def _compile(command: list[str], library: Path) -> None:
    """Into a file of its own first: a library that exists is whole."""
    handle, unfinished = tempfile.mkstemp(suffix=".so", dir=library.parent)
    os.close(handle)
    try:
        done = subprocess.run(
            [*command, "-o", unfinished], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise InstallError(f"the torch glue does not compile: {_first_error(done.stderr)}")
        Path(unfinished).rename(library)
    finally:
        Path(unfinished).unlink(missing_ok=True)


def _first_error(text: str) -> str:
    lines = text.strip().splitlines() or ["the compiler says nothing"]
    return next((line for line in lines if "error" in line), lines[-1])


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # closing the file lets go
        yield


def _torch_version() -> int:
    major, minor = torch.__version__.split(".")[:2]
    return int(major) * 100 + int(minor)
