"""The protocol against the stand-in server in this process: what is sent, what its rows say, what is never sent."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from fakeserver import FakeServer
from longctx.campaign.campaign import Campaign, from_dict
from longctx.campaign.files import journal_path, output_path, status_path
from longctx.campaign.point import Point
from longctx.errors import ServerError
from longctx.measure import kv_limit
from longctx.measure.protocol import ServerClimb, measure
from longctx.measure.salt import choose_salt
from longctx.plan.plan_table import PlanTable
from longctx.progress.status_file import read_status
from longctx.serve import metrics
from longctx.storage import parquet, schemas
from longctx.storage.journal import read, set_aside
from longctx.storage.token_file import TokenFileWriter

LENGTH, NEW, FIRSTS = 256, 6, 64


def prompt_ids(variant: int) -> np.ndarray:
    ids = np.arange(1000, 1000 + LENGTH, dtype=np.uint32)
    ids[0] = variant
    return ids


def sha256(ids: np.ndarray) -> str:
    return hashlib.sha256(ids.astype("<u4").tobytes()).hexdigest()


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A prompt and its validation; variant n begins with token n."""
    monkeypatch.chdir(tmp_path)
    with TokenFileWriter("somewhere/prompt.parquet") as writer:
        writer.metadata["first_ids"] = orjson.dumps(list(range(FIRSTS))).decode()
        writer.metadata["question_ids"] = orjson.dumps([[7, 8, 9]]).decode()
        writer.write(prompt_ids(0))
    parquet.write_rows("somewhere/validation.parquet", schemas.VALIDATION, [{"length": LENGTH, "ok": True}])
    return Path("somewhere/prompt.parquet"), Path("somewhere/validation.parquet")


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as started:
        yield started


def campaign(server: FakeServer, **changes: Any) -> Campaign:
    base = {
        "lengths": [LENGTH],
        "passes": 2,
        "max_new_tokens": NEW,
        "model": {"source": "owner/model"},
        "launcher": "external",
        "external": {"url": server.url},
        "prompt": {"salt": ""},
        "measure": {"clock_tolerance": 1e6},  # the stand-in takes no time, and a busy machine much
    }
    return from_dict(base | changes)


def climb(
    campaign: Campaign, files: tuple[Path, Path], mode: str = "prefill", plan: PlanTable | None = None
) -> tuple[int, list[str]]:
    """Measure both passes of a mode; return how many points failed, and what was said."""
    lines: list[str] = []
    prompt, validation = files
    failed = measure(
        campaign,
        campaign.points(mode),
        plan=plan or PlanTable.empty(),
        prompts={LENGTH: prompt},
        validations={LENGTH: validation},
        say=lines.append,
    )
    return failed, lines


def sent(server: FakeServer) -> list[str]:
    """The ids of each measured request."""
    return [
        truth["sha256"]
        for truth, request in zip(server.truth, server.requests, strict=True)
        if request["max_tokens"] == NEW
    ]


def rows(campaign: Campaign, point: Point) -> list[dict[str, Any]]:
    found = parquet.read_rows(output_path(campaign, point, "measurements"), schemas.MEASUREMENTS)
    return [row for row in found if row["role"] != "warmup"]


def test_every_pass_is_measured_once_with_a_prompt_of_its_own(server: FakeServer, files: tuple[Path, Path]) -> None:
    wanted = campaign(server)
    assert climb(wanted, files)[0] == 0
    assert sent(server) == [sha256(prompt_ids(0)), sha256(prompt_ids(1))]
    for pass_index in (1, 2):
        (row,) = rows(wanted, Point(LENGTH, pass_index))
        assert (row["mode"], row["role"], row["status"], row["prompt_tokens"]) == ("prefill", "cold", "ok", LENGTH)
        assert (row["temperature"], row["ignore_eos"], row["filled_kv"]) == (0.0, True, False)
        assert row["prompt_sha256"] == sha256(prompt_ids(0)), "the prompt file's own"
        assert row["ttft_s"] > 0
    assert climb(wanted, files)[0] == 0
    assert len(sent(server)) == 2, "nothing is measured again"


def test_a_second_campaign_is_cold_on_a_server_that_keeps_prefixes(
    server: FakeServer, files: tuple[Path, Path]
) -> None:
    server.state.prefix_caching = True
    campaigns = [campaign(server, prompt={}, name=name) for name in ("first", "second")]
    for wanted in campaigns:
        assert climb(wanted, files)[0] == 0
    points = [Point(LENGTH, pass_index) for pass_index in (1, 2)]
    found = [[rows(wanted, point)[0] for point in points] for wanted in campaigns]
    assert [[(row["status"], row["cached_tokens"]) for row in each] for each in found] == [[("ok", 0)] * 2] * 2
    assert [truth["count"] for truth, asked in zip(server.truth, server.requests, strict=True)
            if asked["max_tokens"] == NEW] == [LENGTH] * 4  # fmt: skip
    first, second = ({row["prompt_salt"] for row in each} for each in found)
    assert (len(first), len(second), len(first | second)) == (1, 1, 2)
    assert {row["prompt_sha256"] for each in found for row in each} == {sha256(prompt_ids(0))}


