"""The pipeline itself through launcher `container`: a real vLLM sweep beside the same one with `local`, and kills."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from enginehere import CAMPAIGN, IMAGE, ROOT, Engine, python_mounts, wait_until
from longctx.resources import VLLM_PLUGINS
from longctx.storage import parquet, schemas

pytestmark = [pytest.mark.container, pytest.mark.timeout(1800)]
VLLM_PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
LENGTHS = ("256", "1Ki")
# What a launcher may differ in; everything else of a server is the recipe.
LAUNCHER_FACTS = {"launcher", "image", "image_digest", "startup_s"}
BASE = {
    "name": CAMPAIGN,
    "passes": 1,
    "max_new_tokens": 8,
    "model": {"source": "synthetic", "weights": "dummy"},
    "corpus": {"source": str(ROOT / "scripts")},
    # A machine busy with other tests makes clocks disagree.
    "measure": {"clock_tolerance": 1e6},
}


def vllm_config(**changes: Any) -> dict[str, Any]:
    """Return a campaign on the CPU's vLLM, which a container borrows from this host; skip where there is none."""
    if not VLLM_PYTHON.exists():
        pytest.skip("the CPU vLLM environment is missing (make setup)")
    serve = {"python": str(VLLM_PYTHON), "kv_cache_dtype": "fp8_e4m3", "cpu_kv_cache_gib": 1, "enforce_eager": True}
    serve["scope"] = "campaign"  # one start each: the stand-in's tests start and end a server for every point
    mounts = python_mounts(VLLM_PYTHON)
    borrowed = {"engine": "podman", "image": IMAGE, "python": str(VLLM_PYTHON), "pass_env": [], "mounts": mounts}
    return {"serve": serve, "container": borrowed} | changes


class Sweep:
    """A campaign in a folder of its own, run by the real Snakemake on this checkout's Snakefile."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        (folder / "config.yaml").write_text(yaml.safe_dump(BASE | config))

    @property
    def results(self) -> Path:
        return self.folder / "results" / CAMPAIGN

    def start(self, target: str) -> subprocess.Popen[str]:
        target = f"results/{CAMPAIGN}/{target}"
        return subprocess.Popen(
            [sys.executable, "-m", "snakemake", "--snakefile", ROOT / "Snakefile", "--cores", "1", target],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, target: str) -> None:
        with self.start(target) as process:
            said, _ = process.communicate()
        assert process.returncode == 0, said

    def rows(self, table: str) -> list[dict[str, Any]]:
        folder = self.results / table
        return [row for length in LENGTHS for row in parquet.read_rows(folder / length / "pass1.parquet")]


@pytest.fixture(scope="module")
def sweeps(podman: Engine, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Sweep]:
    """Two campaigns whose configuration differs in `launcher` alone, both measured with vLLM."""
    made = {}
    for launcher, target in (("container", "report.md"), ("local", "summary.parquet")):
        config = vllm_config(lengths=list(LENGTHS), launcher=launcher)
        made[launcher] = Sweep(tmp_path_factory.mktemp(launcher), config)
        made[launcher].run(target)
    return made


@pytest.mark.serving
def test_a_server_in_a_container_imports_the_connector_of_mode_sampled(podman: Engine, tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, vllm_config(lengths=["8Ki"], modes=["sampled"], launcher="container"))
    sweep.run("measurements/8Ki/sampled-pass1.parquet")
    rows = parquet.read_rows(sweep.results / "measurements" / "8Ki" / "sampled-pass1.parquet")
    samples = {row["role"]: (row["status"], row["claimed_tokens"], row["external_hit_tokens"]) for row in rows}
    assert samples["sample_short"] == ("ok", 6144, 6144)
    assert samples["sample_long"] == ("ok", 2048, 2048)
    (server,) = parquet.read_rows(sweep.results / "servers" / "8Ki" / "sampled-pass1.parquet")
    assert f"{VLLM_PLUGINS}:{VLLM_PLUGINS}:ro" in server["command"]
    assert f"PYTHONPATH={VLLM_PLUGINS}" in server["command"]


@pytest.mark.serving
def test_a_sweep_through_a_container_is_complete_and_leaves_none(podman: Engine, sweeps: dict[str, Sweep]) -> None:
    rows = [row for row in sweeps["container"].rows("measurements") if row["role"] == "cold"]
    assert [(row["length"], row["status"], row["completion_tokens"]) for row in rows] == [
        (256, "ok", 8),
        (1024, "ok", 8),
    ]
    assert podman.containers() == []


@pytest.mark.serving
def test_the_report_names_the_image_and_its_digest(podman: Engine, sweeps: dict[str, Sweep]) -> None:
    digest = podman.call("image", "inspect", "--format", "{{.Digest}}", IMAGE).stdout.strip()
    results = sweeps["container"].results
    assert {(row["image"], row["image_digest"]) for row in sweeps["container"].rows("servers")} == {(IMAGE, digest)}
    report = (results / "report.md").read_text()
    assert IMAGE in report
    assert digest in report
    assert json.loads((results / "image.json").read_text())["digest"] == digest


@pytest.mark.serving
def test_both_launchers_use_the_same_recipe(sweeps: dict[str, Sweep]) -> None:
    """vLLM's own account of itself, and the arguments that it was started with."""
    local, container = (sweeps[name].rows("servers") for name in ("local", "container"))
    names = [name for name in schemas.SERVER_FACTS if name not in LAUNCHER_FACTS]
    assert [[row[name] for name in names] for row in local] == [[row[name] for name in names] for row in container]
    assert [arguments(row, sweeps["local"]) for row in local] == [
        arguments(row, sweeps["container"]) for row in container
    ]
    assert [row["launcher"] for row in (*local, *container)] == ["local"] * 2 + ["container"] * 2


