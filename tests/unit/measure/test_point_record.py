"""A point's record: what of its journal counts, what is missing, and the Parquets made from it."""

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import makerows
import pyarrow.parquet as pq
import pytest
from longctx.campaign.campaign import Campaign, from_dict
from longctx.campaign.files import journal_path, output_path
from longctx.campaign.point import Point
from longctx.errors import LongctxError
from longctx.measure import point_record
from longctx.measure.point_record import PointRecord, is_done
from longctx.run.repair import restore_journals, rewrite_damaged, set_aside_deleted
from longctx.storage import locks, parquet, schemas

POINT = Point(1024, 1)
SHA = "5ha"
Make = Callable[..., Campaign]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.chdir(tmp_path)

    def make(**changes: Any) -> Campaign:
        base = {"model": {"source": "synthetic", "weights": "dummy"}, "lengths": ["1Ki"], "repeats": {"count": 3}}
        return from_dict(base | changes)

    return make


def opened(campaign: Campaign, sha: str | None = SHA) -> PointRecord:
    return PointRecord.open(campaign, POINT, sha)[0]


def row(campaign: Campaign, index: int = 0, status: str = "ok", **changes: Any) -> dict[str, Any]:
    role = "cold" if index == 0 else "repeat"
    known = {"recipe_hash": campaign.recipe_hash("prefill"), "prompt_sha256": SHA, "role": role, "length": 1024}
    return makerows.row(request_index=index, status=status, **(known | changes))


def add(record: PointRecord, index: int = 0, status: str = "ok", **changes: Any) -> None:
    """Journal one whole request as a measurement does."""
    key = ("cold" if index == 0 else "repeat", index)
    record.begin(key)
    record.add_progress(key, {"elapsed_s": 1.0, "tokens_done": 512, "tokens_total": 1024})
    identity = {"role": key[0], "request_index": index}
    trace = {"elapsed_s": 2.0, "tokens": 1, "total_tokens": 1}
    record.journal.append("trace", identity | {"samples": [trace]})
    record.journal.append("row", row(record.campaign, index, status, **changes))


def finish(record: PointRecord) -> None:
    record.journal.append("server", {"recipe_hash": record.campaign.recipe_hash("prefill"), "status": "ok"})
    record.assemble()
    record.done()


def test_everything_is_missing_at_first(make: Make) -> None:
    assert opened(make()).missing() == [("cold", 0), ("repeat", 1), ("repeat", 2)]


def test_what_is_finished_stays_over_a_kill(make: Make) -> None:
    record = opened(make())
    add(record, 0)
    record.begin(("repeat", 1))
    assert opened(make()).missing() == [("repeat", 1), ("repeat", 2)]


def test_a_failed_request_is_missing_until_it_succeeds(make: Make) -> None:
    record = opened(make())
    add(record, 0, "failed", reason="server_died")
    assert ("cold", 0) in record.missing()
    add(record, 0)
    assert ("cold", 0) not in record.missing()


@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_a_doubtful_request_is_repeated_as_often_as_allowed_whoever_counts(make: Make, allowed: int) -> None:
    campaign = make(measure={"retry_doubtful": allowed})
    for _ in range(allowed):
        record = opened(campaign)
        add(record, 0, "doubtful", reason="jit")
        assert ("cold", 0) in record.missing()
    record = opened(campaign)
    add(record, 0, "doubtful", reason="jit")
    assert ("cold", 0) not in record.missing()
    assert record.doubts("cold", 0) == allowed + 1


def test_more_repeats_are_all_that_is_missing(make: Make) -> None:
    record = opened(make(repeats={"count": 1}))
    add(record, 0)
    finish(record)
    assert opened(make()).missing() == [("repeat", 1), ("repeat", 2)]


def test_a_done_point_is_reopened(make: Make) -> None:
    record = opened(make())
    finish(record)
    assert is_done(record.journal.records)
    assert not is_done(opened(make()).journal.records)


def test_another_recipe_sets_the_journal_aside_and_names_what_changed(make: Make) -> None:
    add(opened(make()), 0)
    record, said = PointRecord.open(make(serve={"kv_cache_dtype": "fp8"}, max_new_tokens=64), POINT, SHA)
    assert said is not None
    assert "1Ki/pass1: measured again, since " in said
    assert "max_new_tokens: 128 -> 64" in said
    assert "serve.kv_cache_dtype: 'auto' -> 'fp8'" in said
    assert said.endswith("(what was there is kept in results/journal/1Ki/superseded/pass1.1.jsonl)")
    assert len(record.missing()) == 3


def test_another_prompt_sets_the_journal_aside(make: Make) -> None:
    add(opened(make()), 0)
    record, said = PointRecord.open(make(), POINT, "other")
    assert "prompt_sha256: '5ha' -> 'other'" in str(said)
    assert len(record.missing()) == 3


