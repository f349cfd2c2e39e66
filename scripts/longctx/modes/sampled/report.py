"""Samples in figures and reports."""

from longctx.report import palette
from longctx.report.mode import ReportFacet
from longctx.report.palette import Look
from longctx.storage.schemas import ModeName


class SampledReport(ReportFacet):
    """Its samples have neither TTFT nor decode."""

    name = ModeName.SAMPLED
    display_name = "sampled"
    table_title = "Samples (no TTFT, no decode)"
    look = Look("sampled", palette.ORANGE, "X", 7.0, hollow=True)
    ttft_column = None
    in_decode_limits = False


FACET = SampledReport()
