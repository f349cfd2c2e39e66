"""Measuring queries behind a resident prefix."""

from collections.abc import Iterator, Sequence

from longctx.campaign.campaign import Campaign
from longctx.campaign.mode import RequestKey
from longctx.campaign.point import Point
from longctx.measure.mode import MEASURED_VARIANTS, MeasureFacet, RequestPrompt, measured_variant
from longctx.measure.verdict import CacheExpectation
from longctx.storage.schemas import Role

# The request index of the warm-up that makes a killed server's prefix resident again, beyond those of all others.
PREFIX_AGAIN = 100


class ReuseMeasure(MeasureFacet):
    """The queries of a pass share its prefix and differ from their own first token on."""

    def cache_expectation(self, role: str) -> CacheExpectation:
        return CacheExpectation.RESIDENT if role == Role.REUSE else super().cache_expectation(role)

    def prompt(self, campaign: Campaign, point: Point, key: RequestKey, doubts: int) -> RequestPrompt:
        role, index = key
        prefix = measured_variant(point.pass_index, doubts if role == Role.COLD else 0)
        if role != Role.REUSE:
            return RequestPrompt(prefix)
        query = index - 1 + (MEASURED_VARIANTS if doubts else 0)
        return RequestPrompt(prefix, query, campaign.raw["reuse"]["suffix_tokens"])

    def requests(self, missing: Sequence[RequestKey]) -> Iterator[RequestKey]:
        if (Role.COLD, 0) not in missing:
            yield Role.WARMUP, PREFIX_AGAIN  # the prefix of an earlier server is gone
        yield from missing


FACET = ReuseMeasure()
