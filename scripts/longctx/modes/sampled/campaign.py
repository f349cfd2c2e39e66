"""Sampled prefill in a campaign: two samples per length, and whole prompts at some lengths as a check.

A point of length L sends the last n tokens of its prompt behind a claimed prefix of L - n: n of one chunk (short), and
of 1 + m chunks (long). The difference over m is the mean cost of the m chunks before the last one; what every request
pays once, the last chunk, and filling the stages of pipeline parallelism cancel.

With pipeline parallelism the chunks of one prompt overlap, as the engine keeps as many in flight as there are stages.
m = 2 × stages chunks more are assumed to be the steady state of a whole prefill.

From DEEP_CHUNKS chunks on, one takes seconds and what a request pays once takes milliseconds. There m = stages is
enough, and on a single stage the last chunk, which cancels, is replaced by a small part of one.
"""

from typing import Any

from longctx.campaign.config import CampaignConfig, SampledConfig, configured_lengths
from longctx.campaign.mode import CampaignFacet, RequestKey, kv_fill, refuse_external
from longctx.errors import ConfigError
from longctx.lengths import format_length, parse_length
from longctx.storage.schemas import ModeName, Role

DEEP_CHUNKS = 128
SMALL_PART = 16  # of these parts make a chunk


def sample_tokens(role: str, length: int, chunk_tokens: int, stages: int) -> int:
    """Return how many last tokens of a prompt a request of this role computes; stages: of pipeline parallelism."""
    if role == Role.WHOLE:
        return length
    is_deep = length >= DEEP_CHUNKS * chunk_tokens
    last = max(1, chunk_tokens // SMALL_PART) if is_deep and stages == 1 else chunk_tokens
    more = stages if is_deep else 2 * stages
    return min(last if role == Role.SAMPLE_SHORT else last + more * chunk_tokens, length)


class SampledCampaign(CampaignFacet):
    """Needs a server that this campaign starts itself, with the project's own KV connector and no kept prefixes."""

    name = ModeName.SAMPLED
    counted_roles = (Role.SAMPLE_SHORT, Role.SAMPLE_LONG)
    measures_ttft = False
    decodes = False
    logs_iterations = True

    def check(self, config: CampaignConfig) -> None:
        refuse_external(config, self.name, "this project's KV connector")
        if config.checkpoint:
            raise ConfigError(
                "config key checkpoint: mode sampled uses the KV connector itself and must not read prefixes back;"
                " remove checkpoint or the mode"
            )
        if config.serve.prefix_caching:
            raise ConfigError(
                "config key serve.prefix_caching: mode sampled claims prefixes itself, and kept ones would shorten its"
                " samples; set it to false or remove the mode"
            )
        own, ladder = _whole_lengths(config.sampled), configured_lengths(config.sampled, "sampled.")
        if strange := sorted(set(own) - set(ladder or configured_lengths(config, ""))):
            raise ConfigError(
                f"config key sampled.whole: {format_length(strange[0])} is not a length of the mode; add it to"
                " sampled.lengths or remove it"
            )

    def requests(self, config: CampaignConfig, repeats: int, length: int, pass_index: int) -> list[RequestKey]:
        own = config.sampled
        keys: list[RequestKey] = [
            (role, index) for index in range(own.repeats) for role in (Role.SAMPLE_SHORT, Role.SAMPLE_LONG)
        ]
        is_checked = length in _whole_lengths(own) and pass_index <= own.whole_passes
        return [*keys, (Role.WHOLE, 0)] if is_checked else keys

    def prefills(self, requests: int) -> int:
        return 0

    def samples(self, config: CampaignConfig, length: int, pass_index: int, chunk_tokens: int) -> list[tuple[int, int]]:
        stages = config.serve.pipeline_parallel_size
        keys = self.requests(config, 1, length, pass_index)
        return [(length - sample_tokens(role, length, chunk_tokens, stages), length) for role, _ in keys]

    def identity(self, config: CampaignConfig) -> dict[str, Any]:
        return {"fill": list(_fill(config))}

    def kv_transfer_config(self, config: CampaignConfig) -> dict[str, Any]:
        mean, deviation = _fill(config)
        if mean is None:
            return {
                "kv_connector": "ClaimedPrefixConnector",
                "kv_connector_module_path": "claimed_prefix",
                "kv_role": "kv_both",
            }
        return {
            "kv_connector": "FilledPrefixConnector",
            "kv_connector_module_path": "filled_prefix",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"fill_mean": mean, "fill_std": deviation},
        }


def _fill(config: CampaignConfig) -> tuple[float | None, float]:
    return kv_fill(config, config.sampled, otherwise=(None, 0.0))


def _whole_lengths(section: SampledConfig) -> list[int]:
    return [parse_length(length) for length in section.whole]


FACET = SampledCampaign()
