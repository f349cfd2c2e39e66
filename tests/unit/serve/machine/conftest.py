"""Two NVIDIA GPUs that a stand-in for NVML shows."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fakenvml
import pytest
from longctx.serve.machine import nvidia

Show = Callable[..., None]


@pytest.fixture
def show_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Show]:
    """A function that lets NVML show these GPUs (`fakenvml.h200`) from now on; without a call there is no NVML."""
    monkeypatch.setattr(nvidia, "pynvml", fakenvml)
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "nvml.json"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def show(*gpus: dict[str, Any], driver: str | None = "580.95.05", cuda: int | None = 13000) -> None:
        content = {"driver": driver, "cuda": cuda, "gpus": gpus}
        (tmp_path / "nvml.json").write_text(json.dumps(content))

    yield show
    assert fakenvml.opened == 0, "every use of NVML is ended"


@pytest.fixture
def two_gpus(show_gpus: Show) -> Show:
    """The first one holds 1 GiB, the second one 4 MiB."""
    show_gpus(fakenvml.h200(memory=[1 << 30, 143771 << 20]), fakenvml.h200())
    return show_gpus
