"""Everything that a campaign has on disk, whole or not, as plain rows for the summary, the figures and the reports.

A point's Parquet is read where it is; where it is not there yet, the journal tells what the point has so far.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from longctx.campaign.campaign import Campaign
from longctx.campaign.files import journal_path, output_path
from longctx.campaign.identity import changed_settings
from longctx.campaign.point import Point
from longctx.errors import DataError
from longctx.measure.point_record import OUTPUTS, PointRecord, is_done
from longctx.results.summary import OBSERVED_ROLES
from longctx.storage import journal, parquet, schemas
from longctx.storage.journal import Journal

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class CollectedRows:
    """Rows of tables.MEASUREMENTS (with `source`, their file), SERVERS, VALIDATION and PLAN; `expected` requests of
    each (mode, length); `damaged` names files that could not be read."""

    rows: Rows
    servers: Rows
    validation: Rows
    plan: Rows
    expected: dict[tuple[str, int], int]
    damaged: list[str]


def collect(campaign: Campaign, length: int | None = None, *, tolerant: bool = False) -> CollectedRows:
    """Read a campaign's results, of one length or of all; with `tolerant` a corrupt file is named, not fatal."""
    damaged: list[str] = []

    def read(path: Path, schema: pa.Schema) -> Rows:
        try:
            return parquet.read_rows(path, schema) if path.exists() else []
        except DataError as error:
            if not tolerant:
                raise
            damaged.append(str(error))
            return []

    points = [point for point in campaign.points() if length in (None, point.length)]
    rows = []
    for point in points:
        found = _of_point(campaign, point, "measurements", "row", read)
        other = _of_other_recipe(campaign, point, found)
        if other and not tolerant:
            raise DataError(other)
        damaged += [other] if other else []
        rows += [] if other else found
    servers = [row for point in points for row in _of_point(campaign, point, "servers", "server", read)]
    lengths = sorted({point.length for point in points})
    labels = {point.length: point.label for point in points}
    validation = [
        row
        for n in lengths
        for row in read(campaign.results / "validation" / f"{labels[n]}.parquet", schemas.VALIDATION)
    ]
    plan = read(campaign.results / "plan.parquet", schemas.PLAN)
    return CollectedRows(rows, servers, validation, plan, expected_requests(campaign, points), damaged)


def _of_point(campaign: Campaign, point: Point, table: str, kind: str, read: Callable[[Path, pa.Schema], Rows]) -> Rows:
    """Return a done point's Parquet rows, of any other point what its journal has: the last attempt of each request."""
    path, source = output_path(campaign, point, table), journal_path(campaign, point)
    record = PointRecord(campaign, point, Journal(source, journal.read(source)[0]))
    rows: Rows = []
    if path.exists() and (is_done(record.journal.records) or not source.exists()):
        rows, source = read(path, OUTPUTS[table][1]), path
    rows = rows or record.final(kind)
    return [row | {"source": str(source)} for row in rows] if kind == "row" else rows


def _of_other_recipe(campaign: Campaign, point: Point, rows: Rows) -> str | None:
    """Say which settings a point's rows were measured with, None where they are the campaign's."""
    strange = [row for row in rows if row["recipe_hash"] != campaign.recipe_hash(point.mode)]
    if not strange:
        return None
    # Read only: a measurement may be writing to it.
    path = journal_path(campaign, point)
    header = Journal(path, journal.read(path)[0]).header or {}
    then = header.get("settings", {})
    now = campaign.settings(point.mode) | {"prompt_sha256": then.get("prompt_sha256")}
    changed = "; ".join(changed_settings(then, now)) if header else f"recipe {strange[0]['recipe_hash']}"
    return (
        f"{strange[0]['source']}: measured with another recipe ({changed}); results of different recipes never mix, so"
        " give this configuration a results folder of its own (name: in the configuration) or delete that file"
    )


def expected_requests(campaign: Campaign, points: Iterable[Point]) -> dict[tuple[str, int], int]:
    """Return how many requests that count each (mode, length) should have."""
    wanted: dict[tuple[str, int], int] = {}
    for point in points:
        roles = OBSERVED_ROLES[point.mode]
        key = (point.mode, point.length)
        wanted[key] = wanted.get(key, 0) + sum(role in roles for role, _ in campaign.requests(point))
    return wanted
