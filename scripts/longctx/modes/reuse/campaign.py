"""A resident prefix in a campaign: one cold prompt, then queries behind it on a server that keeps prefixes."""

from typing import Any

from longctx.campaign.config import CampaignConfig
from longctx.campaign.mode import CampaignFacet, RequestKey
from longctx.storage.schemas import ModeName, Role


class ReuseCampaign(CampaignFacet):
    """The queries count; the prefill that makes the prefix resident is request 0."""

    name = ModeName.REUSE
    counted_roles = (Role.REUSE,)
    needs_prefix_caching = True

    def requests(self, config: CampaignConfig, repeats: int, length: int, pass_index: int) -> list[RequestKey]:
        return [(Role.COLD, 0), *((Role.REUSE, index) for index in range(1, config.reuse.queries + 1))]

    def prefills(self, requests: int) -> int:
        return 1

    def suffix_tokens(self, config: CampaignConfig) -> int:
        return config.reuse.suffix_tokens

    def identity(self, config: CampaignConfig) -> dict[str, Any]:
        return {"suffix_tokens": self.suffix_tokens(config)}


FACET = ReuseCampaign()