@pytest.mark.parametrize("setting", [{"serve": {"python": "/x"}}, {"measure": {"stall_s": 5}}, {"compare": ["x.csv"]}])
def test_settings_that_change_no_number_change_no_journal(make: Make, setting: dict[str, Any]) -> None:
    add(opened(make()), 0)
    record, said = PointRecord.open(make(**setting), POINT, SHA)
    assert said is None
    assert len(record.missing()) == 2


def damage(path: Path, number: int) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number] = lines[number].replace(b":", b";", 1)
    path.write_bytes(b"".join(lines))


def test_a_damaged_row_is_said_and_measured_again(make: Make) -> None:
    record = opened(make())
    add(record, 0)
    add(record, 1)
    damage(record.journal.path, 4)
    record, said = PointRecord.open(make(), POINT, SHA)
    assert said == "1Ki/pass1: damaged lines of its journal are left out (1)"
    assert record.missing() == [("cold", 0), ("repeat", 2)]


def test_a_damaged_head_keeps_rows_that_say_themselves_what_they_are(make: Make) -> None:
    record = opened(make())
    add(record, 0)
    damage(record.journal.path, 0)
    record = opened(make())
    assert record.missing() == [("repeat", 1), ("repeat", 2)]
    assert opened(make()).journal.header is not None


@pytest.mark.parametrize("changes", [{"recipe_hash": "other"}, {"prompt_sha256": "other"}])
def test_a_damaged_head_with_rows_of_another_recipe_is_set_aside(make: Make, changes: dict[str, str]) -> None:
    record = opened(make())
    add(record, 0, **changes)
    damage(record.journal.path, 0)
    record, said = PointRecord.open(make(), POINT, SHA)
    assert "the head of its journal is damaged and its rows are of another recipe or prompt" in str(said)
    assert len(record.missing()) == 3


def test_the_parquets_hold_the_last_attempt_of_each_request(make: Make) -> None:
    record = opened(make(repeats={"count": 2}))
    add(record, 0, "failed", ttft_s=None)
    add(record, 0, ttft_s=0.25)
    add(record, 1)
    record.journal.append("row", row(record.campaign, 0) | {"role": "warmup"})
    finish(record)
    rows = parquet.read_rows(output_path(record.campaign, POINT, "measurements"), schemas.MEASUREMENTS)
    assert [(r["role"], r["request_index"], r["status"]) for r in rows] == [
        ("cold", 0, "ok"),
        ("repeat", 1, "ok"),
        ("warmup", 0, "ok"),
    ]
    assert rows[0]["ttft_s"] == 0.25
    assert rows[0]["started_at"] == row(record.campaign)["started_at"]
    assert rows[0]["started_at"].utcoffset() == timedelta(0)
    for table, schema in (("traces", schemas.TRACES), ("progress", schemas.PROGRESS)):
        found = parquet.read_rows(output_path(record.campaign, POINT, table), schema)
        assert [(r["role"], r["request_index"]) for r in found] == [("cold", 0), ("repeat", 1)]


def test_a_parquet_says_which_configuration_made_it(make: Make) -> None:
    record = opened(make())
    add(record)
    finish(record)
    said = pq.read_schema(output_path(record.campaign, POINT, "measurements")).metadata
    assert said[b"recipe_hash"].decode() == record.campaign.recipe_hash("prefill")
    assert record.campaign.save().stem == said[b"config_hash"].decode()


def test_requests_that_are_no_longer_asked_for_leave_the_parquet(make: Make) -> None:
    record = opened(make())
    for index in range(3):
        add(record, index)
    finish(record)
    record = opened(make(repeats={"count": 1}))
    finish(record)
    rows = parquet.read_rows(output_path(record.campaign, POINT, "measurements"))
    assert [r["request_index"] for r in rows] == [0]


def killed(record: PointRecord, *tokens: int) -> None:
    """Journal an attempt that was begun, showed `tokens` done, and never ended."""
    record.begin(("cold", 0))
    for number, done in enumerate(tokens, 1):
        record.add_progress(("cold", 0), {"elapsed_s": float(number), "tokens_done": done, "tokens_total": 1024})


def test_killed_and_failed_attempts_count_until_a_row_is_finished(make: Make) -> None:
    record = opened(make())
    killed(record, 100, 200)
    killed(record)
    add(record, 0, "failed")
    add(record, 1)
    found = opened(make()).unfinished("cold", 0)
    assert [(attempt.reached, attempt.failed) for attempt in found] == [(200, False), (0, False), (512, True)]
    add(record, 0)
    assert record.unfinished("cold", 0) == []
    killed(record, 7)
    assert [attempt.reached for attempt in record.unfinished("cold", 0)] == [7]


