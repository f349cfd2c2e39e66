"""Measuring cold prompts: after each point the lengths still to come are forecast from those measured."""

from longctx.campaign.campaign import Campaign
from longctx.measure.mode import MeasureFacet
from longctx.measure.running_forecast import running_forecast


class PrefillMeasure(MeasureFacet):
    """Every request is a whole prompt that no cache held."""

    def forecast(self, campaign: Campaign) -> str | None:
        return running_forecast(campaign)


FACET = PrefillMeasure()
