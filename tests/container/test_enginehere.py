"""What the container tests leave on the machine."""

import subprocess
from pathlib import Path

import pytest
from enginehere import unmount_below


def test_nothing_stays_mounted_below_a_folder(tmp_path: Path) -> None:
    outer = tmp_path / "a folder"
    outer.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "none", outer], capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    (outer / "inner").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", outer / "inner"], check=True)
    assert "inner" in Path("/proc/mounts").read_text()
    unmount_below(tmp_path)
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
