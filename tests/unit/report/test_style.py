"""The look of figures does not depend on the shell that draws them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

DRAW = """
import sys
from longctx.report import style
with style.theme():
    style.save(style.empty_figure("Title", "", "nothing"), sys.argv[1])
"""


@pytest.mark.process
@pytest.mark.parametrize("backend", ["module://matplotlib_inline.backend_inline", "nonsense", "TkAgg", ""])
def test_a_backend_of_the_shell_changes_nothing(backend: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", DRAW, str(tmp_path / "figure")]
    done = subprocess.run(
        command, env=os.environ | {"MPLBACKEND": backend}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "figure.png").stat().st_size > 1000