def measured_and_done(campaign: Campaign) -> PointRecord:
    record = opened(campaign)
    for index in range(3):
        add(record, index)
    finish(record)
    return record


def test_a_measurement_deleted_alone_is_wanted_again(make: Make) -> None:
    record = measured_and_done(make())
    output_path(record.campaign, POINT, "measurements").unlink()
    (said,) = set_aside_deleted(record.campaign)
    assert said.startswith("1Ki/pass1: its measurement was deleted, so it is measured again (what was there is kept in")
    assert len(opened(make()).missing()) == 3
    assert set_aside_deleted(record.campaign) == []


def test_parquets_deleted_by_snakemake_are_not(make: Make) -> None:
    record = measured_and_done(make())
    for table in ("servers", "traces", "progress", "measurements"):
        assert set_aside_deleted(record.campaign) == []
        output_path(record.campaign, POINT, table).unlink()
    assert set_aside_deleted(record.campaign) == []
    assert opened(make()).missing() == []


def test_a_point_in_work_is_not_taken_for_deleted(make: Make) -> None:
    record = measured_and_done(make())
    record = opened(make())
    output_path(record.campaign, POINT, "measurements").unlink()
    assert set_aside_deleted(record.campaign) == []


@pytest.mark.parametrize("table", ["measurements", "servers", "traces", "progress"])
@pytest.mark.parametrize("how", ["cut", "empty", "one bit"])
def test_a_damaged_parquet_is_written_anew(make: Make, table: str, how: str) -> None:
    record = measured_and_done(make())
    path = output_path(record.campaign, POINT, table)
    before, content = parquet.read_rows(path), bytearray(path.read_bytes())
    content[len(content) // 4] ^= 1
    path.write_bytes({"cut": content[:-20], "empty": b"", "one bit": bytes(content)}[how])
    assert rewrite_damaged(record.campaign) == [
        f"1Ki/pass1: damaged Parquets ({table}) were written anew from the journal"
    ]
    assert parquet.read_rows(path) == before
    assert rewrite_damaged(record.campaign) == []
    assert opened(make()).missing() == []


def test_a_damaged_parquet_without_its_journal_stays(make: Make) -> None:
    record = measured_and_done(make())
    journal_path(record.campaign, POINT).unlink()
    output_path(record.campaign, POINT, "measurements").write_bytes(b"PAR1")
    assert rewrite_damaged(record.campaign) == []


def test_the_lock_names_its_holder(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "ORPHAN_GRACE_S", 0.0)
    with point_record.exclusive(make(), [POINT]), pytest.raises(LongctxError, match=f"process {os.getpid()} on "):
        point_record.exclusive(make(), [POINT]).__enter__()


def test_two_campaigns_of_one_folder_are_not_measured_at_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "ORPHAN_GRACE_S", 0.0)
    said = rf"another measurement is running on this host \(process {os.getpid()} on "
    with point_record.exclusive(make(), [POINT]), pytest.raises(LongctxError, match=said):
        point_record.exclusive(make(name="other"), [POINT]).__enter__()


def tables(campaign: Campaign) -> dict[str, list[dict[str, Any]]]:
    return {name: pq.read_table(output_path(campaign, POINT, name)).to_pylist() for name in point_record.OUTPUTS}


def test_a_lost_journal_comes_back_from_the_parquets(make: Make) -> None:
    campaign = make()
    record = opened(campaign)
    for index in range(3):
        add(record, index)
    finish(record)
    before = tables(campaign)
    record.journal.path.unlink()
    assert restore_journals(campaign) == ["1Ki/pass1: its journal is gone and was written anew from its Parquets"]
    again, sentence = PointRecord.open(campaign, POINT, SHA)
    assert (sentence, again.missing()) == (None, [])
    assert again.journal.header == record.journal.header
    again.assemble()
    assert tables(campaign) == before
    assert restore_journals(campaign) == [], "a journal that is there stays as it is"
    _, sentence = PointRecord.open(make(max_new_tokens=9), POINT, SHA)
    assert "since max_new_tokens: 128 -> 9" in str(sentence)


def test_a_lost_journal_of_another_recipe_stays_of_that_recipe(make: Make) -> None:
    record = opened(make(max_new_tokens=9))
    for index in range(3):
        add(record, index)
    finish(record)
    record.journal.path.unlink()
    restore_journals(make())
    _, sentence = PointRecord.open(make(), POINT, SHA)
    assert "its rows are of another recipe or prompt" in str(sentence)


def test_a_damaged_parquet_gives_no_journal(make: Make) -> None:
    campaign = make()
    record = opened(campaign)
    add(record)
    finish(record)
    record.journal.path.unlink()
    output_path(campaign, POINT, "traces").write_bytes(b"PAR1")
    assert restore_journals(campaign) == []
    assert not record.journal.path.exists()
