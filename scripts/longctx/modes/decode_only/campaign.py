"""Decode without prefill in a campaign: a KV connector fills the KV cache."""

from typing import Any

from longctx.campaign.config import CampaignConfig
from longctx.campaign.mode import CampaignFacet, RequestKey, kv_fill, refuse_external
from longctx.storage.schemas import ModeName, Role


class DecodeOnlyCampaign(CampaignFacet):
    """Needs a server that this campaign starts itself, with the connector."""

    name = ModeName.DECODE_ONLY
    counted_roles = (Role.DECODE_ONLY,)
    measures_ttft = False
    fills_kv = True

    def check(self, config: CampaignConfig) -> None:
        refuse_external(config, self.name, "vLLM's DecodeBenchConnector")

    def requests(self, config: CampaignConfig, repeats: int, length: int, pass_index: int) -> list[RequestKey]:
        return [(Role.DECODE_ONLY, 0)]

    def prefills(self, requests: int) -> int:
        return 0

    def identity(self, config: CampaignConfig) -> dict[str, Any]:
        return {"fill": list(_fill(config))}

    def kv_transfer_config(self, config: CampaignConfig) -> dict[str, Any]:
        mean, deviation = _fill(config)
        name = {"kv_connector": "DecodeBenchConnector"}
        if deviation:
            name = {"kv_connector": "NoiseConnector", "kv_connector_module_path": "filled_prefix"}
        return name | {"kv_role": "kv_both", "kv_connector_extra_config": {"fill_mean": mean, "fill_std": deviation}}


def _fill(config: CampaignConfig) -> tuple[float | None, float]:
    return kv_fill(config, config.decode_only, otherwise=(0.015, 0.0))


FACET = DecodeOnlyCampaign()
