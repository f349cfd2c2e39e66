"""What the modes estimate of whole prompts, beside the summary of what was measured; a failure costs itself alone."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from longctx.campaign.campaign import Campaign
from longctx.errors import LongctxError
from longctx.plan.campaign_plan import campaign_system
from longctx.plan.forecasting.chunk_curve import ChunkCurve
from longctx.results.collect import CollectedRows
from longctx.results.mode import results_facet
from longctx.results.ttft.chunks import chunk_rows

Rows = list[dict[str, Any]]
# Columns of the summary, by those of an estimate: no name of a measured value.
SUMMARY_COLUMNS = {
    "ttft_estimate_s": "ttft_estimate_s",
    "ttft_estimate_low_s": "ttft_low_s",
    "ttft_estimate_high_s": "ttft_high_s",
    "ttft_estimate_samples": "samples",
}


def estimate(campaign: Campaign, rows: Sequence[Mapping[str, Any]]) -> Rows:
    """Return schemas.ESTIMATES rows of every mode that estimates; one that cannot says why in its rows."""
    made: Rows = []
    for mode in campaign.modes:
        lengths = campaign.lengths(mode)
        try:
            made += results_facet(mode).estimates(rows, lengths, _bound(campaign))
        except Exception as error:
            logging.getLogger(__name__).warning("mode %s: no estimates: %r", mode, error)
            reason = f"the estimate failed: {error!r}"
            made += [{"campaign": campaign.name, "mode": mode, "length": n, "reason": reason} for n in lengths]
    return made


def with_estimates(summary: Iterable[Mapping[str, Any]], estimates: Iterable[Mapping[str, Any]]) -> Rows:
    """Return schemas.SUMMARY rows with SUMMARY_COLUMNS of their mode and length."""
    known = {(row["mode"], row["length"]): row for row in estimates}
    made = []
    for row in summary:
        found = known.get((row["mode"], row["length"]), {})
        made.append(dict(row) | {name: found.get(column) for name, column in SUMMARY_COLUMNS.items()})
    return made


def find_chunks(campaign: Campaign, collected: CollectedRows) -> Rows:
    """Return schemas.CHUNKS rows; none where they cannot be made."""
    try:
        return chunk_rows(collected.rows, collected.progress, _curve(campaign, collected.rows))
    except Exception as error:
        logging.getLogger(__name__).warning("chunks.parquet stays empty: %r", error)
        return []


def _curve(campaign: Campaign, rows: Sequence[Mapping[str, Any]]) -> ChunkCurve | None:
    curves = (results_facet(mode).chunk_curve(rows) for mode in campaign.modes)
    return next((curve for curve in curves if curve), None)


def _bound(campaign: Campaign) -> Callable[[int], float] | None:
    """Return the least prefill time of this campaign's hardware; None on a CPU, or where the plan cannot say it."""
    try:
        system = campaign_system(campaign)
    except LongctxError:
        return None
    return system.ttft_bound_s if system.hardware else None
