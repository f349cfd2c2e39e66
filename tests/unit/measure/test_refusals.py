"""Why a point is not tried: before a server is started, and by the server that was started."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from longctx.campaign.campaign import from_dict
from longctx.campaign.point import Point
from longctx.measure import kv_limit
from longctx.measure.refusals import Refusal, Refusals
from longctx.plan.plan_table import PlanTable
from longctx.storage import parquet, schemas

POINT, NEXT = Point(1024, 1), Point(2048, 1)
NEW, HEADROOM = 128, 16384


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(kv_limit.RUN_VARIABLE, "this run")


def refusals(plan: PlanTable | None = None, checkpoint_dir: Path | None = None, **changes: Any) -> Refusals:
    base = {"model": {"source": "owner/model"}, "lengths": ["1Ki", "2Ki"], "max_new_tokens": NEW}
    base["serve"] = {"headroom_tokens": HEADROOM, "tensor_parallel_size": 2}
    validations = {}
    for point in (POINT, NEXT):
        validations[point.length] = Path(f"{point.label}.parquet")
        rows = [{"length": point.length, "ok": True}]
        parquet.write_rows(validations[point.length], schemas.VALIDATION, rows)
    return Refusals(from_dict(base | changes), (POINT, NEXT), plan or PlanTable.empty(), validations, checkpoint_dir)


def plan(**columns: Any) -> PlanTable:
    return PlanTable(tuple({"mode": "prefill", "length": point.length} | columns for point in (POINT, NEXT)))


def test_a_sound_prompt_without_a_plan_is_tried() -> None:
    assert refusals().before_start(POINT) is None
    assert refusals(plan(fits=True)).before_start(POINT) is None
    assert refusals(plan(fits=None)).before_start(POINT) is None


def test_a_prompt_that_failed_validation_is_not_sent() -> None:
    found = refusals()
    rows = [{"length": 1024, "ok": False, "detail": "7 special ids"}]
    parquet.write_rows(found.validations[1024], schemas.VALIDATION, rows)
    assert found.before_start(POINT) == Refusal("invalid_prompt", "7 special ids")
    assert found.before_start(NEXT) is None


def test_the_plan_refuses_with_its_reason_and_remedy() -> None:
    found = refusals(plan(fits=False, reason="does_not_fit", remedy="use more GPUs"))
    assert found.before_start(POINT) == Refusal("does_not_fit", "use more GPUs")


def test_a_longer_length_than_one_that_did_not_fit_is_skipped() -> None:
    found = refusals()
    kv_limit.save_limit(found.campaign, NEXT, "no room")
    refusal = found.before_start(NEXT)
    assert refusal is not None
    assert refusal.reason == "kv_too_small"
    assert refusal.detail.endswith("2Ki did not fit earlier in this run: no room")
    assert found.before_start(POINT) is None


def test_the_checkpoint_disk_must_hold_every_point_up_to_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of both ranks, of both points: they share the folder."""
    asked: list[int] = []
    monkeypatch.setattr("longctx.measure.checkpoints.disk_shortage", lambda path, need: asked.append(need) or "full")
    found = refusals(plan(kv_bytes_per_rank=100, state_bytes_per_rank=1), Path("checkpoints"))
    assert found.before_start(POINT) == found.before_start(NEXT) == Refusal("disk_full", "full")
    assert asked == [202, 404]


def by_server(found: Refusals, capacity: int | None, accepted: int | None) -> Refusal | None:
    server: Any = SimpleNamespace(capacity_tokens=lambda: capacity, facts={"max_model_len": accepted})
    return found.by_server(POINT, server)


EXTERNAL = {"launcher": "external", "external": {"url": "http://127.0.0.1:1"}, "serve": {}}


@pytest.mark.parametrize(("changes", "needed"), [({}, 1024 + HEADROOM), (EXTERNAL, 1024 + NEW)])
def test_the_server_s_own_capacity_must_hold_length_and_headroom(changes: dict[str, Any], needed: int) -> None:
    found = refusals(**changes)
    assert by_server(found, needed, None) is None
    assert by_server(found, None, None) is None
    refusal = by_server(found, needed - 1, None)
    assert refusal is not None
    assert refusal.reason == "kv_too_small"
    assert f"holds {needed - 1} tokens, this point needs {needed}; " in refusal.detail


def test_the_server_must_accept_the_prompt_and_its_answer() -> None:
    found = refusals(**EXTERNAL)
    assert by_server(found, None, 1024 + NEW) is None
    refusal = by_server(found, None, 1024 + NEW - 1)
    assert refusal is not None
    assert refusal.reason == "over_max_length"
    assert "accepts 1151 tokens at most, this point needs 1152" in refusal.detail
