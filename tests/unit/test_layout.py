"""The library never imports Snakemake; all else about its layout is the import contract in pyproject.toml."""

import re
from pathlib import Path

import longctx


def test_the_library_never_imports_snakemake() -> None:
    for path in Path(longctx.__file__).parent.rglob("*.py"):
        assert not re.search(r"^\s*(import|from) snakemake\b", path.read_text(), re.MULTILINE), path