def test_a_salt_lasts_as_long_as_its_journal(server: FakeServer, files: tuple[Path, Path]) -> None:
    """A later pass of the same campaign has its salt; a point that is measured again has another one."""
    assert climb(campaign(server, prompt={}, passes=1), files)[0] == 0
    assert climb(campaign(server, prompt={}), files)[0] == 0
    wanted, (first, second) = campaign(server, prompt={}), (Point(LENGTH, 1), Point(LENGTH, 2))
    (salt,) = {rows(wanted, point)[0]["prompt_salt"] for point in (first, second)}
    set_aside(journal_path(wanted, first))
    output_path(wanted, first, "measurements").unlink()
    before = sent(server)
    assert climb(wanted, files)[0] == 0
    assert rows(wanted, first)[0]["prompt_salt"] == f"{salt}.1"
    assert sent(server)[-1] not in before


def test_a_killed_campaign_goes_on_with_its_salt(server: FakeServer, files: tuple[Path, Path]) -> None:
    server.state.plan_source = {"by_max_tokens": {str(NEW): {"error_after": 1}}}
    wanted = campaign(server, prompt={}, passes=1)
    assert climb(wanted, files)[0] == 1
    server.state.plan_source = {}
    assert climb(wanted, files)[0] == 0
    assert len(set(sent(server))) == 1


@pytest.mark.parametrize(
    ("salt", "launcher", "expected"),
    [("mine", "external", "mine"), ("mine", "local", "mine"), ("", "external", None), (None, "local", None)],
)
def test_a_salt_of_the_user(server: FakeServer, salt: str | None, launcher: str, expected: str | None) -> None:
    assert choose_salt(campaign(server, prompt={"salt": salt}, launcher=launcher), Point(LENGTH, 1)) == expected


def test_a_doubtful_request_is_repeated_with_another_prompt(server: FakeServer, files: tuple[Path, Path]) -> None:
    server.state.plan_source = {"by_max_tokens": {str(NEW): {"cached": 16}}}
    failed, lines = climb(campaign(server, passes=1), files)
    assert failed == 0
    assert sent(server) == [sha256(prompt_ids(0)), sha256(prompt_ids(24))]
    assert any("256/pass1 cold 0: doubtful (cached), repeated: " in line for line in lines)
    (row,) = rows(campaign(server, passes=1), Point(LENGTH, 1))
    assert (row["status"], row["reason"], row["ttft_s"]) == ("doubtful", "cached", None)


def test_queries_have_their_cold_prefix_before_them(server: FakeServer, files: tuple[Path, Path]) -> None:
    server.state.prefix_caching = True
    server.state.plan_source = {"by_length": {str(LENGTH + 16): {"error_after": 0}}}
    changes = {"modes": ["reuse"], "passes": 1, "reuse": {"queries": 2, "suffix_tokens": 16}}
    assert climb(campaign(server, **changes), files, "reuse")[0] == 1
    server.state.plan_source = {}
    before = len(sent(server))
    assert climb(campaign(server, **changes), files, "reuse")[0] == 0
    prefix, *queries = sent(server)[before:]
    assert prefix == sha256(prompt_ids(1)), "the prefix of pass 1, resident again"
    assert len(set(queries)) == 2
    found = rows(campaign(server, **changes), Point(LENGTH, 1, "reuse"))
    assert [(row["role"], row["status"]) for row in found] == [("cold", "ok"), ("reuse", "ok"), ("reuse", "ok")]
    assert all(row["cached_tokens"] >= LENGTH - 16 for row in found[1:])


def test_a_failed_answer_is_no_measurement_and_leaves_the_point_open(
    server: FakeServer, files: tuple[Path, Path]
) -> None:
    server.state.plan_source = {"by_max_tokens": {str(NEW): {"stop_after": 3}}}
    wanted = campaign(server, passes=1)
    failed, lines = climb(wanted, files)
    assert failed == 1
    assert lines[-1].endswith("256/pass1 cold 0: failed: short_output: 3 of 6 tokens; finish_reason stop")
    assert not output_path(wanted, Point(LENGTH, 1), "measurements").exists()


