"""The evidence behind Table 1 as tables: both clocks, limits, cost, comparisons, failures, contract, environment."""

from longctx import units
from longctx.lengths import format_length
from longctx.report.cells import (
    NONE,
    Cell,
    Row,
    Table,
    count,
    length_cells,
    make,
    number,
    percent,
    spread,
    usd,
    without_empty,
)
from longctx.report.inputs import MODE_NAMES, ReportInput
from longctx.results import cost
from longctx.results.comparison import Compared, Comparison, cautions
from longctx.results.curves import METRICS
from longctx.results.statistics import Description

OVERHEAD = (
    "TTFT is the client's: from the first byte sent to the first token received. Prefill is the server's own time for"
    " the prompt. overhead_s is their difference less the queue: shipping and parsing the token ids, scheduling, and"
    " the way back of the first token; it grows with the size of the request (about 1 µs a token was measured)."
)
PREFILL_BOUND = (
    "The least TTFT is the prefill's FLOPs over the GPUs' peak; MFU = least / measured. The planned TTFT comes from"
    " published or earlier measurements scaled to this hardware."
)
DECODE_BOUND = "The most decode throughput is memory bandwidth over the bytes of weights and KV that a step must read."


def point(row: Row | Compared) -> list[Cell]:
    length, mode = (row.length, row.mode) if isinstance(row, Compared) else (row["length"], row["mode"])
    return [length_cells(length)[0], Cell(MODE_NAMES[mode])]


def two_clocks(given: ReportInput) -> Table:
    """TTFT by the client beside prefill by the server, with the spread of TTFT."""
    rows = [
        [
            *point(row),
            *(number(row[f"{metric}_mean"], 4) for metric in ("ttft_s", "prefill_s", "overhead_s")),
            *(number(row[f"ttft_s_{name}"], 4) for name in ("min", "median", "max")),
            percent(row["ttft_s_cv"]),
            percent(row["decode_tok_s_cv"]),
        ]
        for mode in ("prefill", "reuse")
        for row in given.of_mode(mode)
        if row["ttft_s_mean"] is not None
    ]
    columns = (
        "Prompt",
        "Mode",
        "TTFT s",
        "Prefill s",
        "Overhead s",
        "TTFT min",
        "median",
        "max",
        "TTFT CV",
        "Decode CV",
    )
    return make("Two clocks", columns, rows, OVERHEAD)


def prefill_limits(given: ReportInput) -> Table:
    """Forecast and hardware bound of TTFT against what was measured."""
    planned = {(row["mode"], row["length"]): row for row in given.plan}
    rows = []
    for row in given.of_mode("prefill"):
        estimate = planned.get(("prefill", row["length"]), {}).get("est_ttft_s")
        if estimate or row.get("ttft_bound_s"):
            error = row["ttft_s_mean"] / estimate - 1 if estimate and row["ttft_s_mean"] else None
            bounded = row.get("ttft_over_bound")
            rows.append(
                [
                    length_cells(row["length"])[0],
                    number(estimate),
                    number(row["ttft_s_mean"], 4),
                    Cell(f"{error:+.1%}", error) if error is not None else Cell(NONE),
                    number(row.get("ttft_bound_s")),
                    percent(1 / bounded if bounded else None),
                ]
            )
    columns = ("Prompt", "Planned TTFT s", "TTFT s", "Off by", "Least TTFT s", "MFU")
    return make("Prefill: plan and limit", columns, rows, PREFILL_BOUND)


def decode_limits(given: ReportInput) -> Table:
    """The bandwidth bound of decode against what was measured."""
    rows = [
        [
            *point(row),
            number(row["decode_bound_tok_s"]),
            number(row["decode_tok_s_mean"], 4),
            percent(row["decode_over_bound"]),
        ]
        for row in given.summary
        if row.get("decode_bound_tok_s") and row["mode"] != "reuse"
    ]
    return make("Decode: limit", ("Prompt", "Mode", "Most tok/s", "Decode tok/s", "Of the limit"), rows, DECODE_BOUND)


