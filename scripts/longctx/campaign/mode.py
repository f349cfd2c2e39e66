"""The registry of modes: each one is a folder of `longctx.modes`, and every stage loads its own facet from there."""

import importlib
from functools import cache
from typing import Any

from longctx.campaign.config import CampaignConfig, DecodeOnlyConfig, ModeConfig, SampledConfig
from longctx.errors import ConfigError
from longctx.storage.schemas import ModeName, Role

# The order in which modes are named in tables and figures; the first one measures cold prompts.
MODES = tuple(ModeName)
COLD_MODE = MODES[0]
# A request of a point: its role and its index; index 0 is the first one.
RequestKey = tuple[str, int]


@cache
def load_facet(mode: str, stage: str) -> Any:
    """Return `FACET` of longctx/modes/<mode>/<stage>.py, by name as of a plugin: no stage imports a mode above it."""
    return importlib.import_module(f"longctx.modes.{mode}.{stage}").FACET


class CampaignFacet:
    """What a mode asks of the configuration, of the server and of the plan. Defaults are those of cold prompts.

    counted_roles: requests that the summary counts. measures_ttft: whether the client sees a prefill. decodes: whether
    a counted request goes on after its first token. fills_kv: whether the KV cache holds made-up values.
    needs_prefix_caching: of its server. logs_iterations: whether its server logs each step of its engine, which costs
    each decoded token a line; a mode whose decode counts leaves that to serve.extra_args.
    """

    name: ModeName
    counted_roles: tuple[Role, ...]
    measures_ttft = True
    decodes = True
    fills_kv = False
    needs_prefix_caching = False
    logs_iterations = False

    def section(self, config: CampaignConfig) -> ModeConfig | None:
        """Return the mode's own section of a configuration, None where it has none."""
        section: ModeConfig | None = getattr(config, self.name, None)
        return section

    def check(self, config: CampaignConfig) -> None:
        """Raise ConfigError where the configuration cannot serve this mode."""

    def requests(self, config: CampaignConfig, repeats: int, length: int, pass_index: int) -> list[RequestKey]:
        """Return the requests that a point must have; `repeats` is the campaign's number of cold requests."""
        raise NotImplementedError

    def prefills(self, requests: int) -> int:
        """Return how many whole prefills one pass of a point costs that has this many counted requests."""
        return requests

    def samples(self, config: CampaignConfig, length: int, pass_index: int, chunk_tokens: int) -> list[tuple[int, int]]:
        """Return the parts of prompts, from token to token, that one pass computes beside its `prefills`."""
        return []

    def suffix_tokens(self, config: CampaignConfig) -> int:
        """Return how many tokens a request adds to its prompt before the answer."""
        return 0

    def identity(self, config: CampaignConfig) -> dict[str, Any]:
        """Return the settings of the mode's own section that change its numbers: part of its recipe's identity."""
        return {}

    def kv_transfer_config(self, config: CampaignConfig) -> dict[str, Any] | None:
        """Return vLLM's kv_transfer_config that the mode needs, None where it needs no KV connector."""
        return None


def refuse_external(config: CampaignConfig, mode: ModeName, connector: str) -> None:
    """Raise ConfigError where the server runs already: nobody has started it with the mode's KV connector."""
    if config.launcher == "external":
        raise ConfigError(
            f"config key modes: {mode} needs a server started with {connector}, which launcher: external does not"
            " start; remove the mode"
        )


def kv_fill(
    config: CampaignConfig, own: DecodeOnlyConfig | SampledConfig, otherwise: tuple[float | None, float]
) -> tuple[float | None, float]:
    """Return mean and deviation of what fills a KV cache; the mean is None where nothing does.

    They are those of the mode's `own` section, else those of the keys and values of random weights, else `otherwise`.
    """
    mean, deviation = (0.0, 1.0) if config.model.weights == "random" else otherwise
    return (
        mean if own.fill_mean is None else own.fill_mean,
        deviation if own.fill_std is None else own.fill_std,
    )


def campaign_facet(mode: str) -> CampaignFacet:
    """Return what `mode` asks of a campaign."""
    facet: CampaignFacet = load_facet(mode, "campaign")
    return facet
