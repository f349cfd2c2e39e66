"""Sampled prefill in figures and reports: the estimates, their check against real prefills, the cost of a chunk."""

from collections.abc import Sequence
from typing import Any

from longctx import units
from longctx.lengths import format_length
from longctx.modes.sampled import figure
from longctx.modes.sampled.estimates import COMPUTED_WHOLE, DOUBTS, estimated
from longctx.report.mode import FigureSpec, ReportFacet, report_facet
from longctx.report.table_cells import NONE, Cell, Columns, Row, Table, change, count, number, prompt_cell, tabulate
from longctx.results.campaign_results import CampaignResults
from longctx.results.ttft.chunks import SLOW_FACTOR
from longctx.storage.schemas import ModeName, Role

NOTE = (
    "Sampled, not measured: the server computed a few chunks of each prompt behind a prefix that it was told to take as"
    " computed; the TTFT of the whole prompt is integrated from them. The interval holds the spread of the samples, the"
    " interpolation, and the deviation from real prefills (docs/sampled.md)."
)
CHECK_NOTE = (
    "Deviation = sampled / real - 1. The interval here is that of the samples alone, without what real prefills deviate"
    " by. Real prefills are whole prompts on the samples' own servers, or else those of the cold prompts."
)
REAL = {Role.WHOLE: "whole prompt, samples' server"}
MARKS_NOTE = (
    f"Chunks of real prefills that took over {SLOW_FACTOR} times what those around them say, or in which the"
    " server logged a compilation; they stay in every value."
)


def share(row: Row) -> float:
    """Return half the interval over the estimate."""
    return float(row["ttft_high_s"] - row["ttft_estimate_s"]) / float(row["ttft_estimate_s"])


def seconds_cell(seconds: float | None) -> Cell:
    """Write seconds with four digits, and from two minutes on as people say them too."""
    human = units.human_seconds(seconds) if seconds and seconds >= 120 else ""
    return Cell(number(seconds, 4).text, seconds, human)


def check_table(results: CampaignResults) -> Table:
    """Return the estimates beside the real prefills of their lengths."""
    columns: Columns = (
        ("Prompt", prompt_cell),
        ("Sampled TTFT s", lambda row: seconds_cell(row["ttft_estimate_s"])),
        ("Real TTFT s", lambda row: seconds_cell(row["ttft_measured_s"])),
        ("n", lambda row: count(row["measured_n"])),
        ("Real from", lambda row: REAL.get(row["measured_role"]) or report_facet(row["measured_mode"]).display_name),
        ("Deviation", lambda row: change(row["ttft_estimate_s"], row["ttft_measured_s"])),
        ("Inside the interval", lambda row: {True: "yes", False: "NO", None: NONE}[row["deviation_inside"]]),
        ("Sampled MHz", lambda row: number(row["sm_clock_mhz"], 4)),
        ("Real MHz", lambda row: number(row["measured_sm_clock_mhz"], 4)),
        ("Doubts", lambda row: "; ".join(DOUBTS[doubt] for doubt in row["doubts"])),
    )
    checked = [row for row in estimated(results.estimates) if row["ttft_measured_s"]]
    return tabulate("Sampled TTFT against real prefill", columns, checked, CHECK_NOTE, drop_empty=True)


