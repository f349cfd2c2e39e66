"""Measuring samples: pairs at the end of each length's prompt, and more depths where the cost of a chunk bends."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longctx.campaign.campaign import Campaign
from longctx.campaign.mode import RequestKey
from longctx.campaign.point import Point
from longctx.errors import DataError, ServerError
from longctx.measure.mode import MeasureFacet, measured_variant
from longctx.measure.point_record import past_rows
from longctx.measure.row.verdict import CacheExpectation
from longctx.modes.sampled.campaign import sample_tokens
from longctx.modes.sampled.estimates import SAMPLE_ROLES, chunk_curve
from longctx.modes.sampled.refinement import MOST_PAIRS, next_prompt
from longctx.prompts import variants
from longctx.storage.schemas import ModeName, Role
from longctx.storage.token_file import Ids

MOST_REPEATS = 100  # indices beyond are those of refinements


class SampledMeasure(MeasureFacet):
    """A sample asks for one token: what it measures ends with the prefill."""

    def cache_expectation(self, role: str) -> CacheExpectation:
        if role in SAMPLE_ROLES:
            return CacheExpectation.CLAIMED
        return CacheExpectation.COLD if role == Role.WHOLE else super().cache_expectation(role)

    def read_ids(self, path: Path, campaign: Campaign, point: Point, key: RequestKey, doubts: int) -> Ids:
        # The server keeps no prefixes, so requests of one pass may share a prompt.
        ids = variants.read_ids(path, measured_variant(point.pass_index - 1, doubts))
        return ids[: key[1]] if is_refinement(key) else ids

    def new_tokens(self, campaign: Campaign, role: str) -> int:
        return 1 if role in SAMPLE_ROLES else super().new_tokens(campaign, role)

    def claimed_tokens(self, campaign: Campaign, role: str, prompt_tokens: int, chunk_tokens: int | None) -> int | None:
        if role not in SAMPLE_ROLES:
            return None
        if chunk_tokens is None:
            raise ServerError(
                "the server does not say the size of its prefill chunks, which mode sampled measures;"
                " set serve.max_num_batched_tokens",
                "unsupported",
            )
        stages = campaign.config.serve.pipeline_parallel_size
        return prompt_tokens - sample_tokens(role, prompt_tokens, chunk_tokens, stages)

    def more_requests(self, campaign: Campaign, point: Point) -> list[RequestKey]:
        """Refine the curve where it bends, once all lengths are measured: a pair at the end of a prefix."""
        lengths = campaign.lengths(ModeName.SAMPLED)
        if point.length < max(lengths):
            return []
        done = {(other, _key(row)): row for other in campaign.points(point.mode) for row in past_rows(campaign, other)}
        refined = {key[1] for _, key in done if is_refinement(key)}
        if len(refined) >= MOST_PAIRS:
            return []
        try:
            tokens = next_prompt(chunk_curve(done.values()), lengths)
        except DataError:
            return []
        wanted = tokens is not None and MOST_REPEATS < tokens < point.length and tokens not in refined
        return [(str(role), tokens) for role in SAMPLE_ROLES] if wanted and tokens else []


def is_refinement(key: RequestKey) -> bool:
    """Return whether a request is one between the ladder's lengths: its index is the length of its prompt in tokens."""
    return key[1] > MOST_REPEATS


def _key(row: Mapping[str, Any]) -> RequestKey:
    return row["role"], row["request_index"]


FACET = SampledMeasure()
