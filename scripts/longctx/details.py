"""The evidence behind Table 1 as tables: both clocks, limits, cost, comparisons, failures, contract, environment."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from longctx import compare, cost, reasons, stats, style, summary, tables
from longctx.compare import METRICS, Compared, Comparison
from longctx.lengths import format_length
from longctx.stats import Description
from longctx.views import (
    MODE_NAMES,
    NONE,
    Cell,
    ReportInput,
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


def _point(row: Row | Compared) -> list[Cell]:
    length, mode = (row.length, row.mode) if isinstance(row, Compared) else (row["length"], row["mode"])
    return [length_cells(length)[0], Cell(MODE_NAMES[mode])]


def two_clocks(given: ReportInput) -> Table:
    """TTFT by the client beside prefill by the server, with the spread of TTFT."""
    rows = [
        [
            *_point(row),
            *(number(row[f"{metric}_mean"], 4) for metric in ("ttft_s", "prefill_s", "overhead_s")),
            *(number(row[f"ttft_s_{name}"], 4) for name in ("min", "median", "max")),
            percent(row["ttft_s_cv"]), percent(row["decode_tok_s_cv"]),
        ]
        for mode in ("prefill", "reuse") for row in given.of_mode(mode) if row["ttft_s_mean"] is not None
    ]  # fmt: skip
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
            rows.append([
                length_cells(row["length"])[0], number(estimate), number(row["ttft_s_mean"], 4),
                Cell(f"{error:+.1%}", error) if error is not None else Cell(NONE), number(row.get("ttft_bound_s")),
                percent(1 / bounded if bounded else None),
            ])  # fmt: skip
    columns = ("Prompt", "Planned TTFT s", "TTFT s", "Off by", "Least TTFT s", "MFU")
    return make("Prefill: plan and limit", columns, rows, PREFILL_BOUND)


def decode_limits(given: ReportInput) -> Table:
    """The bandwidth bound of decode against what was measured."""
    rows = [
        [*_point(row), number(row["decode_bound_tok_s"]), number(row["decode_tok_s_mean"], 4),
         percent(row["decode_over_bound"])]
        for row in given.summary if row.get("decode_bound_tok_s") and row["mode"] != "reuse"
    ]  # fmt: skip
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
        rows.append([
            length_cells(row["length"])[0], Cell(style.human_seconds(cold_s), cold_s),
            Cell(style.human_seconds(hot_s), hot_s),
            *(Cell(style.human_seconds(one.resident_total_s), one.resident_total_s, f"{one.speedup:.1f}× less")
              for one in totals.values()),
            Cell(str(pays) if pays else "never", pays),
            Cell(style.human_seconds(max(cold_s - hot_s, 0)), cold_s - hot_s),
            percent(cost.answer_share(before["ttft_s_mean"], before["decode_tok_s_mean"]), 2),
            count(row["cached_tokens_min"]),
        ])  # fmt: skip
    columns = ("Prompt", "Cold query", "Hot query", "10 queries", "100 queries", "Pays from query", "May idle",
               "1Ki answer / prefill", "Cached tokens ≥")  # fmt: skip
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
        _point(row)
        + [usd(row.get(name)) for name in ("usd_per_prefill", "usd_per_query", "usd_per_mtok", "usd_per_mtok_out")]
        for row in given.summary if given.price and (row["ttft_s_mean"] or row["decode_tok_s_mean"])
    ]  # fmt: skip
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
        [*_point(row), *(number(row.get(name)) for name in (*fields, "power_gap_s_mean"))]
        for row in given.summary if row.get("energy_j_mean") is not None
    ]  # fmt: skip
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
            *_point(row), Cell(METRICS[row.metric]), _mean_std(row, row.ours), _mean_std(row, row.theirs),
            Cell(f"{row.ratio.value:.3f}", row.ratio.value) if row.ratio else Cell(NONE),
            _interval(row), Cell(words.get(row.verdict, row.verdict)),
        ]
        for row in found.rows if row.ratio is not None or row.verdict == "lost"
    ]  # fmt: skip
    unit = " per GPU" if found.per_gpu else ""
    columns = ("Prompt", "Mode", "Metric", "This run", "Other", "Ratio", f"{found.confidence:.0%} interval", "Verdict")
    note = (
        f"Ratio = this run / other{unit}; TTFT in s, decode in tokens/s. 'slower' and 'faster': beyond"
        f" {found.threshold * 100:.3g} % and significant among all lengths compared (Welch, from mean, stddev and n of"
        " both; Benjamini-Hochberg). 'within noise': the interval holds 1."
    )
    note = " ".join([note, *compare.cautions(found)])
    return make(f"Against {found.theirs.name}{unit}", columns, rows, note)


def _mean_std(row: Compared, one: Description) -> Cell:
    decimals = 1 if row.metric == "decode_tok_s" else 3 if (one.mean or 0) < 1 else 2
    return Cell(spread({"x_mean": one.mean, "x_std": one.std}, "x", decimals), one.mean, f"n={one.n}" if one.n else "")


def _interval(row: Compared) -> Cell:
    if row.ratio is None or row.ratio.low is None or row.ratio.high is None:
        return Cell(NONE)
    return Cell(f"{row.ratio.low:.3f} to {row.ratio.high:.3f}", row.ratio.low)


def hosts(given: ReportInput) -> Table:
    """Means per node where one length ran on several: node to node kept apart from run to run."""
    rows = [
        [
            *_point(row), Cell(row["host"]), count(row["n"]),
            Cell(spread(row, "ttft_s", 3), row["ttft_s_mean"]),
            Cell(spread(row, "decode_tok_s", 1), row["decode_tok_s_mean"]),
        ]
        for row in summary.per_host(given.rows)
    ]  # fmt: skip
    note = "± is the spread from run to run on one node; the difference between rows of a length is node to node."
    return make("Node to node", ("Prompt", "Mode", "Node", "n", "TTFT s", "Decode tok/s"), rows, note)


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


def point_name(row: Row) -> str:
    return f"{row['mode']} {format_length(row['length'])} pass {row.get('pass_index')}"


def failures(given: ReportInput) -> Table:
    """Every failed or doubtful request and every server that did not serve, with its reason."""
    columns = ("Point", "Request", "Status", "Reason", "What it means", "Detail")
    rows = [
        _failure(row, f"{row['role']} {row['request_index']}", summary.reasons_of(row))
        for row in given.rows
        if row["status"] != "ok"
    ]
    rows += [
        _failure(row, "server start", [row["reason"]] if row.get("reason") else [])
        for row in given.servers
        if row.get("status") not in (None, "ok")
    ]
    return make("Failures and doubts", columns, rows, "No value of these requests is in any mean.")


def _failure(row: Row, request: str, why: Sequence[str]) -> list[Cell | str]:
    meaning = "; ".join(reasons.REASONS.get(reason, reason) for reason in why)
    point = Cell(point_name(row), row["length"], "", (row["mode"], row["length"]))
    return [point, request, row["status"], ", ".join(why) or NONE, meaning, row.get("detail") or ""]


def marks(given: ReportInput) -> Table:
    """What ok requests could not prove, counted by reason."""
    found: dict[str, list[Row]] = {}
    for row in given.rows:
        for reason in summary.reasons_of(row) if row["status"] == "ok" and row["role"] != summary.WARMUP else ():
            found.setdefault(reason, []).append(row)
    rows: list[list[Cell | str]] = []
    for reason, group in sorted(found.items()):
        rows.append(
            [reason, reasons.REASONS.get(reason, reason), count(len(group)), ", ".join(_distinct_lengths(group))]
        )
    return make("Marked as not fully proven", ("Mark", "What it means", "Requests", "Lengths"), rows)


def _distinct_lengths(rows: Iterable[Row]) -> list[str]:
    return [format_length(length) for length in sorted({row["length"] for row in rows})]


def outliers(given: ReportInput) -> Table:
    """Requests far from the others of their length; they stay in every mean."""
    rows: list[list[Cell | str]] = [
        [Cell(point_name(row), row["length"]), f"{row['role']} {row['request_index']}", number(row.get("ttft_s"), 4),
         number(row.get("decode_tok_s"), 4)]
        for row in summary.outlier_rows(given.rows)
    ]  # fmt: skip
    note = (
        f"Kept in every mean. Rule: modified z-score 0.6745 |x - median| / MAD over {stats.OUTLIER_Z}, with"
        f" {stats.OUTLIER_MIN_N} requests or more."
    )
    return make("Outliers", ("Point", "Request", "TTFT s", "Decode tok/s"), rows, note)


def resumed(given: ReportInput) -> Table:
    """Prefills that continued from a checkpoint: not cold, stitched from both attempts' progress."""
    rows = [
        [Cell(point_name(row), row["length"]), count(row.get("resumed_from")), number(row.get("resumed_ttft_s"), 4),
         number(row.get("stitched_prefill_s"), 4), number(row.get("stitched_error_s"), 2)]
        for row in given.rows if row.get("resumed_from") or row.get("stitched_prefill_s") is not None
    ]  # fmt: skip
    note = (
        "These prefills were interrupted and went on from a checkpoint. Their TTFT is not a cold TTFT and is in no"
        " mean; the stitched prefill adds up the progress of both attempts, with its error bound."
    )
    return make(
        "Resumed prefills", ("Point", "From token", "TTFT after resuming s", "Stitched prefill s", "± s"), rows, note
    )


