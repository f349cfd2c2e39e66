"""Cold prompts in a campaign: repeats at short lengths, one request at long ones."""

from longctx.campaign.config import CampaignConfig, configured_lengths
from longctx.campaign.mode import CampaignFacet, RequestKey
from longctx.errors import ConfigError
from longctx.storage.schemas import ModeName, Role


class PrefillCampaign(CampaignFacet):
    """Needs the campaign's own lengths, which are its ladder."""

    name = ModeName.PREFILL
    counted_roles = (Role.COLD, Role.REPEAT)

    def check(self, config: CampaignConfig) -> None:
        if not configured_lengths(config, ""):
            raise ConfigError("config key lengths: missing; mode prefill needs lengths, or from and to")

    def requests(self, config: CampaignConfig, repeats: int, length: int, pass_index: int) -> list[RequestKey]:
        return [(Role.COLD if index == 0 else Role.REPEAT, index) for index in range(repeats)]


FACET = PrefillCampaign()