def depth_table(results: CampaignResults) -> Table:
    """Return the chunks of the longest real prefill beside the sampled cost, one for each doubling of the depth."""
    longest = max((row["length"] for row in results.chunks if row["sampled_s"]), default=None)
    chunks = [row for row in results.chunks if row["length"] == longest and row["sampled_s"]]
    groups: dict[int, list[Row]] = {}
    for row in chunks:
        groups.setdefault((row["depth"] // max(1, chunks[0]["tokens"])).bit_length(), []).append(row)

    def total(group: Sequence[Row], name: str) -> float:
        return float(sum(row[name] for row in group))

    columns: Any = (
        ("Depth from", lambda group: count(min(row["depth"] for row in group))),
        ("to", lambda group: count(max(row["depth"] + row["tokens"] for row in group))),
        ("Chunks", lambda group: count(len(group))),
        ("Real s", lambda group: number(total(group, "seconds"), 4)),
        ("Sampled s", lambda group: number(total(group, "sampled_s"), 4)),
        ("Deviation", lambda group: change(total(group, "sampled_s"), total(group, "seconds"))),
        ("Times from", lambda group: group[0]["source"]),
    )
    title = f"Chunks of real prefills of {format_length(longest)} against the samples" if longest else "Chunks"
    return tabulate(title, columns, [groups[key] for key in sorted(groups)], "Sums over all passes.")


def marked_chunks(results: CampaignResults) -> Table:
    """Return the chunks of real prefills that stand out."""
    columns: Columns = (
        ("Prompt", prompt_cell),
        ("Pass", lambda row: count(row["pass_index"])),
        ("Request", lambda row: f"{row['role']} {row['request_index']}"),
        ("Depth", lambda row: count(row["depth"])),
        ("Seconds", lambda row: number(row["seconds"], 4)),
        ("Sampled s", lambda row: number(row["sampled_s"], 4)),
        ("Mark", lambda row: row["mark"]),
    )
    marked = [row for row in results.chunks if row["mark"]]
    return tabulate("Chunks that stand out", columns, marked, MARKS_NOTE, drop_empty=True)


class SampledReport(ReportFacet):
    """Its numbers are estimates and are called sampled wherever they stand."""

    name = ModeName.SAMPLED
    display_name = "sampled (estimate)"
    table_title = "Sampled TTFT (estimated, not measured)"
    table_note = NOTE
    look = figure.LOOK
    ttft_column = None
    overlay = None
    in_decode_limits = False
    figures = (
        FigureSpec(
            "chunks", figure.TITLE, figure.draw, figure.has_curve, "no samples of two depths", synthetic=figure.LABELS
        ),
    )

    def value_columns(self, results: CampaignResults) -> Columns:
        known = {row["length"]: row for row in estimated(results.estimates)}
        why = {row["length"]: row["reason"] for row in results.estimates if row["mode"] == self.name}

        def ttft(row: Row) -> Cell:
            found = known.get(row["length"])
            if not found:
                return Cell(NONE, None, why.get(row["length"]) or "")
            text = f"{seconds_cell(found['ttft_estimate_s']).text} ± {share(found):.1%}"
            human = seconds_cell(found["ttft_estimate_s"]).small
            return Cell(text, found["ttft_estimate_s"], human, (row["mode"], row["length"]))

        def real(row: Row) -> Cell:
            return seconds_cell(known.get(row["length"], {}).get("ttft_measured_s"))

        def deviation(row: Row) -> Cell:
            found = known.get(row["length"], {})
            return change(found.get("ttft_estimate_s"), found.get("ttft_measured_s"))

        return (("Sampled TTFT s", ttft), ("Real TTFT s", real), ("Sampled / real", deviation))

    def alerts(self, results: CampaignResults) -> list[str]:
        rows = [row for row in results.estimates if row["mode"] == self.name]
        texts = []
        for name, meaning in DOUBTS.items():
            if lengths := [format_length(row["length"]) for row in rows if name in (row["doubts"] or ())]:
                texts.append(f"Sampled TTFT of {', '.join(lengths)}: {meaning}")
        return texts

    def reach(self, results: CampaignResults) -> list[str]:
        rows = [row for row in estimated(results.estimates) if row["method"] != COMPUTED_WHOLE]
        text = "{} tokens, sampled, not measured: first token after {} ± {:.1%}, from {} samples."
        return [
            text.format(
                format_length(row["length"]), units.human_seconds(row["ttft_estimate_s"]), share(row), row["samples"]
            )
            for row in rows[-1:]
        ]

    def gain(self, results: CampaignResults) -> list[str]:
        """Say what the samples took, against the prefills of the same lengths by their own estimate."""
        spent = sum(
            row["e2e_s"] or 0.0 for row in results.rows if row["mode"] == self.name and row.get("claimed_tokens")
        )
        saved = sum(row["ttft_estimate_s"] for row in estimated(results.estimates))
        if not spent or saved <= spent:
            return []
        took, instead = units.human_seconds(spent), units.human_seconds(saved)
        return [f"The samples took {took}; one real prefill of each length would take {instead} by their estimate."]

    def checks(self, results: CampaignResults) -> list[Table]:
        return [check_table(results), depth_table(results), marked_chunks(results)]


FACET = SampledReport()
