"""The campaign in sentences: how far it got, what must not be overlooked, and what the numbers say."""

from longctx import units
from longctx.lengths import format_length
from longctx.report.faults import point_name
from longctx.report.inputs import MODE_NAMES, ReportInput
from longctx.report.provenance import contract_entries
from longctx.results import cost, summary


def partial(given: ReportInput) -> str:
    """Return one sentence if requests are missing, failed or doubtful, else ''."""
    wrong = [row for row in given.summary if row["n_missing"] or (row["n"] == 0)]
    if not wrong:
        return ""
    missing, failed = (sum(row[field] for row in given.summary) for field in ("n_missing", "n_failed"))
    by_mode = []
    for mode in given.modes:
        if names := [format_length(row["length"]) for row in given.of_mode(mode) if row in wrong]:
            by_mode.append(f"{MODE_NAMES[mode]} {', '.join(names)}")
    return (
        f"Partial: {missing} request{'s' if missing != 1 else ''} not measured yet, {failed} failed;"
        f" incomplete: {'; '.join(by_mode)}."
    )


def alerts(given: ReportInput) -> list[str]:
    """Return what must not be overlooked: damaged files, lost checkpoints, contracts broken or not proven."""
    found = [f"Left out: {text}" for text in given.damaged]
    lost = [row for row in given.rows if "no_external_hits" in summary.reasons_of(row)]
    found += [
        f"{point_name(row)}: an earlier attempt left a checkpoint, but not one token was taken back from it; its disk"
        " and time were for nothing (is PYTHONHASHSEED fixed on every start?)"
        for row in lost
    ]
    if broken := sum(entry["ok"] is False for entry in contract_entries(given)):
        what = "setting differs" if broken == 1 else "settings differ"
        found.append(f"{broken} {what} from what was asked for: see Contract")
    entries = contract_entries(given)
    if untold := sorted({entry["setting"] for entry in entries if entry["ok"] is None and entry["asked"] is not None}):
        found.append(f"Not proven by what the servers say: {', '.join(untold)}: see Contract")
    return found


def narrative(given: ReportInput) -> list[str]:
    """Return the campaign in a few sentences: how far it got, how it grows, what fits, what limits."""
    found = [*_longest(given), *_stitched(given), *_growth(given), *_hot(given), *_limit(given), *_fits(given)]
    return found or ["Nothing has been measured yet."]


def _longest(given: ReportInput) -> list[str]:
    found = []
    if timed := [row for row in given.of_mode("prefill") if row["ttft_s_mean"] is not None]:
        row = timed[-1]
        text = f"{format_length(row['length'])} tokens, cold: first token after"
        text += f" {units.human_seconds(row['ttft_s_mean'])}"
        if row["decode_tok_s_mean"]:
            text += f", then {row['decode_tok_s_mean']:.1f} tokens/s"
        found.append(f"{text}.")
    if filled := [row for row in given.of_mode("decode_only") if row["decode_tok_s_mean"]]:
        row = filled[-1]
        found.append(
            f"Decode at {format_length(row['length'])} with a filled KV cache: {row['decode_tok_s_mean']:.1f} tokens/s."
        )
    return found


def _stitched(given: ReportInput) -> list[str]:
    rows = [row for row in given.rows if row.get("stitched_prefill_s") is not None]
    if not rows:
        return []
    row = max(rows, key=lambda row: row["length"])
    return [
        f"{format_length(row['length'])}, cold: interrupted, and continued from token {row['resumed_from']:,} of a"
        f" checkpoint; the prefill put together takes {units.human_seconds(row['stitched_prefill_s'])}"
        f" ± {units.human_seconds(row['stitched_error_s'])}."
    ]


def _growth(given: ReportInput) -> list[str]:
    for name in ("ttft_power_long", "ttft_power"):
        for fit in given.fits:
            if fit["name"] == name:
                return [
                    f"TTFT grows as L^{fit['exponent']:.2f} over {format_length(fit['length_min'])} to"
                    f" {format_length(fit['length_max'])} (R² {fit['r2']:.4f})."
                ]
    return []


def _hot(given: ReportInput) -> list[str]:
    prefill = {row["length"]: row for row in given.of_mode("prefill")}
    cold = [(row, cost.cold_row(row, prefill.get(row["length"]))["ttft_s_mean"]) for row in given.of_mode("reuse")]
    both = [(row, before) for row, before in cold if row["ttft_s_mean"] and before]
    if not both:
        return []
    row, before = both[-1]
    return [
        f"Behind a resident prefix of {format_length(row['length'])}: first token after"
        f" {units.human_seconds(row['ttft_s_mean'])} instead of {units.human_seconds(before)}"
        f" ({before / row['ttft_s_mean']:.0f} times sooner)."
    ]


def _limit(given: ReportInput) -> list[str]:
    bounded = [row for row in given.of_mode("prefill") if row.get("ttft_over_bound")]
    decoded = [row for mode in given.modes for row in given.of_mode(mode) if row.get("decode_over_bound")]
    parts = []
    if bounded:
        row = bounded[-1]
        parts.append(f"prefill at {format_length(row['length'])} {1 / row['ttft_over_bound']:.0%} of peak FLOP/s")
    if decoded:
        row = max(decoded, key=lambda row: row["length"])
        how = " with a filled KV cache" if row["mode"] == "decode_only" else ""
        share = f"{row['decode_over_bound']:.0%} of memory bandwidth"
        parts.append(f"decode at {format_length(row['length'])}{how} {share}")
    return [f"Of the hardware's limit: {', '.join(parts)}."] if parts else []


def _fits(given: ReportInput) -> list[str]:
    planned = [row for row in given.plan if row.get("capacity_tokens")]
    if not planned:
        return []
    rows = sorted(planned, key=lambda row: row["length"])
    fit = [row for row in rows if row["fits"]]
    too_long = next((row for row in rows if row["fits"] is False), None)
    text = f"The KV cache holds about {rows[-1]['capacity_tokens'] / 1e6:,.1f} M tokens by the plan"
    if fit:
        text += f", so {format_length(fit[-1]['length'])} fits"
    if too_long:
        text += f" and {format_length(too_long['length'])} does not"
        text += f" ({too_long['reason']})" if too_long.get("reason") else ""
    return [f"{text}."]
