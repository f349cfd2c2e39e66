"""Samples in the summary: parts of prompts, so no metric of theirs is one of a whole prompt."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from longctx.errors import DataError
from longctx.modes.sampled import estimates
from longctx.plan.forecasting.chunk_curve import ChunkCurve
from longctx.results.mode import ResultsFacet, Row


class SampledResults(ResultsFacet):
    """Its numbers are the estimates; the TTFT of its whole prompts is their check and stays in their table."""

    def chunk_curve(self, rows: Sequence[Row]) -> ChunkCurve | None:
        try:
            return estimates.chunk_curve(rows)
        except DataError:
            return None

    def estimates(
        self, rows: Sequence[Row], lengths: Iterable[int], bound: Callable[[int], float] | None
    ) -> list[dict[str, Any]]:
        return estimates.estimates(rows, lengths, bound)


FACET = SampledResults(metrics=("overhead_s",), ttft_is_cold=False)
