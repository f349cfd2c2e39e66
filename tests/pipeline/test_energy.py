"""Energy of a whole campaign: a stand-in nvidia-smi draws more on the GPUs that the server doesn't use."""

import os

import pytest
from pipeline import Pipeline

SMI = """#!/bin/sh
case "$*" in
  *power.draw*) while :; do echo '0, 5000'; echo '1, 200'; echo '2, 7000'; sleep 0.05; done ;;
  *--query-gpu*) for i in 0 1 2; do echo "$i, NVIDIA H200, 4, 143771, 580.95"; done ;;
  *) echo '| CUDA Version: 13.0 |' ;;
esac
"""


def test_only_the_gpus_that_the_server_computes_on_are_counted(
    prepared: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = prepared.folder / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(SMI)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    prepared.configure(lengths=[256], serve={"env": {"CUDA_VISIBLE_DEVICES": "1,2"}})
    prepared.faults(measured={"ttft_s": 1.0, "itl_s": 0.1})
    prepared.run("results/summary.parquet")
    (row,) = [row for row in prepared.rows("256/pass1") if row["role"] == "cold"]
    assert (row["gpu_count"], row["power_mean_w"]) == (1, pytest.approx(200.0))
    assert 0 < row["energy_decode_j"] < row["energy_j"]
