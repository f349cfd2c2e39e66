"""The rows that a summary is made from: the Parquets it is given, or whatever a campaign has on disk so far.

Only `collect_partial` reads journals: they tell what a point has whose Parquets are not there yet.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longctx.campaign.campaign import Campaign
from longctx.campaign.files import journal_path, output_path
from longctx.campaign.mode import campaign_facet
from longctx.campaign.point import Point, parse_point
from longctx.campaign.recipe import changed_settings
from longctx.errors import DataError
from longctx.measure.point_record import OUTPUTS, PointRecord, is_done
from longctx.results.campaign_results import read_tolerantly
from longctx.storage import journal, parquet, schemas
from longctx.storage.journal import Journal

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class CollectedRows:
    """Rows of schemas.MEASUREMENTS and SERVERS, each with its `source`, PLAN, and PROGRESS, each with its `mode`.

    damaged: sentences about unreadable files.
    partial: taken from what was there, so that the next run makes the summary again.
    """

    rows: Rows = field(default_factory=list)
    servers: Rows = field(default_factory=list)
    plan: Rows = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    partial: bool = False
    progress: Rows = field(default_factory=list)


def collect(
    campaign: Campaign,
    rows: Iterable[Path],
    servers: Iterable[Path] = (),
    plan: Path | None = None,
    progress: Iterable[Path] = (),
) -> CollectedRows:
    """Read the Parquets of points that are done; a `plan` that is not there is an unknown one.

    DataError for a file that cannot be read and for rows of another recipe; damaged progress costs only itself.
    """
    collected = CollectedRows()
    for path in rows:
        measured = parquet.read_rows(path, schemas.MEASUREMENTS)
        if other := _other_recipe(campaign, measured, path):
            raise DataError(other)
        collected.rows.extend(row | {"source": str(path)} for row in measured)
    for path in servers:
        collected.servers.extend(row | {"source": str(path)} for row in parquet.read_rows(path, schemas.SERVERS))
    if plan and plan.is_file():
        collected.plan.extend(parquet.read_rows(plan, schemas.PLAN))
    for path in progress:
        mode = parse_point(f"{path.parent.name}/{path.stem}").mode
        samples = read_tolerantly([path], schemas.PROGRESS, collected.damaged)
        collected.progress.extend(row | {"mode": mode} for row in samples)
    return collected


def collect_partial(campaign: Campaign, length: int | None = None) -> CollectedRows:
    """Read what the results folder has, of one length or of all; a damaged file is named and left out."""
    collected = CollectedRows(partial=True)
    for point in campaign.points():
        if length in (None, point.length):
            rows = _point_rows(campaign, point, "measurements", collected.damaged)
            if rows and (other := _other_recipe(campaign, rows, rows[0]["source"])):
                collected.damaged.append(other)
            else:
                collected.rows.extend(rows)
            collected.servers.extend(_point_rows(campaign, point, "servers", collected.damaged))
            progress = _point_rows(campaign, point, "progress", collected.damaged)
            collected.progress.extend(row | {"mode": point.mode} for row in progress)
    collected.plan.extend(read_tolerantly([campaign.results / "plan.parquet"], schemas.PLAN, collected.damaged))
    return collected


def _point_rows(campaign: Campaign, point: Point, table: str, damaged: list[str]) -> Rows:
    """Return a done point's Parquet rows, of any other point what its journal has: the last attempt of each request."""
    kind, schema = OUTPUTS[table]
    path, source = output_path(campaign, point, table), journal_path(campaign, point)
    record = PointRecord(campaign, point, Journal(source, journal.read(source)[0]))
    rows: Rows = []
    if is_done(record.journal.records) or not source.exists():
        rows, source = read_tolerantly([path], schema, damaged), path if path.exists() else source
    rows = rows or [{name: row.get(name) for name in schema.names} for row in record.final(kind)]
    return [row | {"source": str(source)} for row in rows]


def _other_recipe(campaign: Campaign, rows: Rows, source: Path | str) -> str | None:
    """Say which settings the rows of a file were measured with, None where they are the campaign's."""
    row = next((row for row in rows if row["recipe_hash"] != campaign.recipe_hash(row["mode"])), None)
    if row is None:
        return None
    # Read only: a measurement may be writing to it.
    path = journal_path(campaign, Point(row["length"], row["pass_index"], row["mode"]))
    header = Journal(path, journal.read(path)[0]).header or {}
    then = header.get("settings", {})
    now = campaign.settings(row["mode"]) | {"prompt_sha256": then.get("prompt_sha256")}
    changed = "; ".join(changed_settings(then, now)) if header else f"recipe {row['recipe_hash']}"
    return (
        f"{source}: measured with another recipe ({changed}); results of different recipes never mix, so"
        " give this configuration a results folder of its own (name: in the configuration) or delete that file"
    )


def expected_requests(campaign: Campaign, points: Sequence[Point]) -> dict[tuple[str, int], int]:
    """Return how many requests that count each (mode, length) should have."""
    expected: Counter[tuple[str, int]] = Counter()
    for point in points:
        counted = campaign_facet(point.mode).counted_roles
        expected[point.mode, point.length] += sum(role in counted for role, _ in campaign.requests(point))
    return expected
