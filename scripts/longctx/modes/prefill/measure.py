"""Measuring cold prompts: after each point the lengths still to come are forecast from those measured."""

from statistics import fmean

from longctx.campaign.campaign import Campaign
from longctx.campaign.mode import COLD_MODE
from longctx.errors import LongctxError
from longctx.lengths import format_length
from longctx.measure.mode import MeasureFacet
from longctx.measure.point_record import past_rows
from longctx.measure.row.reasons import bounds
from longctx.plan.campaign_plan import plan_campaign
from longctx.storage.schemas import COLD_ROLES
from longctx.units import format_seconds

# With fewer lengths the fit a·L + b·L² has no degree of freedom left.
MINIMUM_LENGTHS = 3


class PrefillMeasure(MeasureFacet):
    """Every request is a whole prompt that no cache held."""

    def forecast(self, campaign: Campaign) -> str | None:
        times: dict[int, list[float]] = {length: [] for length in campaign.lengths()}
        for point in campaign.points(COLD_MODE):
            rows = (row for row in past_rows(campaign, point) if row["role"] in COLD_ROLES)
            times[point.length] += [row["ttft_s"] for row in rows if row.get("ttft_s") and "ttft_s" not in bounds(row)]
        measured = {length: fmean(found) for length, found in times.items() if found}
        if len(measured) < MINIMUM_LENGTHS or len(measured) == len(times):
            return None
        try:
            plan = plan_campaign(campaign, measured)
        except LongctxError:
            return None
        forecasts = [
            f"{format_length(row['length'])} {format_seconds(row['est_ttft_s'])}"
            f" ({format_seconds(row['est_ttft_low_s'])} to {format_seconds(row['est_ttft_high_s'])})"
            for row in plan.rows
            if row["mode"] == COLD_MODE and row["length"] not in measured and row["est_ttft_s"] is not None
        ]
        return f"forecast from {len(measured)} lengths: TTFT {', '.join(forecasts)}" if forecasts else None


FACET = PrefillMeasure()
