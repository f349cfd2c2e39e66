"""Cold prompts in figures and reports."""

from longctx import units
from longctx.lengths import format_length
from longctx.measure.row.reasons import bounds
from longctx.report import palette
from longctx.report.mode import ReportFacet
from longctx.report.palette import Look
from longctx.results.campaign_results import CampaignResults
from longctx.results.ttft.first_token import first_token
from longctx.storage.schemas import ModeName


class PrefillReport(ReportFacet):
    """The mode that others are compared with."""

    name = ModeName.PREFILL
    display_name = "cold prompt"
    table_title = "Time to first token and decode throughput"
    look = Look("cold prompt", palette.BLUE, "o", 5.0)
    overlay = ("", 7.0)
    limit_series = (
        (Look("decode: measured / bandwidth bound", palette.ORANGE, "^"), "decode_over_bound"),
        (Look("prefill: bound / measured TTFT (MFU)", palette.BLUE, "o"), "ttft_over_bound"),
    )

    def reach(self, results: CampaignResults) -> list[str]:
        timed = [(row, first) for row in results.of_mode(self.name) if (first := first_token(row))]
        if not timed:
            return self._bound(results)
        row, first = timed[-1]
        decode = f", then {row['decode_tok_s_mean']:.1f} tokens/s" if row["decode_tok_s_mean"] else ""
        ttft = units.human_seconds(first.seconds) + first.note()
        return [f"{format_length(row['length'])} tokens, cold: first token after {ttft}{decode}."]

    def _bound(self, results: CampaignResults) -> list[str]:
        """Say what late values alone prove."""
        late = [row for row in results.rows if row["mode"] == self.name and "ttft_s" in bounds(row)]
        longest = max((row["length"] for row in late), default=0)
        at_most_s = max((row["ttft_s"] for row in late if row["length"] == longest and row["ttft_s"]), default=None)
        if at_most_s is None:
            return []
        known = f"first token after {units.human_seconds(at_most_s)} at most"
        return [
            f"{format_length(longest)} tokens, cold: {known}; the client read every one late, so only a bound is known."
        ]


FACET = PrefillReport()
