"""A prefill on a real vLLM, killed half-way, goes on from the KV blocks that vLLM itself had written to disk.

Scheduler, block hashes and disk tier are vLLM's; only its copy between GPU and host is replaced (cpuoffload.py).
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import cpuoffload
import pipeline as pipelines
import pytest
import vllmhold
import vllmplugins
from busy import told
from longctx.processes import reaper
from pipeline import ROOT, Pipeline, running, until

PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
POINT, TARGET = "64Ki/pass1", "results/measurements/64Ki/pass1.parquet"
LENGTH, KILL_AT, HOLD_AT, PATIENCE_S = 65_536, 24_000, 32_768, 1200.0
pytestmark = [pytest.mark.serving, pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-vllm")]


def with_checkpoints(pipeline: Pipeline, plugin: Path) -> Pipeline:
    """Tell the campaign nothing of the CPU: it refuses checkpoints there, where only the plugin makes them work."""
    del pipeline.config["serve"]["cpu_kv_cache_gib"]
    pipeline.configure(
        lengths=["64Ki"],
        checkpoint={"dir": "checkpoints", "cpu_gib": 0.25},
        serve={
            "python": str(PYTHON),
            "start_timeout_s": 600,
            "max_num_batched_tokens": 1024,
            "extra_args": ["--distributed-executor-backend", "uni"],
            "env": {"PYTHONPATH": str(plugin), "VLLM_CPU_KVCACHE_SPACE": "1"},
        },
    )
    return pipeline


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vllmplugins.install(tmp_path_factory.mktemp("plugin"), cpuoffload, vllmhold)


@pytest.fixture(scope="module")
def killed(plugin: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a campaign whose engine was killed with kill -9 in the middle of a prefill."""
    made = with_checkpoints(pipelines.make(tmp_path_factory.mktemp("killed")), plugin)
    hold = vllmhold.hold(plugin, HOLD_AT)
    with running(made, TARGET) as snakemake:
        until(lambda: done(made) >= KILL_AT or snakemake.poll() is not None, lambda: output(made), PATIENCE_S)
        assert snakemake.poll() is None, output(made)
        memory = reaper.shared_memory(made.processes())
        os.kill(made.one("EngineCore"), signal.SIGKILL)
        assert made.finish(snakemake).code != 0, output(made)
    made.nothing_left()
    hold.unlink()
    assert any("vllm_offload" in name for name in memory)
    assert not [name for name in memory if Path(name).exists()]
    assert "server_died" in output(made)
    return made.folder


def done(pipeline: Pipeline) -> int:
    """Tokens of the measured prefill that are done."""
    return max((entry.get("tokens_done") or 0 for entry in pipeline.status().get("current", {}).values()), default=0)


def output(pipeline: Pipeline) -> str:
    return (pipeline.folder / "output.txt").read_text()


def checkpoint_files(pipeline: Pipeline) -> list[Path]:
    return sorted(path for path in (pipeline.folder / "checkpoints").rglob("*") if path.is_file())


@pytest.fixture
def again(killed: Path, plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    """The killed campaign, as its user finds it."""
    monkeypatch.setattr(pipelines, "PATIENCE_S", PATIENCE_S)
    pipeline = with_checkpoints(pipelines.copy(killed, tmp_path / "work"), plugin)
    yield pipeline
    pipeline.nothing_left()


def test_the_same_command_takes_the_tokens_back_from_disk(again: Pipeline) -> None:
    assert checkpoint_files(again)
    assert again.run(TARGET).code == 0, output(again)
    (row,) = [row for row in again.rows(POINT) if row["role"] == "cold"]
    assert (row["status"], told(row)) == ("ok", ["resumed"]), row["detail"]
    assert 0 < row["resumed_from"] < LENGTH
    assert row["external_hit_tokens"] == row["cached_tokens"] == row["resumed_from"]
    assert row["prompt_tokens"] == LENGTH
    assert (row["ttft_s"], row["prefill_s"]) == (None, None), "neither is of a cold prompt"
    assert row["stitched_prefill_s"] > row["resumed_prefill_s"] > 0
    assert row["stitched_error_s"] > 0
    assert row["decode_tok_s"] > 0
    assert {row["cached_tokens"] for row in again.rows(POINT) if row["role"] == "warmup"} == {0}
    assert checkpoint_files(again) == []


def test_torn_blocks_cost_time_and_never_a_number(again: Pipeline) -> None:
    for path in checkpoint_files(again):
        os.truncate(path, path.stat().st_size // 2)
    assert again.run(TARGET).code == 0, output(again)
    (row,) = [row for row in again.rows(POINT) if row["role"] == "cold"]
    assert (row["status"], told(row)) == ("ok", ["no_external_hits"]), row["detail"]
    assert (row["cached_tokens"], row["resumed_from"]) == (0, None)
    assert row["ttft_s"] > row["prefill_s"] > 0
    assert checkpoint_files(again) == []
