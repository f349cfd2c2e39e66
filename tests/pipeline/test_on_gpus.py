"""Campaigns on GPUs that a stand-in nvidia-smi shows; those that the server doesn't use draw more power."""

import json
import os

import pytest
from longctx.measure.warmup import SMALL_TOKENS
from pipeline import Pipeline

SMI = """#!/bin/sh
case "$*" in
  *power.draw*) while :; do echo '0, 5000'; echo '1, 200'; echo '2, 7000'; sleep 0.05; done ;;
  *--query-gpu*) for i in 0 1 2; do echo "$i, NVIDIA H200, 4, 143771, 580.95"; done ;;
  *) echo '| CUDA Version: 13.0 |' ;;
esac
"""


@pytest.fixture
def on_gpus(prepared: Pipeline, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    tool = prepared.folder / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(SMI)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    prepared.configure(lengths=[256], serve={"env": {"CUDA_VISIBLE_DEVICES": "1,2"}})
    return prepared


def test_only_the_gpus_that_the_server_computes_on_are_counted(on_gpus: Pipeline) -> None:
    on_gpus.faults(measured={"ttft_s": 1.0, "itl_s": 0.1})
    on_gpus.run("results/summary.parquet")
    (row,) = [row for row in on_gpus.rows("256/pass1") if row["role"] == "cold"]
    assert (row["gpu_count"], row["power_mean_w"]) == (1, pytest.approx(200.0))
    assert 0 < row["energy_decode_j"] < row["energy_j"]


@pytest.mark.slow
def test_a_filled_cache_s_first_prompt_has_several_blocks_too(on_gpus: Pipeline) -> None:
    """On an H200 the kernel that clears several blocks was compiled inside each server's first longer prompt."""
    on_gpus.configure(lengths=[512], modes=["decode_only"])
    on_gpus.run("results/summary.parquet")
    sent = [json.loads(line) for line in (on_gpus.folder / "requests.jsonl").read_text().splitlines()]
    assert (sent[0]["count"], sent[0]["cached"]) == (512, 511), "a chunk and a bit, or as long as the longest"
    assert [request["count"] for request in sent[1:]] == [SMALL_TOKENS] * (len(sent) - 2) + [512]
