"""Where a campaign's files lie in its results folder."""

from pathlib import Path

from longctx.campaign.campaign import Campaign
from longctx.campaign.point import Point


def journal_path(campaign: Campaign, point: Point) -> Path:
    return campaign.results / "journal" / f"{point.name}.jsonl"


def output_path(campaign: Campaign, point: Point, table: str) -> Path:
    return campaign.results / table / f"{point.name}.parquet"


def status_path(campaign: Campaign) -> Path:
    return campaign.results / "status.json"
