"""The map of the library, which the next reader opens first, is that of the territory."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import longctx
import pytest

FOLDER = Path(longctx.__file__).parent
LINES = [line.split(", ") for line in re.findall(r"^    (\S.*?)  ", longctx.__doc__ or "", re.MULTILINE)]
LEVEL = {name: level for level, names in enumerate(LINES) for name in names}


def imported(path: Path) -> Iterator[str]:
    """Yield the modules of the library that a file imports at its top."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "longctx":
            inside = (node.module or "").split(".")[1:]
            yield from inside[:1] or [alias.name for alias in node.names]


def test_the_map_names_every_module_once() -> None:
    modules = {path.stem for path in FOLDER.glob("*.py")} | {path.parent.name for path in FOLDER.glob("*/__init__.py")}
    assert sorted(name for names in LINES for name in names) == sorted(modules - {"__init__"})


@pytest.mark.parametrize("name", LEVEL)
def test_a_module_uses_only_its_own_line_and_those_above(name: str) -> None:
    files = (FOLDER / name).glob("*.py") if (FOLDER / name).is_dir() else [FOLDER / f"{name}.py"]
    used = {module for file in files for module in imported(file)} - {"__version__"}
    assert [module for module in sorted(used) if LEVEL[module] > LEVEL[name]] == []


def test_the_library_never_imports_snakemake() -> None:
    for path in FOLDER.rglob("*.py"):
        assert not re.search(r"^\s*(import|from) snakemake\b", path.read_text(), re.MULTILINE), path
