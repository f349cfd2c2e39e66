"""Cold prompts in the summary."""

from longctx.results.cost import Price
from longctx.results.mode import ResultsFacet, Row


class PrefillResults(ResultsFacet):
    """A prefill and its prompt tokens have a price of their own."""

    def costs(self, summary: Row, price: Price) -> dict[str, float | None]:
        ttft_s = summary["ttft_s_mean"]
        usd_per_mtok = price.usd(ttft_s and ttft_s * 1e6 / summary["length"])
        return {"usd_per_prefill": price.usd(ttft_s), "usd_per_mtok": usd_per_mtok}


FACET = PrefillResults()
