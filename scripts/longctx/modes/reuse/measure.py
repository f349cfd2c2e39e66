"""Measuring queries behind a resident prefix."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from longctx.campaign.campaign import Campaign
from longctx.campaign.mode import RequestKey
from longctx.campaign.point import Point
from longctx.measure.mode import MEASURED_VARIANTS, MeasureFacet, measured_variant
from longctx.measure.row.verdict import CacheExpectation
from longctx.prompts import variants
from longctx.storage.schemas import Role
from longctx.storage.token_file import Ids

# The request index of the warm-up that makes a killed server's prefix resident again, beyond those of all others.
PREFIX_AGAIN = 100


class ReuseMeasure(MeasureFacet):
    """The queries of a pass share its prefix and differ from their own first token on."""

    def cache_expectation(self, role: str) -> CacheExpectation:
        return CacheExpectation.RESIDENT if role == Role.REUSE else super().cache_expectation(role)

    def read_ids(self, path: Path, campaign: Campaign, point: Point, key: RequestKey, doubts: int) -> Ids:
        role, index = key
        prefix = variants.read_ids(path, measured_variant(point.pass_index, doubts if role == Role.COLD else 0))
        if role != Role.REUSE:
            return prefix
        query = index - 1 + (MEASURED_VARIANTS if doubts else 0)
        suffix = variants.read_suffix_ids(path, query, campaign.config.reuse.suffix_tokens)
        return np.concatenate([prefix, suffix])

    def requests(self, missing: Sequence[RequestKey]) -> Iterator[RequestKey]:
        if (Role.COLD, 0) not in missing:
            yield Role.WARMUP, PREFIX_AGAIN  # the prefix of an earlier server is gone
        yield from missing


FACET = ReuseMeasure()
