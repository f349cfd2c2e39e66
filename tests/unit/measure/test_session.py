"""A session's own decisions: which progress is journalled, what a failure's row says, how long silence may last."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from longctx.campaign.campaign import from_dict
from longctx.measure import session as session_module
from longctx.measure.client.request import Answer
from longctx.measure.row.verdict import CacheExpectation
from longctx.measure.session import Outgoing, Session, _ProgressJournal
from longctx.progress.sampler import PrefillProgress
from longctx.serve import metrics
from longctx.storage.journal import JournalError

KEY = ("cold", 0)


def journalled(*samples: tuple[float, int | None], full: bool = False) -> tuple[list[float], list[float]]:
    """Return the times of the samples that were shown, and of those that went to the journal."""
    shown: list[float] = []
    kept: list[float] = []

    def add(key: tuple[str, int], sample: dict[str, Any]) -> None:
        if full:
            raise JournalError("no space")
        assert (key, sample["tokens_total"]) == (KEY, 1024)
        kept.append(sample["elapsed_s"])

    display: Any = SimpleNamespace(sample=lambda sample: shown.append(sample.elapsed_s))
    record: Any = SimpleNamespace(add_progress=add)
    progress = _ProgressJournal(display, record, KEY)
    for elapsed_s, tokens in samples:
        progress(PrefillProgress(elapsed_s, tokens, 1024))
    return shown, kept


def test_progress_is_journalled_where_tokens_moved() -> None:
    samples = [(1.0, 0), (2.0, 0), (3.0, 64), (4.0, 64), (5.0, None), (6.0, 128)]
    assert journalled(*samples) == ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 3.0, 5.0, 6.0])


def test_a_prefill_of_hours_is_journalled_less_often() -> None:
    """A 500th of the time so far: every 20 s after 10,000 s."""
    samples = [(10_000.0 + second, second) for second in range(61)]
    assert journalled(*samples)[1] == pytest.approx([10_000.0, 10_021.0, 10_042.0], abs=2)


def test_a_full_disk_stops_no_prefill() -> None:
    assert journalled((1.0, 0), (2.0, 64), full=True) == ([1.0, 2.0], [])


def session(**changes: Any) -> Session:
    server: Any = SimpleNamespace(death_reason=lambda: "the server was killed", alive=lambda: True, process=object())
    campaign = from_dict({"model": {"source": "owner/model"}, "lengths": ["1Ki"], "measure": changes})
    unused: Any = None
    return Session(campaign, unused, server, unused)


def failed(reason: str) -> Answer:
    return Answer("failed", datetime(2026, 11, 29, tzinfo=UTC), reason=reason, detail="no more tokens")


def test_a_dead_server_s_reason_stands_in_the_row() -> None:
    assert session()._explain_death(failed("server_died")).detail == "the server was killed"
    assert session()._explain_death(failed("error_event")).detail == "no more tokens"


def test_the_row_of_a_killed_engine_keeps_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last words come after the connection broke, and are more than a row keeps."""
    cause = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
    log = ["INFO before"]

    def death_reason() -> str:
        log.extend(["INFO within", cause, *(f"noise {n}" for n in range(40))])
        return f"the server was killed: {cause}"

    server: Any = SimpleNamespace(
        url="http://127.0.0.1:9", api_key=None, gpu_numbers=(), contract=[], facts={}, host_facts={}, process=object(),
        log_offset=lambda: len(log), log_between=lambda first, last: log[first:last], death_reason=death_reason,
    )  # fmt: skip
    record: Any = SimpleNamespace(begin=lambda key: None, finish=lambda *_: None)
    facet: Any = SimpleNamespace(cache_expectation=lambda role: CacheExpectation.COLD)
    monkeypatch.setattr(metrics, "scrape", lambda *_, **__: None)
    monkeypatch.setattr(Session, "_stream", lambda *_: failed("server_died"))
    monkeypatch.setattr(session_module, "measured_row", lambda record, key, observation: observation)
    died = Session(session().campaign, facet, server, record)
    observed: Any = died.send(record, Outgoing(KEY, np.arange(8, dtype=np.uint32), 4))
    assert observed.answer.detail == f"the server was killed: {cause}"
    assert len(observed.log_lines) <= session_module.LOG_LINES
    assert observed.log_lines[:2] == ("INFO within", cause)
    assert observed.log_lines[-1] == "noise 39"


def test_a_stall_shows_the_log_and_ends_the_use_of_a_server_of_ours() -> None:
    stalled = session()
    assert not stalled.is_useless()
    assert stalled._explain_stall(failed("timeout"), ["first", "last"]).detail == (
        "no more tokens; its log ends with: last"
    )
    assert stalled.is_useless()
    assert session()._explain_stall(failed("timeout"), []).detail == "no more tokens"
    assert session()._explain_stall(failed("error_event"), ["last"]).detail == "no more tokens"


def test_a_server_without_metrics_may_be_silent_four_times_as_long_as_planned() -> None:
    assert session()._blind_limit_s() == 3600.0
    assert session(blind_stall_s=60.0)._blind_limit_s() == 60.0
    long = session(blind_stall_s=60.0)
    long.planned_ttft_s = 40_000.0
    assert long._blind_limit_s() == 160_000.0
