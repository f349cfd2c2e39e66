"""A real vLLM that the pipeline did not start: measured through launcher external, and still running afterwards."""

import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from busy import told
from longctx.prompts import synthetic_model
from longctx.serve.lifecycle import choose_port
from longctx.storage import parquet, schemas

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
LENGTHS = ("256", "2Ki")
pytestmark = [pytest.mark.serving, pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-vllm")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    synthetic_model.make_model(folder, {"vocab_size": 2048}, training_chars=200_000)
    return folder


@pytest.fixture(scope="module")
def theirs(model: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server as somebody else starts it: prefix caching on, no token details, a name of its own."""
    port = choose_port()
    command = [
        PYTHON,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        model,
        "--served-model-name",
        "theirs",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--max-model-len",
        "4096",
        "--load-format",
        "dummy",
        "--enforce-eager",
        "--distributed-executor-backend",
        "uni",
        "--max-num-seqs",
        "4",
    ]
    env = os.environ | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    with open(model / "log", "wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        deadline = time.monotonic() + 600
        while not answers(f"http://127.0.0.1:{port}"):
            assert process.poll() is None, (model / "log").read_text()
            assert time.monotonic() < deadline, (model / "log").read_text()
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}", process
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def campaign(folder: Path, model: Path, url: str, **changes: Any) -> subprocess.CompletedProcess[str]:
    """Run a campaign on the server, to its report."""
    config = {
        "lengths": list(LENGTHS),
        "passes": 2,
        "max_new_tokens": 16,
        "corpus": {"source": str(ROOT / "scripts")},
        "model": {"source": str(model), "weights": "dummy"},
        "launcher": "external",
        "external": {"url": url},
        # A machine busy with other tests makes clocks disagree.
        "measure": {"clock_tolerance": 100},
    }
    (folder / "campaign.yaml").write_text(yaml.safe_dump(config | changes))
    command = [sys.executable, "-m", "snakemake", "--snakefile", ROOT / "Snakefile", "--configfile", "campaign.yaml"]
    return subprocess.run([*command, "--cores", "1"], cwd=folder, capture_output=True, text=True, timeout=1200)


def cold_rows(results: Path, passes: int = 2) -> list[dict[str, Any]]:
    points = [(length, index) for length in LENGTHS for index in range(1, passes + 1)]
    files = [results / "measurements" / length / f"pass{index}.parquet" for length, index in points]
    rows = [row for file in files for row in parquet.read_rows(file, schemas.MEASUREMENTS)]
    return [row for row in rows if row["role"] == "cold"]


def test_it_is_measured_and_left_running(
    tmp_path: Path, model: Path, theirs: tuple[str, subprocess.Popen[bytes]]
) -> None:
    url, process = theirs
    done = campaign(tmp_path, model, url)
    assert done.returncode == 0, done.stdout + done.stderr
    results = tmp_path / "results"
    rows = cold_rows(results)
    assert len(rows) == 4
    for row in rows:
        assert (row["status"], told(row)) == ("ok", ["contract_unproven"]), row["detail"]
        assert row["prompt_tokens"] == row["length"]
        assert row["ttft_s"] > row["prefill_s"] > 0
        assert row["decode_source"] == "server"
        assert (row["model"], row["vllm_version"], row["launcher"]) == ("theirs", "0.32.0", "external")
        assert (row["prefix_caching"], row["max_model_len"], row["host"]) == (True, 4096, platform.node())
        assert row["kv_capacity_tokens"] > 1_000_000
    (started,) = parquet.read_rows(results / "servers" / "256" / "pass1.parquet", schemas.SERVERS)
    caching = next(entry for entry in json.loads(started["contract"]) if entry["setting"] == "prefix_caching")
    assert (caching["asked"], caching["actual"], caching["ok"]) == (None, True, True)
    assert "contract_unproven" in (results / "report.md").read_text()
    assert not (results / ".run").exists(), "nothing of it is ours to end"
    assert process.poll() is None
    assert answers(url)


def test_a_second_campaign_is_cold_too(
    tmp_path: Path, model: Path, theirs: tuple[str, subprocess.Popen[bytes]]
) -> None:
    """The server keeps prefixes; only without a salt does it know the prompts of the campaign before."""
    cached, once = {}, {"clock_tolerance": 100, "retry_doubtful": 0}
    for name, prompt in (("a", {}), ("b", {}), ("c", {"salt": ""}), ("d", {"salt": ""})):
        campaign(tmp_path, model, theirs[0], name=name, prompt=prompt, passes=1, measure=once)
        rows = cold_rows(tmp_path / "results" / name, passes=1)
        cached[name] = [row["cached_tokens"] for row in rows]
    assert cached["a"] == cached["b"] == [0, 0]
    assert all(cached["d"])
