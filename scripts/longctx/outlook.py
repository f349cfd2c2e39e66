"""The forecast of a running campaign: what the lengths measured so far say about those to come."""

from statistics import fmean

from longctx.campaignplan import plan_of
from longctx.config import Campaign
from longctx.errors import LongctxError
from longctx.journal import read
from longctx.lengths import format_length
from longctx.points import journal_path, rows_of
from longctx.tables import COLD_ROLES
from longctx.terminal import format_seconds

# With fewer lengths the fit a·L + b·L² has no spare point to be wrong at.
MINIMUM_LENGTHS = 3


def outlook(campaign: Campaign) -> str | None:
    """Return one line: TTFT of each length still to be measured, with its interval; None while nothing can be said."""
    measured: dict[int, list[float]] = {}
    waiting: set[int] = set()
    for point in campaign.points("prefill") if "prefill" in campaign.modes else ():
        rows = rows_of(read(journal_path(campaign, point))[0])
        times = [row["ttft_s"] for row in rows if row["role"] in COLD_ROLES and row.get("ttft_s")]
        if times:
            measured.setdefault(point.length, []).extend(times)
        else:
            waiting.add(point.length)
    ahead = waiting - set(measured)
    if len(measured) < MINIMUM_LENGTHS or not ahead:
        return None
    try:
        plan = plan_of(campaign, {length: fmean(times) for length, times in measured.items()})
    except LongctxError:
        return None
    said = [
        f"{format_length(row['length'])} {format_seconds(row['est_ttft_s'])}"
        f" ({format_seconds(row['est_ttft_low_s'])} to {format_seconds(row['est_ttft_high_s'])})"
        for row in plan.rows
        if row["mode"] == "prefill" and row["length"] in ahead and row["est_ttft_s"] is not None
    ]
    return f"forecast from {len(measured)} lengths: TTFT {', '.join(said)}" if said else None
