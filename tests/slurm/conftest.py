"""SLURM itself: started for the tests, with pretend GPUs, and stopped after them."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from onenode import ROOT, Slurm, Sweep

NODE = Path(__file__).with_name("node.sh")
CONF = Path("/etc/slurm/slurm.conf")
FREEZER = Path("/sys/fs/cgroup/freezer")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A running SLURM; with proctrack/cgroup, as real clusters have it, if this machine can, or as PROCTRACK says."""
    if missing := [name for name in PROGRAMS if not shutil.which(name)]:
        pytest.skip(f"no SLURM here ({', '.join(missing)} not found): install the packages of envs/debian-slurm.txt")
    if os.geteuid() != 0:
        pytest.skip("starting slurmd needs root")
    if CONF.exists() and "ClusterName=onenode\n" not in CONF.read_text():
        pytest.skip(f"{CONF} is that of a real cluster: not touched")
    # One node a machine: test runs take turns, and each ends what a killed one left.
    with open(Path(tempfile.gettempdir()) / "longctx-test-slurm.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if CONF.exists():
            subprocess.run([NODE, "stop", CONF.resolve().parent], check=True, timeout=120)
        yield from _node(tmp_path_factory.mktemp("slurm"))


def _node(folder: Path) -> Iterator[Slurm]:
    tracking = {"PROCTRACK": "cgroup" if FREEZER.is_dir() and os.access(FREEZER, os.W_OK) else "linuxproc"}
    started = subprocess.run([NODE, "start", folder], env=tracking | os.environ, capture_output=True, text=True)
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    try:
        assert started.returncode == 0, started.stdout + started.stderr
        yield Slurm()
    finally:
        subprocess.run([NODE, "stop", folder], check=True, timeout=120)
        os.environ.pop("SLURM_CONF")
        if before:
            os.environ["SLURM_CONF"] = before


@pytest.fixture
def sweep(slurm: Slurm, tmp_path: Path) -> Iterator[Callable[..., Sweep]]:
    """Make a sweep; its Snakemake and its jobs end with the test."""
    made: list[Sweep] = []

    def make(fault: dict[str, Any] | None = None, **changes: Any) -> Sweep:
        serve = {
            "python": str(ROOT / "tests/bin/fake-vllm-python"),
            "kv_cache_dtype": "fp8_e4m3",
            "cpu_kv_cache_gib": 1,
            "headroom_tokens": 512,
            "start_timeout_s": 300,
            "contract": "warn",
        } | changes.pop("serve", {})
        base = {
            "lengths": [256, 512],
            "passes": 2,
            "max_new_tokens": 16,
            "model": {"source": "synthetic", "weights": "dummy", "vocabulary": 512},
            "corpus": {"source": str(ROOT / "scripts")},
            # A machine busy with other tests makes clocks disagree.
            "measure": {"clock_tolerance": 1e6},
        }
        made.append(Sweep(tmp_path, base | changes | {"serve": serve}, fault))
        return made[-1]

    yield make
    for one in made:
        one.close()
    subprocess.run(["scancel", "--me"], check=True, timeout=60)
