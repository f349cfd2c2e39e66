"""Repair before a run: deleted, torn or damaged Parquets, and summaries that lack a point."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from longctx.campaign.campaign import Campaign
from longctx.campaign.files import journal_path, output_path
from longctx.campaign.point import Point
from longctx.errors import DataError
from longctx.measure.point_record import PointRecord
from longctx.storage.journal import Journal, last, read, set_aside
from longctx.storage.provenance import PARTIAL, file_sha256

# What every run can make again, at no cost but minutes. (Measured Parquets are rewritten from their journals.)
DERIVED = ("plan", "summary", "fits", "rows", "servers", "corpus/*", "prompts/*", "validation/*", "lengths/*")
PARQUET = b"PAR1"  # first and last bytes of every whole file


def set_aside_deleted(campaign: Campaign) -> list[str]:
    """Set aside the journals of points whose measurement was deleted by hand; return a sentence for each.

    By hand: the point is done and its measurement gone while its server's Parquet is there. (Snakemake deletes a job's
    outputs in their order, measurements last, so what it or a kill leaves never looks like that.)
    """
    sentences = []
    for point in campaign.points():
        if (
            output_path(campaign, point, "measurements").exists()
            or not output_path(campaign, point, "servers").exists()
        ):
            continue
        path = journal_path(campaign, point)
        if _done_record(path) is not None:
            sentences.append(
                f"{point.name}: its measurement was deleted, so it is measured again (what was there is kept in"
                f" {set_aside(path)})"
            )
    return sentences


def rewrite_damaged(campaign: Campaign) -> list[str]:
    """Write damaged Parquets of done points again from their journals; return a sentence for each point."""
    sentences = []
    for point in campaign.points():
        path = journal_path(campaign, point)
        digests = (_done_record(path) or {}).get("sha256", {})
        files = {table: output_path(campaign, point, table) for table in digests}
        damaged = [table for table, file in files.items() if file.exists() and file_sha256(file) != digests[table]]
        if damaged:
            record = PointRecord(campaign, point, Journal(path, read(path)[0]))
            record.assemble(damaged)
            record.done()
            sentences.append(
                f"{point.name}: damaged Parquets ({', '.join(damaged)}) were written anew from the journal"
            )
    return sentences


def restore_journals(campaign: Campaign) -> list[str]:
    """Write journals that are gone anew from the Parquets of their points; return a sentence for each.

    Without it a re-run would begin from nothing, after Snakemake has deleted the Parquets.
    """
    sentences = []
    for point in campaign.points():
        with suppress(DataError):  # a damaged Parquet: whoever reads it says so
            if PointRecord.restore(campaign, point):
                sentences.append(f"{point.name}: its journal is gone and was written anew from its Parquets")
    return sentences


def _done_record(path: Path) -> dict[str, Any] | None:
    """Return what the journal says of a done point, None where the point is not done."""
    record = last(path)
    return record.data if record is not None and record.kind == "done" else None


def drop_torn(campaign: Campaign) -> list[str]:
    """Delete derived Parquets that are cut short, so that Snakemake makes them again; return a sentence for each."""
    sentences = []
    for path in sorted(path for name in DERIVED for path in campaign.results.glob(f"{name}.parquet")):
        with open(path, "rb") as file:
            head, size = file.read(len(PARQUET)), file.seek(0, os.SEEK_END)
            file.seek(max(0, size - len(PARQUET)))
            whole = head == PARQUET == file.read() and size > len(PARQUET)
        if not whole:
            path.unlink()
            sentences.append(f"{path}: damaged, so it is made anew where it is needed")
    return sentences


def is_provisional(campaign: Campaign, summary: Path, points: Sequence[Point]) -> bool:
    """Return whether a summary must be made again though it is newer than all its rows.

    So it is where a point has no measurement (any more), and where report_now or a failed run made it: Snakemake does
    not know with which settings, nor of the figures and reports beside it.
    """
    if not summary.exists():
        return False
    if any(not output_path(campaign, point, "measurements").exists() for point in points):
        return True
    try:
        return PARTIAL.encode() in (pq.read_schema(summary).metadata or {})
    except (OSError, pa.ArrowException):
        return True