def contract_entries(given: ReportInput) -> list[dict[str, Any]]:
    """Return each distinct {setting, asked, actual, source, ok} with `servers`, how many said so; broken ones first."""
    counted: Counter[str] = Counter()
    for server in given.servers:
        for entry in _json_list(server.get("contract")):
            counted[json.dumps({key: entry.get(key) for key in ("setting", "asked", "actual", "source", "ok")})] += 1
    found = [json.loads(text) | {"servers": count} for text, count in counted.items()]
    return sorted(found, key=lambda entry: ({False: 0, None: 1, True: 2}[entry["ok"]], entry["setting"]))


def _json_list(text: str | None) -> list[dict[str, Any]]:
    try:
        found = json.loads(text or "[]")
    except ValueError:
        return []
    return found if isinstance(found, list) else []


def contract(given: ReportInput) -> Table:
    """Each setting that was asked of the servers, what they said, and whether the two agree."""
    words = {True: "yes", False: "no, differs", None: "not proven"}
    rows: list[list[Cell | str]] = [
        [entry["setting"], *(_said(entry[key]) for key in ("asked", "actual", "source")),
         count(entry["servers"]), words[entry["ok"]]]
        for entry in contract_entries(given)
    ]  # fmt: skip
    columns = ("Setting", "Asked for", "In fact", "Seen in", "Servers", "Kept")
    return make("Contract", columns, rows, "What was asked of each server, against what it said that it did.")


