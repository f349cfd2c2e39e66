"""Table 1 and its twins, and the evidence behind them: both clocks, limits, fits, costs, energy and comparisons.

A table is a pure function of its arguments; cells are finished text. A missing value is an em dash, never 0.
"""

from dataclasses import replace
from functools import partial

from longctx.campaign.mode import COLD_MODE
from longctx.lengths import format_length
from longctx.measure.row import reasons
from longctx.report import table_cells
from longctx.report.mode import report_facet
from longctx.report.table_cells import NONE, Cell, Column, Columns, Row, Table, fields, prompt_cell, tabulate
from longctx.results.campaign_results import LABEL_SENTENCES, CampaignResults
from longctx.results.compare.comparison import Compared, Comparison, cautions, is_told
from longctx.results.compare.curves import FACTS, METRICS
from longctx.results.statistics import Description
from longctx.units import in_gib

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
ENERGY = (
    "GPU power as the vendor's tool reports it, integrated by trapezoids over the request; CPU, memory and cooling"
    " are not in it. Tokens are those computed: prompt - cached + output; prompt tokens until the client has the"
    " first token, output tokens after it. Tools average over up to a second, so requests of less than"
    " a few seconds blur. Gaps: seconds without a sample, bridged by interpolation."
)
TOO_FEW = "beyond threshold, too few runs to prove it"
VERDICTS = {
    "same": "within threshold", "noise": "within noise", "unproven": TOO_FEW, "lost": "no value here",
    "less_room": "less room", "more_room": "more room",
}  # fmt: skip
MODE: Column[Row] = ("Mode", lambda row: report_facet(row["mode"]).display_name)
POINT: Columns = (("Prompt", prompt_cell), MODE)


def table_1(results: CampaignResults) -> Table:
    """Return Table 1 in the published form, of the first mode that was run: cold prompts where there are any."""
    mode = results.modes[0] if results.modes else COLD_MODE
    table = _mode_table(results, mode)
    return replace(table, title=f"Table 1. {table.title}")


def other_mode_tables(results: CampaignResults) -> list[Table]:
    return [_mode_table(results, mode) for mode in results.modes[1:]]


def _mode_table(results: CampaignResults, mode: str) -> Table:
    """Return Prompt | Tokens | the mode's values | n | Notes; of cold prompts TTFT s and Decode tok/s, mean ± sample
    standard deviation."""
    rows, facet = results.of_mode(mode), report_facet(mode)
    columns: Columns = (
        ("Prompt", prompt_cell),
        ("Tokens", lambda row: table_cells.count(row["length"])),
        *facet.value_columns(results),
        ("n", lambda row: table_cells.count(row["n"])),
        ("Notes", lambda row: "; ".join(_notes(row))),
    )
    labels = [LABEL_SENTENCES[label] for label in results.synthetic_labels(mode)]
    note = " ".join(filter(None, [facet.table_note, *labels]))
    return tabulate(facet.table_title, columns if any(map(_notes, rows)) else columns[:-1], rows, note)


def _notes(row: Row) -> list[str]:
    """Say what is wrong or special about a summary row, in a few words each."""
    tried = row["n"] or row["n_failed"] or row["n_doubtful"]
    texts = _faults(row) if tried else ["not measured"]
    if len(row.get("hosts") or ()) > 1:
        texts.append(f"± over {len(row['hosts'])} nodes, see Node to node")
    if row.get("n_late"):
        texts.append(f"TTFT of n = {row['ttft_s_n']}: {row['n_late']} late, in no mean")
    if row.get("n_outliers"):
        texts.append(f"{row['n_outliers']} outlier{'s' if row['n_outliers'] > 1 else ''} kept")
    return texts


