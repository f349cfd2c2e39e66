"""GPU memory that must come back between two servers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fakenvml
import pytest
from longctx.errors import ServerError
from longctx.serve.machine import gpu_memory
from patching import replace_in

Show = Callable[..., None]
TOTAL = 143771 << 20
FIRST = fakenvml.h200(memory=[1 << 30, TOTAL])


def test_memory_that_comes_back_is_waited_for(two_gpus: Show, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            two_gpus(FIRST, fakenvml.h200())

    replace_in(monkeypatch, gpu_memory, "time", sleep=nap)
    with gpu_memory.resting_level(tmp_path / "run", {}):
        two_gpus(fakenvml.h200(memory=[90000 << 20, TOTAL]), fakenvml.h200())
    assert len(naps) == 3
    gpu_memory.wait_until_free(tmp_path / "run", print, limit_s=0)
    assert list((tmp_path / "run").iterdir()) == []


def test_memory_that_stays_away_refuses_the_next_start(two_gpus: Show, tmp_path: Path) -> None:
    with gpu_memory.resting_level(tmp_path / "run", {}, limit_s=0):
        two_gpus(FIRST, fakenvml.h200(memory=[90000 << 20, TOTAL]))
    with pytest.raises(ServerError, match=r"GPU 1 holds 87.9 GiB, 0.0 before") as error:
        gpu_memory.wait_until_free(tmp_path / "run", print, limit_s=0)
    assert error.value.reason == "server_start"
    two_gpus(FIRST, fakenvml.h200())
    gpu_memory.wait_until_free(tmp_path / "run", print, limit_s=0)
    gpu_memory.wait_until_free(tmp_path / "run", print, limit_s=0)


def test_what_is_waited_for_is_told(two_gpus: Show, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gpu_memory.resting_level(tmp_path / "run", {}, limit_s=0):
        two_gpus(FIRST, fakenvml.h200(memory=[41 << 30, TOTAL]))
    said: list[str] = []
    replace_in(monkeypatch, gpu_memory, "time", sleep=lambda _: two_gpus(FIRST, fakenvml.h200()))
    gpu_memory.wait_until_free(tmp_path / "run", said.append)
    assert said == ["waiting for GPU memory of the last server: GPU 1 holds 41.0 GiB, 0.0 before"]


def test_a_level_of_an_earlier_boot_says_nothing(
    two_gpus: Show, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gpu_memory.resting_level(tmp_path / "run", {}, limit_s=0):
        two_gpus(FIRST, fakenvml.h200(memory=[90000 << 20, TOTAL]))
    monkeypatch.setattr(gpu_memory, "boot_id", lambda: "the next one")
    gpu_memory.wait_until_free(tmp_path / "run", print, limit_s=0)
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize(
    ("env", "indices"),
    [
        ({}, {"0", "1"}),
        ({"CUDA_VISIBLE_DEVICES": "1"}, {"1"}),
        ({"CUDA_VISIBLE_DEVICES": "GPU-ab"}, {"0", "1"}),
        ({"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "0"}, {"0"}),
    ],
)
def test_only_the_gpus_in_use_are_watched(two_gpus: Show, env: dict[str, Any], indices: set[str]) -> None:
    assert set(gpu_memory.used_bytes(env)) == indices


def test_what_a_server_takes_is_that_of_the_fullest_gpu(two_gpus: Show, tmp_path: Path) -> None:
    two_gpus(FIRST, fakenvml.h200(memory=[2 << 30, TOTAL]))
    with gpu_memory.resting_level(tmp_path / "run", {}, limit_s=0) as before:
        two_gpus(fakenvml.h200(memory=[41 << 30, TOTAL]), fakenvml.h200(memory=[43 << 30, TOTAL]))
        assert gpu_memory.taken_bytes(before) == 41 << 30
    assert gpu_memory.taken_bytes({}) is None
