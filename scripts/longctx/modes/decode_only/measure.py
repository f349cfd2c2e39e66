"""Measuring decode behind a filled KV cache."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longctx.campaign.campaign import Campaign
from longctx.campaign.mode import RequestKey
from longctx.campaign.point import Point
from longctx.measure.mode import MeasureFacet, measured_variant
from longctx.measure.row.verdict import CacheExpectation
from longctx.prompts import variants
from longctx.storage.schemas import Role
from longctx.storage.token_file import Ids


class DecodeOnlyMeasure(MeasureFacet):
    """One request a pass; there is no prefill, so there is no TTFT."""

    def cache_expectation(self, role: str) -> CacheExpectation:
        return CacheExpectation.FILLED if role == Role.DECODE_ONLY else super().cache_expectation(role)

    def read_ids(self, path: Path, campaign: Campaign, point: Point, key: RequestKey, doubts: int) -> Ids:
        return variants.read_ids(path, measured_variant(point.pass_index, doubts))

    def first_fill(self, gpu: str | None) -> Mapping[str, Any]:
        # Quirk of vLLM's CPU kernels on processors with AMX: they die of SIGILL unless a dozen tokens or more are
        # computed first. The connector leaves one to compute, but all where the prompt's log-probabilities are asked.
        return {} if gpu else {"prompt_logprobs": 0}


FACET = DecodeOnlyMeasure()