def _faults(row: Row) -> list[str]:
    """Say how many requests failed, are doubtful or missing, with their reasons; then the marks of those that count."""
    why = list(row.get("reasons") or ())
    texts = [f"{row[name]} {word}" for name, word in (("n_failed", "failed"), ("n_doubtful", "doubtful")) if row[name]]
    if bad := ", ".join(reason for reason in why if reason not in reasons.MARKED):
        texts[-1:] = [f"{texts[-1]} ({bad})"] if texts else [bad]
    if row["n_missing"]:
        texts.append(f"{row['n_missing']} missing")
    return texts + [reason for reason in why if reason in reasons.MARKED]


def two_clocks(results: CampaignResults) -> Table:
    """TTFT by the client beside prefill by the server, with the spread of TTFT."""
    means = {"TTFT s": "ttft_s_mean", "Prefill s": "prefill_s_mean", "Overhead s": "overhead_s_mean"}
    spread = {"TTFT min": "ttft_s_min", "median": "ttft_s_median", "max": "ttft_s_max"}
    variation = fields({"TTFT CV": "ttft_s_cv", "Decode CV": "decode_tok_s_cv"}, table_cells.percent)
    columns = (*POINT, *fields(means | spread, partial(table_cells.number, digits=4)), *variation)
    rows = [row for mode in results.modes for row in results.of_mode(mode)]
    rows = [row for row in rows if row["ttft_s_mean"] is not None or row.get("n_late")]
    return tabulate("Two clocks", columns, rows, OVERHEAD)


def prefill_limits(results: CampaignResults) -> Table:
    """Forecast and hardware bound of TTFT against what was measured."""
    planned = {row["length"]: row.get("est_ttft_s") for row in results.plan if row["mode"] == COLD_MODE}
    rows = [{**row, "est_ttft_s": planned.get(row["length"])} for row in results.of_mode(COLD_MODE)]
    columns: Columns = (
        ("Prompt", prompt_cell),
        ("Planned TTFT s", table_cells.field("est_ttft_s")),
        ("TTFT s", table_cells.field("ttft_s_mean", 4)),
        ("Off by", lambda row: table_cells.change(row["ttft_s_mean"], row["est_ttft_s"])),
        ("Least TTFT s", table_cells.field("ttft_bound_s")),
        ("MFU", lambda row: table_cells.percent(1 / row["ttft_over_bound"] if row.get("ttft_over_bound") else None)),
    )
    shown = [row for row in rows if row["est_ttft_s"] or row.get("ttft_bound_s")]
    return tabulate("Prefill: plan and limit", columns, shown, PREFILL_BOUND)


def decode_limits(results: CampaignResults) -> Table:
    """The bandwidth bound of decode against what was measured."""
    columns: Columns = (
        *POINT,
        ("Most tok/s", table_cells.field("decode_bound_tok_s")),
        ("Decode tok/s", table_cells.field("decode_tok_s_mean", 4)),
        ("Of the limit", lambda row: table_cells.percent(row["decode_over_bound"])),
    )
    rows = [row for row in results.summary if report_facet(row["mode"]).in_decode_limits]
    bounded = [row for row in rows if row.get("decode_bound_tok_s")]
    return tabulate("Decode: limit", columns, bounded, DECODE_BOUND)


def costs(results: CampaignResults) -> Table:
    """Dollars per prefill, per cached query and per million tokens; nothing without a price."""
    requests = {"$ / cold prefill": "usd_per_prefill", "$ / cached query": "usd_per_query"}
    tokens = {"$ / M prompt tokens": "usd_per_mtok", "$ / M output tokens": "usd_per_mtok_out"}
    price = results.price
    rows = [row for row in results.summary if price and (row["ttft_s_mean"] or row["decode_tok_s_mean"])]
    note = price and (
        f"At ${price.usd_per_gpu_hour:g} per GPU-hour × {price.gpu_count} GPU, one request at a time (max_num_seqs 1 is"
        " the published recipe): a server that batches is cheaper per token. Idle time is not in it."
    )
    return tabulate("Cost", (*POINT, *fields(requests | tokens, table_cells.usd)), rows, note or "", drop_empty=True)


