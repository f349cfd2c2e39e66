"""The forecast of a running campaign: TTFT of the lengths to come, from those measured so far."""

from statistics import fmean

from longctx.campaign.campaign import Campaign
from longctx.campaign.mode import COLD_MODE
from longctx.errors import LongctxError
from longctx.lengths import format_length
from longctx.measure.point_record import past_rows
from longctx.plan.campaign_plan import plan_campaign
from longctx.storage.schemas import COLD_ROLES
from longctx.units import format_seconds

# With fewer lengths the fit a·L + b·L² has no degree of freedom left.
MINIMUM_LENGTHS = 3


def running_forecast(campaign: Campaign) -> str | None:
    """Return one line with the TTFT of each length to come and its interval; None where no forecast can be made."""
    measured: dict[int, list[float]] = {}
    waiting: set[int] = set()
    for point in campaign.points(COLD_MODE) if COLD_MODE in campaign.modes else ():
        rows = (row for row in past_rows(campaign, point) if row["role"] in COLD_ROLES)
        times = [row["ttft_s"] for row in rows if row.get("ttft_s")]
        if times:
            measured.setdefault(point.length, []).extend(times)
        else:
            waiting.add(point.length)
    ahead = waiting - set(measured)
    if len(measured) < MINIMUM_LENGTHS or not ahead:
        return None
    try:
        plan = plan_campaign(campaign, {length: fmean(times) for length, times in measured.items()})
    except LongctxError:
        return None
    forecasts = [
        f"{format_length(row['length'])} {format_seconds(row['est_ttft_s'])}"
        f" ({format_seconds(row['est_ttft_low_s'])} to {format_seconds(row['est_ttft_high_s'])})"
        for row in plan.rows
        if row["mode"] == COLD_MODE and row["length"] in ahead and row["est_ttft_s"] is not None
    ]
    return f"forecast from {len(measured)} lengths: TTFT {', '.join(forecasts)}" if forecasts else None
