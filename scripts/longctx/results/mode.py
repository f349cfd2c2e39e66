"""What a mode's rows mean to the summary; the answers of each mode lie in longctx/modes/<mode>/results.py."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longctx.campaign.mode import load_facet
from longctx.plan.forecasting.chunk_curve import ChunkCurve
from longctx.results.cost import Price

Row = Mapping[str, Any]
# What the summary describes by its mean, deviation and extremes.
METRICS = ("ttft_s", "prefill_s", "overhead_s", "decode_tok_s")


@dataclass(frozen=True)
class ResultsFacet:
    """What the summary may say of a mode. Defaults are those of cold prompts.

    metrics: those of METRICS that a row of the mode can have. ttft_is_cold: whether its TTFT is that of a whole
    prefill, which the hardware's FLOP/s bound and a power law of the length describes.
    """

    metrics: Sequence[str] = METRICS
    ttft_is_cold: bool = True

    def columns(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Return the mode's own columns of a summary row, from all rows of its length."""
        return {}

    def costs(self, summary: Row, price: Price) -> dict[str, float | None]:
        """Return the mode's own columns in $ of a summary row."""
        return {}

    def estimates(
        self, rows: Sequence[Row], lengths: Iterable[int], bound: Callable[[int], float] | None
    ) -> list[dict[str, Any]]:
        """Return schemas.ESTIMATES rows of whole prompts of `lengths`, from the rows of all modes.

        bound: the least prefill time in s that the hardware allows, None where that is not known.
        """
        return []

    def chunk_curve(self, rows: Sequence[Row]) -> ChunkCurve | None:
        """Return the cost of a chunk against its depth as the mode's rows tell it, None where they do not."""
        return None


def results_facet(mode: str) -> ResultsFacet:
    """Return what the summary may say of `mode`."""
    facet: ResultsFacet = load_facet(mode, "results")
    return facet
