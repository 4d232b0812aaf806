"""The rules of the house, held by reading the sources: what may include or import what, how long
files and functions may be, and that the C interface, its Python mirror and the library agree."""

from __future__ import annotations

import ast
import ctypes
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from vdnn_alloc import native

ROOT = Path(__file__).parent.parent

# From the bottom up. A file may include its own header and those of rooms above it in this list.
# (As text, for a list of this length would be laid out one word a line.)
CORE_ROOMS = """
    vdnn_alloc check text driver
    host_pages cuda_abi cuda_api cuda_properties cuda_driver
    host_stream host_backing host_memory host_driver
    trace stats fence step_recorder frame_pool mapping_cache best_fit heap
    host_budget pin_worker host_pool backing_pool
    block block_table episode step_plan graph_pool device_state host_growth mover held_blocks
    shortage pressure placement prefetch workspaces
    device device_stats graph_capture saved_blocks planning access_guard process error_border
    torch_entry control_api
""".split()  # noqa: SIM905

# From the bottom up. A module or package may import only those before it in this list.
PYTHON_ROOMS = """
    errors units plan step_profile ideal_step simulate range_levels planner
    policies config host_memory budgets hooks native step_record
    snapshot reports exit_report
    glue cuda_border border hook_stack layers episodes plan_keeper pool_indices rectified
    saved_tensors controller installation
    commands __init__ __main__
""".split()  # noqa: SIM905
TORCH_ROOMS = """
    glue cuda_border border hook_stack layers pool_indices rectified saved_tensors controller
    installation commands
""".split()  # noqa: SIM905
CTYPES_ROOMS = ["native"]

FILE_LINES = 400
FUNCTION_LINES = 50

CORE = sorted(p for p in (ROOT / "allocator").glob("*") if p.suffix in {".hpp", ".cpp", ".h"})
GLUE = sorted(p for p in (ROOT / "allocator/torch_glue").glob("*") if p.is_file())
CXX_TESTS = sorted((ROOT / "tests").rglob("*.[ch]pp"))
CXX = [*CORE, *(p for p in GLUE if p.suffix in {".hpp", ".cpp", ".h"}), *CXX_TESTS]
PACKAGE = sorted((ROOT / "vdnn_alloc").rglob("*.py"))
PYTHON = [
    *PACKAGE,
    *sorted((ROOT / "tests").rglob("*.py")),
    *sorted((ROOT / "bench").rglob("*.py")),
]
HEADER = ROOT / "allocator/vdnn_alloc.h"


