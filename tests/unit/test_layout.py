"""The library never imports Snakemake; all else about its layout is the import contract in pyproject.toml."""

import ast
import re
from pathlib import Path

import longctx


def test_the_library_never_imports_snakemake() -> None:
    for path in Path(longctx.__file__).parent.rglob("*.py"):
        assert not re.search(r"^\s*(import|from) snakemake\b", path.read_text(), re.MULTILINE), path


def _text_calls_without_encoding(path: Path) -> list[str]:
    """Return the calls of a module that read or write text in the locale's encoding."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or any(keyword.arg == "encoding" for keyword in node.keywords):
            continue
        modes = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        opens = isinstance(node.func, ast.Name) and node.func.id == "open" and not any("b" in mode for mode in modes)
        whole = isinstance(node.func, ast.Attribute) and node.func.attr in ("read_text", "write_text")
        asks = any(keyword.arg == "text" and ast.unparse(keyword.value) == "True" for keyword in node.keywords)
        if opens or whole or asks:
            found.append(f"{path.name}:{node.lineno}")
    return found


def test_no_text_is_in_the_encoding_of_the_locale() -> None:
    scripts = Path(longctx.__file__).parents[1]
    assert [call for path in scripts.rglob("*.py") for call in _text_calls_without_encoding(path)] == []
