"""The SLURM profile replaces the default one, so it must say all that the default one says."""

from pathlib import Path
from typing import Any

import yaml

PROFILES = Path(__file__).parents[2] / "profiles"


def profile(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((PROFILES / name / "config.yaml").read_text()))


def test_slurm_repeats_the_default_profile() -> None:
    default, slurm = profile("default"), profile("slurm")
    assert default["rerun-triggers"] == ["mtime", "params", "input"]
    spoken = {"quiet"}  # here the scripts say what they do; a SLURM job says it in its log
    assert {key: slurm.get(key) for key in default if key not in spoken} == {
        key: value for key, value in default.items() if key not in spoken
    }
    assert slurm["show-failed-logs"] is True
    assert slurm["executor"] == "slurm"
    assert "retries" not in slurm, "a repeated job would hide a failed point"
