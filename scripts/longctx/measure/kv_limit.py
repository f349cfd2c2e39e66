"""The shortest length that did not fit into the KV cache: for the rest of the run longer ones are skipped."""

import os
from pathlib import Path
from typing import Any

import orjson

from longctx.campaign.campaign import Campaign
from longctx.campaign.point import Point
from longctx.lengths import format_length
from longctx.redaction import encodable
from longctx.storage.atomic import write_atomic

RUN_VARIABLE = "LONGCTX_RUN"


def save_limit(campaign: Campaign, point: Point, sentence: str) -> None:
    """Save that the KV cache cannot hold `point`, for all jobs of this Snakemake run; outside one nothing is saved."""
    run = os.environ.get(RUN_VARIABLE)
    if run and _limit(campaign, point) is None:
        limit = {"run": run, "recipe": campaign.recipe_hash(point.mode), "length": point.length, "sentence": sentence}
        write_atomic(_path(campaign, point), orjson.dumps(encodable(limit)))


def skip_reason(campaign: Campaign, point: Point) -> str | None:
    """Return why this run need not try `point`, as a sentence; None where it must."""
    if limit := _limit(campaign, point):
        return f"skipped, since {format_length(limit['length'])} did not fit earlier in this run: {limit['sentence']}"
    return None


def _path(campaign: Campaign, point: Point) -> Path:
    return campaign.results / "journal" / f".limit-{point.mode}.json"


def _limit(campaign: Campaign, point: Point) -> dict[str, Any] | None:
    """Return what this run knows of the recipe's limit, None where `point` is below it."""
    try:
        limit: dict[str, Any] = orjson.loads(_path(campaign, point).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    same = (limit["run"], limit["recipe"]) == (os.environ.get(RUN_VARIABLE), campaign.recipe_hash(point.mode))
    return limit if same and point.length >= limit["length"] else None