def each(files: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", files, ids=lambda p: str(p.relative_to(ROOT)))


def without_comments(source: str) -> str:
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", source, flags=re.DOTALL)


# --- what may use what ---------------------------------------------------------------------------


@each(CORE)
def test_core_includes_go_only_downward(path: Path) -> None:
    assert path.stem in CORE_ROOMS, f"{path.name} has no place in CORE_ROOMS"
    above = CORE_ROOMS[CORE_ROOMS.index(path.stem) + 1 :]
    for included in re.findall(r'^#include "(.+?)"', path.read_text(), flags=re.MULTILINE):
        assert Path(included).stem in CORE_ROOMS, f"{included} is no header of the core"
        assert Path(included).stem not in above, f"{path.name} includes {included}, which is above"


@each(CORE)
def test_core_knows_no_torch_no_python_and_no_cuda_toolkit(path: Path) -> None:
    included = re.findall(r"^#include <(.+?)>", path.read_text(), flags=re.MULTILINE)
    foreign = ("torch/", "ATen/", "c10/", "Python.h", "cuda")
    assert [name for name in included if name.startswith(foreign)] == []


@each(GLUE)
def test_glue_reaches_the_core_only_through_its_c_interface(path: Path) -> None:
    own = {p.name for p in GLUE} | {HEADER.name}
    included = set(re.findall(r'^#include "(.+?)"', path.read_text(), flags=re.MULTILINE))
    assert included <= own


@each([p for p in CXX if p.name != "cuda_driver.cpp"])
def test_only_the_cuda_driver_names_libcuda(path: Path) -> None:
    assert not re.search(r"\blibcuda\b", path.read_text())


def imports(path: Path) -> Iterator[str]:
    """The full names that a module of the package imports, anywhere in it."""
    package = ["vdnn_alloc", *path.relative_to(ROOT / "vdnn_alloc").parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = [*base, node.module] if node.module else base
            yield from (".".join([*source, alias.name]) for alias in node.names)


def room_of(path: Path) -> str:
    first = path.relative_to(ROOT / "vdnn_alloc").parts[0]
    return first.removesuffix(".py")


@each(PACKAGE)
def test_imports_go_only_downward(path: Path) -> None:
    room = room_of(path)
    assert room in PYTHON_ROOMS, f"{room} has no place in PYTHON_ROOMS"
    above = PYTHON_ROOMS[PYTHON_ROOMS.index(room) + 1 :]
    for name in imports(path):
        package, _, rest = name.partition(".")
        if package == "vdnn_alloc":
            assert rest.split(".")[0] not in above, f"{room} imports {name}, which is above it"


@each(PACKAGE)
def test_torch_and_ctypes_stay_in_their_modules(path: Path) -> None:
    packages = {name.partition(".")[0] for name in imports(path)}
    assert "torch" not in packages or room_of(path) in TORCH_ROOMS
    assert "ctypes" not in packages or room_of(path) in CTYPES_ROOMS


# --- sizes, openings, leftovers ------------------------------------------------------------------


@each([*CXX, *PYTHON])
def test_files_are_short_and_say_first_what_they_are_for(path: Path) -> None:
    source = path.read_text()
    assert source.count("\n") <= FILE_LINES
    if path.suffix == ".py":
        assert ast.get_docstring(ast.parse(source))
    else:
        assert source.startswith(("//", "/*"))


@each(PYTHON)
def test_python_functions_are_short(path: Path) -> None:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, functions) and node.end_lineno is not None:
            assert node.end_lineno - node.lineno < FUNCTION_LINES, node.name


def cxx_blocks(source: str, indent: str) -> Iterator[tuple[str, int]]:
    """First line and length of each brace block that opens and closes at this indentation."""
    lines = source.split("\n")
    opening = 0
    for number, line in enumerate(lines):
        if line.startswith(indent + "}"):
            yield lines[opening].strip(), number - opening + 1
        if re.match(indent + r"[^\s}#/]", line):
            opening = number


@each(CXX)
@pytest.mark.parametrize("indent", ["", "  "], ids=["free", "member"])
def test_cxx_functions_are_short(path: Path, indent: str) -> None:
    # clang-format leaves a namespace's content at column 0 and a class's at column 2.
    types = re.compile(r"(template.*> )?(namespace|class|struct|enum|union|extern|typedef)\b")
    for first, length in cxx_blocks(path.read_text(), indent):
        assert types.match(first) or length <= FUNCTION_LINES, f"{first} has {length} lines"


@each([*CXX, *PYTHON])
def test_nothing_is_left_for_later_without_a_reason(path: Path) -> None:
    left = re.search(r"\b(TO[D]O|FIX[M]E|X[X]X)\b(?!\(\w.*\):)", path.read_text())
    assert left is None


# --- one interface, three places -----------------------------------------------------------------

C_TYPES = {"uint32_t": ctypes.c_uint32, "uint64_t": ctypes.c_uint64, "double": ctypes.c_double}


def c_structs() -> dict[str, list[tuple[str, type]]]:
    """The fields of each struct of the C interface, in order."""
    structs = {}
    for body, name in re.findall(
        r"typedef struct \{(.*?)\} (\w+);", without_comments(HEADER.read_text()), flags=re.DOTALL
    ):
        structs[name] = [
            (field.strip(), C_TYPES[c_type])
            for c_type, names in re.findall(r"(\w+) ([^;]+);", body)
            for field in names.split(",")
        ]
    return structs


def python_structs() -> dict[str, list[tuple[str, type]]]:
    """The fields of each ctypes structure of the mirror; its docstring is the name in C."""
    mirrors = [
        value
        for value in vars(native).values()
        if isinstance(value, type) and issubclass(value, ctypes.Structure)
    ]
    return {(mirror.__doc__ or "").rstrip("."): list(mirror._fields_) for mirror in mirrors}


def test_the_python_mirror_has_the_structs_of_the_header() -> None:
    assert python_structs() == c_structs()


def test_the_library_exports_the_functions_of_the_header_and_nothing_else() -> None:
    declared = set(re.findall(r"\b(vdnn_\w+)\((?!\*)", without_comments(HEADER.read_text())))
    command = ["nm", "--dynamic", "--defined-only", "--format=posix", native.find_library()]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert {line.split()[0] for line in listing.splitlines()} == declared


def test_the_library_has_the_callable_functions_of_the_mirror() -> None:
    native.Native(native.find_library())  # looks up each name that it binds
