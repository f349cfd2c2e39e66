"""What would be set aside, what it took, and when that is refused."""

import tarfile
from pathlib import Path
from typing import Any

import makerows
import pytest
from longctx.campaign.campaign import Campaign, from_dict, load
from longctx.campaign.files import journal_path
from longctx.campaign.point import Point
from longctx.errors import LongctxError
from longctx.measure import remeasure
from longctx.plan.plan_table import PlanTable
from longctx.resources import RESOURCES
from longctx.storage.journal import Journal

LENGTHS = (1024, 2048)
PROMPTS = dict.fromkeys(LENGTHS, "5ha")


def campaign(**changes: Any) -> Campaign:
    base = {"model": {"source": "synthetic", "weights": "dummy"}, "lengths": [*LENGTHS], "passes": 1}
    return from_dict(base | changes)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(remeasure.ALLOW_VARIABLE, raising=False)


def measured(made: Campaign, length: int = 1024, status: str = "ok", header: bool = True, **row: Any) -> None:
    """A point with one request."""
    journal = Journal(journal_path(made, Point(length, 1)))
    if header:
        journal.append("header", {"settings": made.settings("prefill") | {"prompt_sha256": "5ha"}})
    journal.append("begin", {"role": "cold", "request_index": 0})
    known = {"recipe_hash": made.recipe_hash("prefill"), "prompt_sha256": "5ha", "status": status, "role": "cold"}
    journal.append("row", makerows.row(request_index=0, **(known | dict.fromkeys(remeasure.DURATIONS) | row)))


def check(made: Campaign, prompts: dict[int, str | None] | None = None, plan: PlanTable | None = None) -> None:
    remeasure.refuse_unasked(made, made.points(), plan or PlanTable.empty(), prompts)


@pytest.mark.parametrize("time", ["e2e_s", "ttft_s", "prefill_s", "stitched_prefill_s", "resumed_ttft_s"])
@pytest.mark.parametrize("header", [True, False], ids=["header", "no header"])
def test_another_recipe_is_refused_with_its_hours(time: str, header: bool) -> None:
    measured(campaign(), header=header, **{time: 40320.0})
    check(campaign())
    with pytest.raises(
        LongctxError, match=r"^1Ki/pass1: finished requests that took 11.2 h \(11.20 hours\)"
    ) as refused:
        check(campaign(max_new_tokens=9))
    assert ("since max_new_tokens: 128 -> 9. Nothing" in str(refused.value)) == header
    assert "LONGCTX_MEASURE_AGAIN=1" in str(refused.value)


@pytest.mark.parametrize(
    "change",
    [{"serve": {"env": {"A": "1"}}}, {"measure": {"clock_tolerance": 0.5}}, {"prompt": {"shape": "plain"}}],
    ids=["recipe", "protocol", "prompt"],
)
def test_whatever_sets_a_row_aside_is_refused(change: dict[str, Any]) -> None:
    measured(campaign(), e2e_s=601.0)
    with pytest.raises(LongctxError, match=next(iter(change))):
        check(campaign(**change))


def test_another_prompt_is_refused_once_it_is_known() -> None:
    measured(campaign(), e2e_s=601.0)
    check(campaign(), PROMPTS)
    check(campaign(), None)
    with pytest.raises(LongctxError, match=r"since prompt_sha256: '5ha' -> 'other' .another corpus, prompt shape or"):
        check(campaign(), PROMPTS | {1024: "other"})


def test_short_points_count_together() -> None:
    for length in LENGTHS:
        measured(campaign(), length, e2e_s=301.0)
    with pytest.raises(LongctxError, match=r"1Ki/pass1, 2Ki/pass1: finished requests that took 10\.0 min"):
        check(campaign(max_new_tokens=9))


@pytest.mark.parametrize(
    "cheap", [{"e2e_s": 599.0}, {"e2e_s": 9e9, "status": "failed"}, {"e2e_s": 9e9, "role": "warmup"}], ids=str
)
def test_what_is_short_or_gave_no_value_is_measured_again(cheap: dict[str, Any]) -> None:
    measured(campaign(), **cheap)
    check(campaign(max_new_tokens=9))


def test_a_doubtful_row_counts_by_its_samples_and_else_by_the_plan() -> None:
    other = campaign(max_new_tokens=9)
    measured(campaign(), status="doubtful")
    plan = PlanTable(({"mode": "prefill", "length": 1024, "est_hours": 2.0},))
    check(other)
    with pytest.raises(LongctxError, match=r"2\.00 hours"):
        check(other, plan=plan)
    Journal(journal_path(other, Point(1024, 1))).append("trace", {"samples": [{"elapsed_s": 7200.0}]})
    with pytest.raises(LongctxError, match=r"2\.00 hours"):
        check(other)


def test_a_long_prefill_in_a_checkpoint_counts_before_it_ends() -> None:
    checkpoint = {"dir": "blocks", "cpu_gib": 1}
    made = campaign(checkpoint=checkpoint)
    journal = Journal(journal_path(made, Point(1024, 1)))
    journal.append("header", {"settings": made.settings("prefill") | {"prompt_sha256": "5ha"}})
    journal.append("begin", {"role": "cold", "request_index": 0})
    journal.append("progress", {"role": "cold", "request_index": 0, "elapsed_s": 7200.0})
    with pytest.raises(LongctxError, match=r"2\.00 hours"):
        check(campaign(checkpoint=checkpoint, max_new_tokens=9))


@pytest.mark.parametrize(("value", "allowed"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_the_variable_allows_it(value: str, allowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(campaign(), e2e_s=9999.0)
    monkeypatch.setenv(remeasure.ALLOW_VARIABLE, value)
    if allowed:
        check(campaign(max_new_tokens=9))
    else:
        with pytest.raises(LongctxError):
            check(campaign(max_new_tokens=9))


def test_the_shipped_journals_go_on_with_their_prompts_and_are_kept_from_others(tmp_path: Path) -> None:
    """docs/results-h200.md: the standard library of another Python gives other prompts."""
    shipped = RESOURCES / "results" / "h200-tp1"
    with tarfile.open(shipped / "journals.tgz") as archive:
        archive.extractall(tmp_path / "results" / "h200-tp1", filter="data")
    made = load(shipped / "recipe.yaml")
    assert made.corpus_arguments == ["--corpus", "stdlib"]
    check(made)
    with pytest.raises(LongctxError, match=r"hours.* since prompt_sha256"):
        check(made, dict.fromkeys(made.all_lengths(), "other"))
