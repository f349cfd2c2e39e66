"""Decode without prefill in a campaign: a KV connector fills the KV cache."""

from typing import Any

from longctx.campaign.config import CampaignConfig
from longctx.campaign.mode import CampaignFacet, RequestKey
from longctx.errors import ConfigError
from longctx.storage.schemas import ModeName, Role


class DecodeOnlyCampaign(CampaignFacet):
    """Needs a server that this campaign starts itself, with the connector."""

    name = ModeName.DECODE_ONLY
    counted_roles = (Role.DECODE_ONLY,)
    measures_ttft = False
    fills_kv = True

    def check(self, config: CampaignConfig) -> None:
        if config.launcher == "external":
            raise ConfigError(
                "config key modes: decode_only needs a server started with vLLM's DecodeBenchConnector, which launcher:"
                " external does not start; remove the mode"
            )

    def requests(self, config: CampaignConfig, repeats: int, length: int, pass_index: int) -> list[RequestKey]:
        return [(Role.DECODE_ONLY, 0)]

    def prefills(self, requests: int) -> int:
        return 0

    def identity(self, config: CampaignConfig) -> dict[str, Any]:
        return {"fill": list(_fill(config).values())}

    def kv_transfer_config(self, config: CampaignConfig) -> dict[str, Any]:
        fill = _fill(config)
        name = {"kv_connector": "DecodeBenchConnector"}
        if fill["fill_std"]:
            name = {"kv_connector": "NoiseConnector", "kv_connector_module_path": "filled_prefix"}
        return name | {"kv_role": "kv_both", "kv_connector_extra_config": fill}


def _fill(config: CampaignConfig) -> dict[str, float]:
    """Return mean and deviation of the values in the KV cache."""
    own, mean, deviation = config.decode_only, *((0.0, 1.0) if config.model.weights == "random" else (0.015, 0.0))
    return {
        "fill_mean": mean if own.fill_mean is None else own.fill_mean,
        "fill_std": deviation if own.fill_std is None else own.fill_std,
    }


FACET = DecodeOnlyCampaign()