def decode_check(given: ReportInput) -> Table:
    """Decode with a filled cache against decode after a real prefill, where both were measured."""
    real = {row["length"]: row for row in given.of_mode("prefill")}
    rows = []
    for row in given.of_mode("decode_only"):
        a, b = row["decode_tok_s_mean"], real.get(row["length"], {}).get("decode_tok_s_mean")
        if a and b:
            difference = Cell(f"{a / b - 1:+.1%}", a / b - 1)
            cells = [Cell(spread(one, "decode_tok_s", 1), mean) for one, mean in ((real[row["length"]], b), (row, a))]
            rows.append([length_cells(row["length"])[0], *cells, difference])
    return make("Filled cache against real prefill", ("Prompt", "Prefilled tok/s", "Filled tok/s", "Difference"), rows)


def amortisation(given: ReportInput) -> Table:
    """What K queries on one prompt take, the prefix resident or prefilled anew, and what idling may cost."""
    cold = {row["length"]: row for row in given.of_mode("prefill")}
    rows = []
    for row in given.of_mode("reuse"):
        before = cost.cold_row(row, cold.get(row["length"]))
        cold_s, hot_s = cost.query_s(before), cost.query_s(row)
        if not cold_s or not hot_s:
            continue
        totals = {one.queries: one for one in cost.amortise(row["length"], cold_s, hot_s, (10, 100))}
        pays = cost.break_even(before["ttft_s_mean"], cold_s, hot_s)
        rows.append(
            [
                length_cells(row["length"])[0],
                Cell(units.human_seconds(cold_s), cold_s),
                Cell(units.human_seconds(hot_s), hot_s),
                *(
                    Cell(units.human_seconds(one.resident_total_s), one.resident_total_s, f"{one.speedup:.1f}× less")
                    for one in totals.values()
                ),
                Cell(str(pays) if pays else "never", pays),
                Cell(units.human_seconds(max(cold_s - hot_s, 0)), cold_s - hot_s),
                percent(cost.answer_share(before["ttft_s_mean"], before["decode_tok_s_mean"]), 2),
                count(row["cached_tokens_min"]),
            ]
        )
    columns = (
        "Prompt",
        "Cold query",
        "Hot query",
        "10 queries",
        "100 queries",
        "Pays from query",
        "May idle",
        "1Ki answer / prefill",
        "Cached tokens ≥",
    )
    note = (
        "Queries include their answer. The cold one is of mode prefill, or where that was not measured at this length,"
        " the prefill that made the prefix resident. 'Pays from query': the prefix is prefilled ahead, without a"
        " question, and has paid for itself by that query. 'May idle': a node kept waiting between two queries for"
        " longer would have been cheaper to prefill again. '1Ki answer / prefill': time to decode 1024 tokens as a"
        " share of the cold TTFT."
    )
    return make("What a resident prefix buys", columns, rows, note)


def costs(given: ReportInput) -> Table:
    """Dollars per prefill, per cached query and per million tokens; nothing without a price."""
    rows = [
        point(row)
        + [usd(row.get(name)) for name in ("usd_per_prefill", "usd_per_query", "usd_per_mtok", "usd_per_mtok_out")]
        for row in given.summary
        if given.price and (row["ttft_s_mean"] or row["decode_tok_s_mean"])
    ]
    columns = ("Prompt", "Mode", "$ / cold prefill", "$ / cached query", "$ / M prompt tokens", "$ / M output tokens")
    price = given.price
    note = price and (
        f"At ${price.usd_per_gpu_hour:g} per GPU-hour × {price.gpu_count} GPU, one request at a time (max_num_seqs 1 is"
        " the published recipe): a server that batches is cheaper per token. Idle time is not in it."
    )
    return without_empty(make("Cost", columns, rows, note or ""))