def energy(results: CampaignResults) -> Table:
    """Energy per request, per prompt and per output token, and the seconds without power samples."""
    joules = {"J / request": "energy_j_mean", "J / token": "energy_j_per_token"}
    joules |= {f"J / {kind} token": f"energy_j_per_{kind}_token" for kind in ("prompt", "output")}
    rows = [row for row in results.summary if row.get("energy_j_mean") is not None]
    note = ENERGY + "".join(report_facet(mode).energy_note for mode in results.modes)
    return tabulate("Energy", (*POINT, *fields(joules | {"Gaps s": "power_gap_s_mean"})), rows, note, drop_empty=True)


def fits(results: CampaignResults) -> Table:
    """The fitted curves with their range of lengths: TTFT in s, time per token in ms and ns per token of context."""
    columns: Columns = (
        MODE,
        ("Lengths", lambda fit: f"{format_length(fit['length_min'])}–{format_length(fit['length_max'])}"),
        ("Points", lambda fit: table_cells.count(fit["n"])),
        ("Fit", _formula),
        ("R²", lambda fit: table_cells.number(fit.get("r2"), 5)),
    )
    return tabulate("Fits", columns, results.fits, "Least squares; the power law in log-log.")


def _formula(fit: Row) -> str:
    if fit.get("r2") is None:
        return f"none: {fit.get('reason')}"
    if fit["name"] == "decode_line":
        return f"1 / decode = {fit['intercept_s'] * 1e3:.4g} ms + {fit['slope_s'] * 1e9:.4g} ns × L"
    deviation = f" ± {fit['exponent_std']:.3f}" if fit["exponent_std"] is not None else ""
    return f"TTFT = {fit['coefficient']:.4g} s × L^{fit['exponent']:.3f}{deviation}"


def comparison_table(compared: Comparison) -> Table:
    """Ratios ours / theirs with their confidence interval and verdict."""
    columns: tuple[Column[Compared], ...] = (
        ("Prompt", lambda row: Cell(format_length(row.length), row.length)),
        ("Mode", lambda row: report_facet(row.mode).display_name),
        ("Metric", lambda row: (METRICS | FACTS)[row.metric]),
        ("This run", lambda row: _mean_std(row.metric, row.ours)),
        ("Other", lambda row: _mean_std(row.metric, row.theirs)),
        ("Ratio", lambda row: Cell(f"{row.ratio.value:.3f}", row.ratio.value) if row.ratio else NONE),
        (f"{compared.confidence:.0%} interval", _interval),
        ("Verdict", lambda row: VERDICTS.get(row.verdict, row.verdict)),
    )
    unit = " per GPU" if compared.per_gpu else ""
    note = (
        f"Ratio = this run / other{unit}; TTFT in s, decode in tokens/s. 'slower' and 'faster': beyond"
        f" {compared.threshold * 100:.3g} % and significant among all lengths compared (Welch, from mean, stddev and n"
        " of both; Benjamini-Hochberg). 'within noise': the interval holds 1. KV capacity and memory are exact and"
        " stand here where they differ by more than 1 %."
    )
    rows = [row for row in compared.rows if is_told(row)]
    return tabulate(f"Against {compared.theirs.name}{unit}", columns, rows, " ".join([note, *cautions(compared)]))


def _mean_std(metric: str, values: Description) -> Cell:
    if metric in FACTS and values.mean is not None:
        text = f"{values.mean:,.0f}" if metric == "kv_capacity_tokens" else f"{in_gib(values.mean)} GiB"
        return Cell(text, values.mean)
    decimals = 1 if metric == "decode_tok_s" else 3 if (values.mean or 0) < 1 else 2
    text = table_cells.mean_std(values.mean, values.std, decimals)
    return Cell(text, values.mean, f"n={values.n}" if values.n else "")


def _interval(row: Compared) -> Cell:
    if row.ratio is None or row.ratio.low is None:
        return Cell(NONE)
    return Cell(f"{row.ratio.low:.3f} to {row.ratio.high:.3f}", row.ratio.low)
