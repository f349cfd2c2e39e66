"""Decode without prefill in figures and reports."""

from longctx.campaign.mode import COLD_MODE
from longctx.lengths import format_length
from longctx.report import palette
from longctx.report.mode import ReportFacet
from longctx.report.palette import Look
from longctx.report.table_cells import Columns, Table, change, prompt_cell, spread, tabulate
from longctx.results.campaign_results import CampaignResults
from longctx.storage.schemas import ModeName


class DecodeOnlyReport(ReportFacet):
    """Its KV cache is filled, so it has no TTFT; its decode is checked against decode after a real prefill."""

    name = ModeName.DECODE_ONLY
    display_name = "decode only (KV filled)"
    table_title = "Decode throughput with a filled KV cache (no prefill, so no TTFT)"
    look = Look("KV cache filled, no prefill", palette.VERMILLION, "s", 9.5, hollow=True)
    ttft_column = None
    overlay = (" (KV filled)", 10.0)
    limit_series = ((Look("decode, KV cache filled", palette.VERMILLION, "s", 9.5, hollow=True), "decode_over_bound"),)
    decode_condition = " with a filled KV cache"
    energy_note = " Where the cache was filled, only J / output token is of the decode."

    def reach(self, results: CampaignResults) -> list[str]:
        filled = [row for row in results.of_mode(self.name) if row["decode_tok_s_mean"]]
        text = "Decode at {} with a filled KV cache: {:.1f} tokens/s."
        return [text.format(format_length(row["length"]), row["decode_tok_s_mean"]) for row in filled[-1:]]

    def checks(self, results: CampaignResults) -> list[Table]:
        """Compare decode with a filled cache with decode after a real prefill, where both were measured."""
        real = {row["length"]: row for row in results.of_mode(COLD_MODE) if row["decode_tok_s_mean"]}
        filled = [row for row in results.of_mode(self.name) if row["decode_tok_s_mean"] and row["length"] in real]
        columns: Columns = (
            ("Prompt", prompt_cell),
            ("Prefilled tok/s", lambda row: spread(real[row["length"]], "decode_tok_s", 1)),
            ("Filled tok/s", lambda row: spread(row, "decode_tok_s", 1)),
            ("Difference", lambda row: change(row["decode_tok_s_mean"], real[row["length"]]["decode_tok_s_mean"])),
        )
        return [tabulate("Filled cache against real prefill", columns, filled)]


FACET = DecodeOnlyReport()