def energy(given: ReportInput) -> Table:
    """Energy per request, per prompt and per output token, and the seconds without power samples."""
    fields = ("energy_j_mean", "energy_j_per_token", "energy_j_per_prompt_token", "energy_j_per_output_token")
    rows = [
        [*point(row), *(number(row.get(name)) for name in (*fields, "power_gap_s_mean"))]
        for row in given.summary
        if row.get("energy_j_mean") is not None
    ]
    note = (
        "GPU power as the vendor's tool reports it, integrated by trapezoids over the request; CPU, memory and cooling"
        " are not in it. Tokens are those computed: prompt - cached + output; prompt tokens until the client has the"
        " first token, output tokens after it. Tools average over up to a second, so requests of less than"
        " a few seconds blur. Gaps: seconds without a sample, bridged by interpolation."
    )
    if given.of_mode("decode_only"):
        note += " Where the cache was filled, only J / output token is of the decode."
    columns = ("Prompt", "Mode", "J / request", "J / token", "J / prompt token", "J / output token", "Gaps s")
    return without_empty(make("Energy", columns, rows, note))


def comparison(found: Comparison) -> Table:
    """Ratios ours / theirs with their confidence interval and verdict."""
    words = {
        "same": "within threshold",
        "noise": "within noise",
        "unproven": "beyond threshold, too few runs to prove it",
        "lost": "no value here",
    }
    rows = [
        [
            *point(row),
            Cell(METRICS[row.metric]),
            _mean_std(row, row.ours),
            _mean_std(row, row.theirs),
            Cell(f"{row.ratio.value:.3f}", row.ratio.value) if row.ratio else Cell(NONE),
            _interval(row),
            Cell(words.get(row.verdict, row.verdict)),
        ]
        for row in found.rows
        if row.ratio is not None or row.verdict == "lost"
    ]
    unit = " per GPU" if found.per_gpu else ""
    columns = ("Prompt", "Mode", "Metric", "This run", "Other", "Ratio", f"{found.confidence:.0%} interval", "Verdict")
    note = (
        f"Ratio = this run / other{unit}; TTFT in s, decode in tokens/s. 'slower' and 'faster': beyond"
        f" {found.threshold * 100:.3g} % and significant among all lengths compared (Welch, from mean, stddev and n of"
        " both; Benjamini-Hochberg). 'within noise': the interval holds 1."
    )
    note = " ".join([note, *cautions(found)])
    return make(f"Against {found.theirs.name}{unit}", columns, rows, note)


def _mean_std(row: Compared, one: Description) -> Cell:
    decimals = 1 if row.metric == "decode_tok_s" else 3 if (one.mean or 0) < 1 else 2
    return Cell(spread({"x_mean": one.mean, "x_std": one.std}, "x", decimals), one.mean, f"n={one.n}" if one.n else "")


def _interval(row: Compared) -> Cell:
    if row.ratio is None or row.ratio.low is None or row.ratio.high is None:
        return Cell(NONE)
    return Cell(f"{row.ratio.low:.3f} to {row.ratio.high:.3f}", row.ratio.low)


def fits(given: ReportInput) -> Table:
    """The fitted curves with their range of lengths: TTFT in s, time per token in ms and ns per token of context."""
    rows: list[list[Cell | str]] = []
    for fit in given.fits:
        span = f"{format_length(fit['length_min'])}–{format_length(fit['length_max'])}"
        if fit["name"] == "decode_line":
            formula = f"1 / decode = {fit['intercept_s'] * 1e3:.4g} ms + {fit['slope_s'] * 1e9:.4g} ns × L"
        else:
            deviation = f" ± {fit['exponent_std']:.3f}" if fit["exponent_std"] is not None else ""
            formula = f"TTFT = {fit['coefficient']:.4g} s × L^{fit['exponent']:.3f}{deviation}"
        rows.append([MODE_NAMES[fit["mode"]], span, count(fit["n"]), formula, number(fit["r2"], 5)])
    return make("Fits", ("Mode", "Lengths", "Points", "Fit", "R²"), rows, "Least squares; the power law in log-log.")
