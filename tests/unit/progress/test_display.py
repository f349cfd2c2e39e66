"""What a measurement shows of its current point, on the terminal and in the status file."""

from pathlib import Path
from typing import Any

import pytest
from longctx.campaign.campaign import Campaign, from_dict
from longctx.campaign.files import status_path
from longctx.campaign.point import Point
from longctx.progress.display import Display
from longctx.progress.sampler import PrefillProgress
from longctx.progress.status_file import read_status

POINT, KEY = Point(1024, 1), "prefill/1Ki/pass1"


@pytest.fixture
def campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Campaign:
    monkeypatch.chdir(tmp_path)
    return from_dict({"model": {"source": "synthetic", "weights": "dummy"}, "lengths": ["1Ki"], "passes": 1})


def status(campaign: Campaign) -> dict[str, Any]:
    content = read_status(status_path(campaign))
    assert content is not None
    return content


def test_a_look_is_shown_and_written(campaign: Campaign, capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(campaign, lambda _: None)
    display.begin(POINT, "measuring")
    display._writer._next = 0.0  # type: ignore[union-attr]
    display.sample(PrefillProgress(2.0, 256, 1024, 128.0, 6.0))
    assert status(campaign)["current"][KEY]["tokens_done"] == 256
    display.end("failed", "server_died")
    assert status(campaign)["points"] == {KEY: {"state": "failed", "reason": "server_died"}}
    assert "measuring" in capsys.readouterr().err


def test_what_is_open_at_the_end_is_interrupted(campaign: Campaign) -> None:
    display = Display(campaign, lambda _: None)
    display.begin(POINT, "measuring")
    display.close()
    assert status(campaign)["points"] == {KEY: {"state": "interrupted"}}
    assert status(campaign)["current"] == {}
    display.done(POINT)
    display.close()
    assert status(campaign)["points"] == {KEY: {"state": "done"}}
