"""Cold prompts in a campaign: repeats at short lengths, one request at long ones."""

from collections.abc import Mapping
from typing import Any

from longctx.campaign.mode import CampaignFacet, RequestKey
from longctx.errors import ConfigError
from longctx.lengths import configured_lengths
from longctx.storage.schemas import ModeName, Role


class PrefillCampaign(CampaignFacet):
    """Needs the campaign's own lengths, which are its ladder."""

    name = ModeName.PREFILL
    counted_roles = (Role.COLD, Role.REPEAT)

    def check(self, config: Mapping[str, Any]) -> None:
        if not configured_lengths(config, ""):
            raise ConfigError("config key lengths: missing; mode prefill needs lengths, or from and to")

    def requests(self, config: Mapping[str, Any], repeats: int) -> list[RequestKey]:
        return [(Role.COLD if index == 0 else Role.REPEAT, index) for index in range(repeats)]


FACET = PrefillCampaign()
