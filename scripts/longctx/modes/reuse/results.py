"""Queries behind a resident prefix in the summary."""

from collections.abc import Sequence
from typing import Any

from longctx.measure.row.reasons import bounds
from longctx.results import cost, statistics
from longctx.results.cost import Price
from longctx.results.mode import ResultsFacet, Row
from longctx.storage.schemas import Role, Status


class ReuseResults(ResultsFacet):
    """The cold request of a point, which makes the prefix resident, is no query: it gives prefix_ttft_s_mean."""

    def columns(self, rows: Sequence[Row]) -> dict[str, Any]:
        cold = [row for row in rows if row["role"] == Role.COLD and row["status"] == Status.OK]
        resident = [row.get("ttft_s") for row in cold if "ttft_s" not in bounds(row)]
        return {"prefix_ttft_s_mean": statistics.describe(resident).mean}

    def costs(self, summary: Row, price: Price) -> dict[str, float | None]:
        return {"usd_per_query": price.usd(cost.query_s(summary, summary["ttft_s_mean"]))}


FACET = ReuseResults(ttft_is_cold=False)