def _said(value: Any) -> str:
    return NONE if value is None else value if isinstance(value, str) else json.dumps(value)


def environment(given: ReportInput) -> Table:
    """Every fact of servers and hosts with its values: one where all agree, else each with its count."""
    sources: Sequence[Mapping[str, Any]] = given.servers or given.rows
    rows = []
    for fact in (*tables.SERVER_FACTS, *tables.HOST_FACTS):
        values = Counter(_fact(fact, row[fact]) for row in sources if row.get(fact) is not None)
        if values and fact not in ("startup_s", "max_model_len"):
            shown = [text if len(values) == 1 else f"{text} ({count} servers)" for text, count in values.most_common(8)]
            rows.append([fact, "; ".join(shown)])
    starts = stats.describe(row.get("startup_s") for row in sources)
    if starts.mean is not None:
        rows.append(["startup_s", f"{starts.mean:.1f} on average, {starts.max:.1f} at most"])
    return make("Environment", ("Fact", "Value"), rows)


def _fact(name: str, value: Any) -> str:
    if name == "memory_bytes":
        return f"{value / 2**30:.0f} GiB"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def corpus_note(given: ReportInput) -> str:
    """Say so where the corpus was shorter than a prompt and was read again; '' otherwise."""
    cycled = [row for row in given.validation if (row.get("cycles") or 1) > 1]
    if not cycled:
        return ""
    most = max(row["cycles"] for row in cycled)
    return (
        f"The corpus is shorter than the longest prompts: it was read up to {most} times, each time after a marker of"
        f" its own ({', '.join(_distinct_lengths(cycled))})."
    )
