"""Cold prompts in figures and reports."""

from longctx import units
from longctx.lengths import format_length
from longctx.report import palette
from longctx.report.mode import ReportFacet
from longctx.report.palette import Look
from longctx.results.campaign_results import CampaignResults
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
        timed = [row for row in results.of_mode(self.name) if row["ttft_s_mean"] is not None]
        if not timed:
            return []
        row, ttft = timed[-1], units.human_seconds(timed[-1]["ttft_s_mean"])
        decode = f", then {row['decode_tok_s_mean']:.1f} tokens/s" if row["decode_tok_s_mean"] else ""
        return [f"{format_length(row['length'])} tokens, cold: first token after {ttft}{decode}."]


FACET = PrefillReport()
