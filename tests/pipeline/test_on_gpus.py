"""Campaigns on GPUs that a stand-in for NVML shows; those that the server doesn't use draw more power."""

import json

import fakenvml
import pytest
from longctx.measure.warmup import SMALL_TOKENS
from pipeline import Pipeline

GPUS = [fakenvml.h200(power_w=watts) for watts in (5000, 200, 7000)]


@pytest.fixture
def on_gpus(prepared: Pipeline, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    fakenvml.install(prepared.folder / "nvml", {"driver": "580.95", "cuda": 13000, "gpus": GPUS}, monkeypatch.setenv)
    prepared.configure(lengths=[256], serve={"env": {"CUDA_VISIBLE_DEVICES": "1,2"}})
    return prepared


def test_only_the_gpus_that_the_server_computes_on_are_counted(on_gpus: Pipeline) -> None:
    on_gpus.faults(measured={"ttft_s": 1.0, "itl_s": 0.1})
    on_gpus.run("results/summary.parquet")
    (row,) = [row for row in on_gpus.rows("256/pass1") if row["role"] == "cold"]
    assert (row["gpu_count"], row["power_mean_w"]) == (1, pytest.approx(200.0, rel=0.1))
    assert 0 < row["energy_decode_j"] < row["energy_j"]


@pytest.mark.slow
def test_a_filled_cache_s_first_prompt_has_several_blocks_too(on_gpus: Pipeline) -> None:
    """On an H200 the kernel that clears several blocks was compiled inside each server's first longer prompt."""
    on_gpus.configure(lengths=[512], modes=["decode_only"])
    on_gpus.run("results/summary.parquet")
    sent = [json.loads(line) for line in (on_gpus.folder / "requests.jsonl").read_text().splitlines()]
    assert (sent[0]["count"], sent[0]["cached"]) == (512, 511), "a chunk and a bit, or as long as the longest"
    assert [request["count"] for request in sent[1:]] == [SMALL_TOKENS] * (len(sent) - 2) + [512]
