"""Write the tables of a summary, and copy a campaign's results into one small folder to keep or publish."""

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from longctx.campaign.campaign import Campaign
from longctx.errors import DataError
from longctx.results.campaign_results import DAMAGED, SOURCED, damaged_files
from longctx.results.collect import CollectedRows, expected_requests
from longctx.results.cost import Price
from longctx.results.fits import fits
from longctx.results.frames import to_frame
from longctx.results.summary import summarise
from longctx.results.ttft.estimates import estimate, find_chunks, with_estimates
from longctx.storage import atomic, parquet, schemas
from longctx.storage.provenance import PARTIAL

COPIED = ("summary.parquet", "summary.csv", "fits.parquet", "plan.txt")
# Tables that a summary of an earlier longctx does not have.
COPIED_IF_THERE = ("estimates.parquet", "chunks.parquet")


def write_summary(campaign: Campaign, collected: CollectedRows, out: Path, length: int | None = None) -> None:
    """Summarise the collected rows into `out`, and next to it into summary.csv and the other tables.

    With `length` the rows are those of one length, whose summary is written alone.
    """
    points = [point for point in campaign.points() if length in (None, point.length)]
    price, labels = Price.from_campaign(campaign), campaign.labels
    summary = summarise(collected.rows, expected_requests(campaign, points), collected.plan, price)
    if length is None:
        estimates = estimate(campaign, collected.rows)
        summary = with_estimates(summary, estimates)
        write_csv(out.with_suffix(".csv"), summary)
        parquet.write_rows(out.with_name("fits.parquet"), schemas.FITS, fits(summary), labels)
        parquet.write_rows(out.with_name("estimates.parquet"), schemas.ESTIMATES, estimates, labels)
        chunks = find_chunks(campaign, collected)
        parquet.write_rows(out.with_name("chunks.parquet"), schemas.CHUNKS, chunks, labels)
        damaged = {DAMAGED: json.dumps(collected.damaged)}
        for name, schema in SOURCED.items():
            with_source = schema.append(pa.field("source", pa.string()))
            parquet.write_rows(
                out.with_name(f"{name}.parquet"), with_source, getattr(collected, name), labels | damaged
            )
    parquet.write_rows(out, schemas.SUMMARY, summary, labels | ({PARTIAL: "true"} if collected.partial else {}))


def write_csv(path: Path | str, summary: Iterable[Mapping[str, Any]]) -> None:
    """Write schemas.SUMMARY rows as CSV for spreadsheets: an empty cell is a missing value, lists are joined by ';'."""
    frame = to_frame(summary, schemas.SUMMARY)
    for name in ("reasons", "hosts"):
        frame[name] = [";".join(values) if isinstance(values, Iterable) else "" for values in frame[name]]
    atomic.write_atomic(path, frame.to_csv(index=False, lineterminator="\n").encode())


def export(campaign: Campaign, out: Path, *, figures: bool = True) -> None:
    """Copy a campaign whose summary was made into `out`; DataError where that summary left out a damaged file."""
    read = {name: parquet.read_rows(campaign.results / f"{name}.parquet", schema) for name, schema in SOURCED.items()}
    if damaged := damaged_files(campaign.results / "rows.parquet"):
        raise DataError(damaged[0])
    out.mkdir(parents=True, exist_ok=True)
    for name, schema in SOURCED.items():
        known = [{column: row[column] for column in schema.names} for row in read[name]]
        parquet.write_rows(out / f"{name}.parquet", schema, known, campaign.labels)
    recipe = yaml.safe_dump(campaign.config.plain(), sort_keys=False)
    (out / "recipe.yaml").write_text(recipe, encoding="utf-8")
    for name in COPIED:
        shutil.copyfile(campaign.results / name, out / name)
    for name in COPIED_IF_THERE:
        if (campaign.results / name).exists():
            shutil.copyfile(campaign.results / name, out / name)
    if figures:
        shutil.copytree(campaign.results / "figures", out / "figures", dirs_exist_ok=True)