def arguments(server: dict[str, Any], sweep: Sweep) -> dict[str, list[str]]:
    """vLLM's arguments of a server by flag, without the names and the port that each start has for itself."""
    command = server["command"][server["command"].index("-m") :]
    flags: dict[str, list[str]] = {}
    for word in command:
        if word.startswith("-"):
            flags[word] = []
        else:
            flags[next(reversed(flags))].append(word)
    del flags["--port"]
    flags["--served-model-name"] = flags["--served-model-name"][:1]
    flags["--model"] = [os.path.relpath(sweep.folder / model, sweep.folder) for model in flags["--model"]]
    return flags


def test_killing_snakemake_leaves_no_container_and_the_next_run_finishes(
    tmp_path: Path, engine: Engine, stand_in: Callable[..., dict[str, Any]]
) -> None:
    faults = tmp_path / "faults.json"
    faults.write_text(json.dumps({"by_length": {"256": {"ttft_s": 600}}}))
    env = {"FAKE_PLAN": str(faults), "FAKE_PYTHON": str(Path(sys.base_prefix) / "bin" / "python3")}
    sweep = Sweep(
        tmp_path / "work",
        {
            "lengths": [256],
            "launcher": "container",
            "serve": {"env": env, "contract": "warn"},
            "container": stand_in(mounts=[f"{tmp_path}:{tmp_path}:ro"]),
        },
    )
    with sweep.start("summary.parquet") as process:
        try:
            wait_until(engine.containers, "a container is started")
        finally:
            os.kill(process.pid, signal.SIGKILL)
        wait_until(lambda: not engine.containers(), "the container is gone")
        faults.write_text("{}")
    sweep.run("summary.parquet")
    (row,) = parquet.read_rows(sweep.results / "summary.parquet")
    assert (row["n"], row["n_failed"]) == (1, 0)
    assert engine.containers() == []


@pytest.mark.serving
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not os.environ.get("LONGCTX_BUILD_IMAGES"), reason="LONGCTX_BUILD_IMAGES is not set: 5 min, 4 GB")
def test_the_cpu_image_is_built_on_a_local_base_and_serves_a_sweep(podman: Engine, tmp_path: Path) -> None:
    """The commands of workflow/campaigns/cpu-image.yaml; what they built is kept for the next time."""
    made = subprocess.run([ROOT / "scripts" / "images" / "make_base.sh"], capture_output=True, text=True, timeout=1800)
    if made.returncode:
        pytest.skip(f"no base image can be made here: {made.stderr[-500:]}")
    overlay = yaml.safe_load((ROOT / "workflow" / "campaigns" / "cpu-image.yaml").read_text())
    overlay["container"]["containerfile"] = str(ROOT / overlay["container"]["containerfile"])
    serve = {"kv_cache_dtype": "fp8_e4m3", "cpu_kv_cache_gib": 1, "enforce_eager": True}
    sweep = Sweep(tmp_path / "work", {"lengths": list(LENGTHS), "launcher": "container", "serve": serve} | overlay)
    sweep.run("report.md")
    assert [row["n"] for row in parquet.read_rows(sweep.results / "summary.parquet")] == [1, 1]
    record = json.loads((sweep.results / "image.json").read_text())
    assert record["digest"] in (sweep.results / "report.md").read_text()
    (sweep.results / "image.json").unlink()
    sweep.run("image.json")
    assert json.loads((sweep.results / "image.json").read_text()) == record | {"built": False}
    assert podman.containers() == []
