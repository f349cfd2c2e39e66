"""What a run has learned about the KV cache: where one length did not fit, no longer one of its recipe will.

Kept for the run that learned it only: the next one tries again.
"""

import os
from pathlib import Path
from typing import Any

import orjson

from longctx.campaign.campaign import Campaign
from longctx.campaign.point import Point
from longctx.lengths import format_length
from longctx.storage.atomic import write_atomic

RUN_VARIABLE = "LONGCTX_RUN"


def remember_limit(campaign: Campaign, point: Point, sentence: str) -> None:
    """Note that the KV cache cannot hold `point`, for all jobs of this Snakemake run (outside one: for nobody)."""
    run, known = os.environ.get(RUN_VARIABLE), _read(campaign, point)
    if run and (known is None or point.length < known["length"]):
        note = {"run": run, "recipe": campaign.recipe_hash(point.mode), "length": point.length, "sentence": sentence}
        write_atomic(_path(campaign, point), orjson.dumps(note))


def why_skipped(campaign: Campaign, point: Point) -> str | None:
    """Say why this run need not try `point`, None where it must."""
    known = _read(campaign, point)
    if known is None or point.length < known["length"]:
        return None
    return f"skipped, since {format_length(known['length'])} did not fit earlier in this run: {known['sentence']}"


def _path(campaign: Campaign, point: Point) -> Path:
    return campaign.results / "journal" / f".limit-{point.mode}.json"


def _read(campaign: Campaign, point: Point) -> dict[str, Any] | None:
    try:
        known: dict[str, Any] = orjson.loads(_path(campaign, point).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    same = (known["run"], known["recipe"]) == (os.environ.get(RUN_VARIABLE), campaign.recipe_hash(point.mode))
    return known if same else None
