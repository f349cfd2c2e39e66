"""Marks: files that tell Snakemake when summary and figures are out of date."""

import os
from pathlib import Path

from longctx.campaign.campaign import Campaign
from longctx.campaign.files import output_path
from longctx.campaign.point import Point
from longctx.measure.kv_limit import RUN_VARIABLE
from longctx.storage.atomic import write_atomic


def stale_mark(campaign: Campaign) -> Path:
    """The file that the summaries depend on, changed whenever a point that one of them needs is gone."""
    return campaign.results / ".config" / "stale"


def mark_stale(campaign: Campaign) -> None:
    """Make the summaries out of date where a measurement that one of them needs does not exist.

    Snakemake compares contents, not only times: the mark gets a new one.
    """
    mark = stale_mark(campaign)
    if not mark.exists():
        write_atomic(mark, b"changes when a summary lacks a point\n")
        os.utime(mark, (0, 0))
    points = campaign.points()
    made: dict[Path, list[Point]] = {campaign.results / "summary.parquet": points}
    for point in points:
        made.setdefault(campaign.results / "lengths" / f"{point.label}.parquet", []).append(point)
    lacking = [summary for summary, needs in made.items() if _lacks(campaign, summary, needs)]
    newest = max((summary.stat().st_mtime for summary in lacking), default=-1.0)
    if newest >= mark.stat().st_mtime:
        write_atomic(mark, f"changed by run {os.environ.get(RUN_VARIABLE)}\n".encode())
        if mark.stat().st_mtime <= newest:
            os.utime(mark, (newest + 1, newest + 1))


def compared_mark(campaign: Campaign) -> Path:
    """The file that the figures depend on, changed whenever `compare` names other runs."""
    return campaign.results / ".config" / "compared"


def mark_compared(campaign: Campaign) -> None:
    """Make the figures out of date where `compare` names other runs than before.

    Snakemake remembers the inputs of its jobs only, not of figures that report_now or the end of a run drew.
    """
    mark, names = compared_mark(campaign), "\n".join(campaign.raw["compare"]).encode()
    known = mark.read_bytes() if mark.exists() else None
    if known != names:
        write_atomic(mark, names)
    if known is None:
        os.utime(mark, (0, 0))


def _lacks(campaign: Campaign, summary: Path, points: list[Point]) -> bool:
    return summary.exists() and any(not output_path(campaign, point, "measurements").exists() for point in points)


def summary_time(campaign: Campaign) -> int:
    """When the summary was made, ns; 0 where there is none."""
    return _time(campaign.results / "summary.parquet")


def report_lags(campaign: Campaign, found_at: int) -> bool:
    """Return whether this run made the summary anew, and left an older report beside it.

    `found_at`: the `summary_time` that this run began with. A report that no run asked for stays unmade.
    """
    made_at = summary_time(campaign)
    reports = [campaign.results / f"report.{kind}" for kind in ("md", "html")]
    return made_at != found_at and any(0 < _time(report) < made_at for report in reports)


def _time(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0
