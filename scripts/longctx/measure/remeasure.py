"""What measuring again would cost: nothing that took long is set aside unless the user allows it."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longctx.campaign.campaign import Campaign
from longctx.campaign.files import journal_path
from longctx.campaign.point import Point
from longctx.campaign.recipe import changed_settings
from longctx.errors import LongctxError
from longctx.plan.plan_table import PlanTable
from longctx.storage.journal import Journal, Record, read
from longctx.storage.schemas import Role, Status
from longctx.units import human_seconds

ALLOW_VARIABLE = "LONGCTX_MEASURE_AGAIN"
UNASKED_S = 600.0  # what may be measured again without a question, all points of a run together
# The times of a row, each at most that of the whole request.
DURATIONS = ("e2e_s", "ttft_s", "prefill_s", "stitched_prefill_s", "resumed_ttft_s", "resumed_prefill_s")


@dataclass(frozen=True, slots=True)
class Loss:
    """A point whose finished requests do not belong to the campaign any more; `why` says what changed.

    seconds: what they and their warm-up took. starts_s: how long each of its servers took to start, by the time of it.
    """

    point: Point
    seconds: float
    starts_s: dict[str, float]
    why: str


def find_difference(
    campaign: Campaign, point: Point, journal: Journal, prompt_sha256: str | None, *, any_prompt: bool = False
) -> str | None:
    """Return how a journal differs from the recipe and prompt at hand, None where it can be continued.

    any_prompt: the prompt does not count, since it is not there yet.
    """
    header, now = journal.header, {**campaign.settings(point.mode), "prompt_sha256": prompt_sha256}
    if header is not None:
        then = header["settings"]
        now |= {"prompt_sha256": then.get("prompt_sha256")} if any_prompt else {}
        return "; ".join(changed_settings(then, now)) or None
    rows = [row for row in journal.of_kind("row") if row.get("prompt_sha256")]
    is_same_recipe = all(row["recipe_hash"] == campaign.recipe_hash(point.mode) for row in rows)
    if is_same_recipe and (any_prompt or all(row["prompt_sha256"] == prompt_sha256 for row in rows)):
        return None
    return "the head of its journal is damaged and its rows are of another recipe or prompt"


def refuse_unasked(
    campaign: Campaign, points: Sequence[Point], plan: PlanTable, prompts: Mapping[int, str | None] | None = None
) -> None:
    """Raise LongctxError where measuring `points` would set aside more than UNASKED_S, unless ALLOW_VARIABLE is set.

    prompts: the SHA-256 of each length's prompt; None: they are not there yet and count as unchanged.
    """
    if os.environ.get(ALLOW_VARIABLE, "").lower() not in ("", "0", "false", "no"):
        return
    losses = list(_losses(campaign, points, plan, prompts))
    starts_s: dict[str, float] = {}
    for loss in losses:
        starts_s |= loss.starts_s  # a server of several points started once
    seconds = sum(loss.seconds for loss in losses) + sum(starts_s.values())
    if seconds <= UNASKED_S:
        return
    names = ", ".join(loss.point.name for loss in losses[:6]) + (", …" if len(losses) > 6 else "")
    why = "; ".join(dict.fromkeys(loss.why for loss in losses))
    if "prompt_sha256" in why:
        why += " (another corpus, prompt shape or tokenizer gives another prompt)"
    raise LongctxError(
        f"{names}: finished requests that took {human_seconds(seconds)} ({seconds / 3600:.2f} hours) with their"
        f" servers' starts would be measured again, since {why}. Nothing is started. Undo that change, give this"
        f" configuration a `name:` of its own, or allow it: write {ALLOW_VARIABLE}=1 before the same command"
    )


def _losses(
    campaign: Campaign, points: Sequence[Point], plan: PlanTable, prompts: Mapping[int, str | None] | None
) -> Iterable[Loss]:
    for point in points:
        path = journal_path(campaign, point)
        journal = Journal(path, read(path)[0])
        sha = (prompts or {}).get(point.length)
        why = find_difference(campaign, point, journal, sha, any_prompt=prompts is None)
        kept, warm_ups = _requests(journal.records)
        if why and kept:
            planned_h = plan.get(point.mode, point.length).get("est_hours") or 0.0
            took_s = sum(map(_seconds, kept)) or planned_h / campaign.passes_of(point.mode) * 3600
            starts = {str(s.get("started_at")): s.get("startup_s") or 0.0 for s in journal.of_kind("server")}
            yield Loss(point, took_s + sum(map(_seconds, warm_ups)), starts, why)


Attempt = list[dict[str, Any]]


def _requests(records: Iterable[Record]) -> tuple[list[Attempt], list[Attempt]]:
    """Return what a journal has of each attempt worth keeping (it has a value or a checkpoint), and of warm-ups."""
    attempts: list[list[Record]] = []
    checkpoint = False
    for record in records:
        if record.kind == "header":
            checkpoint = bool(record.data["settings"].get("checkpoint"))
        elif record.kind == "begin":
            attempts.append([])
        elif record.kind in ("progress", "trace", "row"):
            attempts = attempts or [[]]
            attempts[-1].append(record)
    kept: list[Attempt] = []
    warm_ups: list[Attempt] = []
    for attempt in attempts:
        data = [record.data for record in attempt]
        states = [record.data["status"] for record in attempt if record.kind == "row"]
        if any(entry.get("role") == Role.WARMUP for entry in data):
            warm_ups.append(data)
        elif any(state != Status.FAILED for state in states) or (checkpoint and data):
            kept.append(data)
    return kept, warm_ups


def _seconds(attempt: Iterable[Mapping[str, Any]]) -> float:
    """Return how long a request took: the latest moment that its samples, chunks or row know, 0 where none does."""
    known = [0.0]
    for data in attempt:
        for sample in data.get("samples", [data]):
            known += [sample.get("elapsed_s") or 0.0, *(sample.get(name) or 0.0 for name in DURATIONS)]
    return max(known)