@pytest.mark.parametrize("why", ["plan", "validation", "maximum length"])
def test_what_cannot_be_measured_is_never_sent(server: FakeServer, files: tuple[Path, Path], why: str) -> None:
    wanted, plan = campaign(server), PlanTable.empty()
    if why == "plan":
        plan = PlanTable(
            ({"mode": "prefill", "length": LENGTH, "fits": False, "reason": "does_not_fit", "remedy": "r"},)
        )
    elif why == "validation":
        parquet.write_rows(files[1], schemas.VALIDATION, [{"length": LENGTH, "ok": False, "detail": "d"}])
    else:
        server.state.max_model_len = LENGTH + NEW - 1
    failed, lines = climb(wanted, files, plan=plan)
    assert failed == 2
    assert sent(server) == []
    reason = {"plan": "does_not_fit: r", "validation": "invalid_prompt: d", "maximum length": "over_max_length: "}[why]
    assert [reason in line for line in lines] == [True, True]


@pytest.mark.parametrize(
    ("reason", "kv_tokens", "lost"),
    [("server_start", None, [1, 2, 4]), ("kv_too_small", 3 * 1024, [4]), ("kv_too_small", 1024 + 128, [2, 4]),
     ("kv_too_small", None, [4])],
)  # fmt: skip
def test_a_server_with_too_small_a_cache_costs_only_the_points_that_do_not_fit(
    reason: str, kv_tokens: int | None, lost: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(kv_limit.RUN_VARIABLE, "this run")
    wanted = from_dict(
        {
            "model": {"source": "owner/model"},
            "lengths": [1024, 2048, 4096],
            "passes": 1,
            "serve": {"headroom_tokens": 128},
        }
    )
    unused: Any = None
    job = ServerClimb(wanted, unused, unused, {}, {}, unused)
    found = job._lost_points(wanted.points(), ServerError("no", reason, kv_tokens=kv_tokens))
    assert [point.length // 1024 for point in found] == lost
    skipped = [point.length // 1024 for point in wanted.points() if kv_limit.skip_reason(wanted, point)]
    assert skipped == (lost if reason == "kv_too_small" else [])


UNFIT = "\x1b[2J\x1b]0;owned\x07 a\x00b \x9b1m \u202e \u2028 half \ud83d"
HOSTILE: list[dict[str, Any]] = [
    {"http_status": 500, "http_message": UNFIT},
    {"error_after": 2, "error_message": UNFIT},
    {"model_id": UNFIT},
    {"version": UNFIT, "kv_dtype": UNFIT},
    {"version": 7, "max_model_len": "131072"},
    {"version": None, "max_model_len": -1},
    {"max_model_len": 1e400},
    {"max_model_len": [1]},
    {"max_model_len": True},
    {"metrics_text": 'vllm:cache_config_info{kv_cache_size_tokens="%s"} 1\n' % ("9" * 5000)},
    {"metrics_text": 'vllm:cache_config_info{kv_cache_size_tokens="%s",cache_dtype="\x1b[31m"} 1\n' % ("9" * 30)},
    {"metrics_text": 'vllm:cache_config_info{block_size="%s",kv_cache_max_concurrency="1e999"} 1\n' % ("9" * 30)},
    {"metrics_text": 'vllm:prompt_tokens_total 1e308\nvllm:prompt_tokens_total{a="1"} 1e308\n'},
    {
        "metrics_text": 'vllm:cache_config_info{kv_cache_size_tokens="x",a="\u2028',
    },
    {"metrics_text": "vllm:num_requests_running 1e308\nvllm:request_success_total nan\n"},
]


@pytest.mark.parametrize("plan", HOSTILE, ids=range(len(HOSTILE)))
def test_no_words_of_a_server_stop_the_measurement(
    plan: dict[str, Any],
    server: FakeServer,
    files: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Whatever it says in errors, lists and metrics: each request has its row, and the terminal nothing to obey."""
    monkeypatch.setattr(metrics, "SETTLE_S", 0.0)
    server.state.plan_source = plan
    wanted = campaign(server)
    _, lines = climb(wanted, files)
    for pass_index in (1, 2):
        point = Point(LENGTH, pass_index)
        kept = [record.data for record in read(journal_path(wanted, point))[0] if record.kind == "row"]
        assert kept, "no row for the point"
        for row in kept:
            assert (row["detail"] or "").isprintable()
            assert (row.get("vllm_version") or "").isprintable()
    status = read_status(status_path(wanted))
    assert status is not None
    assert all(entry["state"] in ("done", "failed") for entry in status["points"].values())
    assert "\x1b" not in "".join(capfd.readouterr())
    assert lines or not server.truth
