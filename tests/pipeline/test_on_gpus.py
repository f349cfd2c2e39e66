"""Campaigns on GPUs that a stand-in for NVML shows; those that the server doesn't use draw more power."""

import json
import os
import signal

import fakenvml
import pytest
from longctx.measure.warmup import SMALL_TOKENS
from pipeline import Pipeline, running, until

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


def show(pipeline: Pipeline, *gib: int) -> None:
    gpus = [gpu | {"memory": [used << 30, 143771 << 20]} for gpu, used in zip(GPUS, gib, strict=True)]
    content = {"driver": "580.95", "cuda": 13000, "gpus": gpus}
    (pipeline.folder / "nvml" / "new.json").write_text(json.dumps(content))
    (pipeline.folder / "nvml" / "new.json").replace(pipeline.folder / "nvml" / "nvml.json")


def test_another_campaign_waits_for_the_memory_of_a_killed_one(on_gpus: Pipeline) -> None:
    show(on_gpus, 0, 2, 2)
    on_gpus.hold(0)
    with running(on_gpus, "results/summary.parquet") as first:
        until(lambda: len(on_gpus.requests()) == 1)
        show(on_gpus, 0, 43, 43)
        for pid in on_gpus.processes():
            os.kill(pid, signal.SIGKILL)
        on_gpus.finish(first)
    on_gpus.nothing_left()
    on_gpus.faults()
    on_gpus.configure(name="second")
    status = on_gpus.results / "second" / "status.json"
    waits = "waiting for GPU memory of the last server: GPU 1 holds 43.0 GiB, 2.0 before; GPU 2 holds 43.0 GiB"
    with running(on_gpus, "results/second/summary.parquet") as second:
        until(lambda: second.poll() is not None or (status.exists() and waits in status.read_text()))
        assert not on_gpus.processes("fakeserver.py")
        assert second.poll() is None, "it must not start beside that memory"
        show(on_gpus, 0, 2, 2)
        done = on_gpus.finish(second)
    assert done.code == 0, done.output


@pytest.mark.slow
def test_a_filled_cache_s_first_prompt_has_several_blocks_too(on_gpus: Pipeline) -> None:
    """On an H200 the kernel that clears several blocks was compiled inside each server's first longer prompt."""
    on_gpus.configure(lengths=[512], modes=["decode_only"])
    on_gpus.run("results/summary.parquet")
    sent = [json.loads(line) for line in (on_gpus.folder / "requests.jsonl").read_text().splitlines()]
    assert (sent[0]["count"], sent[0]["cached"]) == (512, 511), "a chunk and a bit, or as long as the longest"
    assert [request["count"] for request in sent[1:]] == [SMALL_TOKENS] * (len(sent) - 2) + [512]
