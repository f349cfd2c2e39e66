"""Measuring samples: pairs at the end of each length's prompt, and more depths where the cost of a chunk bends."""

from pathlib import Path

from longctx.campaign.campaign import Campaign
from longctx.campaign.mode import RequestKey
from longctx.campaign.point import Point
from longctx.errors import ServerError
from longctx.measure.mode import MeasureFacet, measured_variant
from longctx.measure.verdict import CacheExpectation
from longctx.modes.sampled.campaign import sample_tokens
from longctx.prompts import variants
from longctx.storage.schemas import Role
from longctx.storage.token_file import Ids

SAMPLES = (Role.SAMPLE_SHORT, Role.SAMPLE_LONG)


class SampledMeasure(MeasureFacet):
    """A sample asks for one token: what it measures ends with the prefill."""

    def cache_expectation(self, role: str) -> CacheExpectation:
        if role in SAMPLES:
            return CacheExpectation.CLAIMED
        return CacheExpectation.COLD if role == Role.WHOLE else super().cache_expectation(role)

    def read_ids(self, path: Path, campaign: Campaign, point: Point, key: RequestKey, doubts: int) -> Ids:
        # The server keeps no prefixes, so requests of one pass may share a prompt.
        return variants.read_ids(path, measured_variant(point.pass_index - 1, doubts))

    def new_tokens(self, campaign: Campaign, role: str) -> int:
        return 1 if role in SAMPLES else super().new_tokens(campaign, role)

    def claimed_tokens(self, campaign: Campaign, role: str, prompt_tokens: int, chunk_tokens: int | None) -> int | None:
        if role not in SAMPLES:
            return None
        if chunk_tokens is None:
            raise ServerError(
                "the server does not say the size of its prefill chunks, which mode sampled measures;"
                " set serve.max_num_batched_tokens",
                "unsupported",
            )
        stages = campaign.config.serve.pipeline_parallel_size
        return prompt_tokens - sample_tokens(role, prompt_tokens, chunk_tokens, stages)


FACET = SampledMeasure()
