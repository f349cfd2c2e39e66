"""Figure: the measured share of the hardware's limits."""

from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from longctx.campaign.mode import COLD_MODE, MODES
from longctx.report import palette, style
from longctx.report.figures.look import looks, mark_synthetic, synthetic_note
from longctx.report.figures.metric import MOST_INSIDE
from longctx.report.mode import report_facet
from longctx.report.palette import Look
from longctx.results.campaign_results import CampaignResults
from longctx.results.curves import RunCurve

TITLE = "Distance to the hardware's limit"
Shares = dict[int, float]  # of the limit, by prompt length


def limits_figure(results: CampaignResults, others: Sequence[RunCurve]) -> Figure:
    """Draw the share of the hardware's limit that was reached: MFU of prefill, bandwidth of decode."""
    # The legend is read from the last drawn: ours, then the others.
    drawn = [*(pair for other in reversed(looks(others)) for pair in _their_shares(*other)), *our_shares(results)]
    crowded = len(drawn) > MOST_INSIDE
    height = style.HEIGHT_IN + (0.21 * len(drawn) if crowded else 0)
    figure, axes = style.new(TITLE, results.subtitle, height=height)
    for look, shares in drawn:
        axes.plot(list(shares), list(shares.values()), label=look.label, **look.options)
    axes.axhline(1.0, linestyle=(0, (5, 3)), linewidth=1.2, color=palette.MUTED)
    style.length_axis(axes, sorted({length for _, shares in drawn for length in shares}))
    axes.set_ylim(0, 1.06 * max(1.0, *(max(shares.values()) for _, shares in drawn)))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylabel("Share of the limit")
    if crowded:
        figure.legend(loc="outside lower left", reverse=True)
    else:  # opaque: it may lie over the line at 100 %
        axes.legend(loc="best", reverse=True, frameon=True, framealpha=0.9, edgecolor="none", facecolor=palette.PAPER)
    mark_synthetic(axes, results)
    return figure


def our_shares(results: CampaignResults, others: Sequence[RunCurve] = ()) -> list[tuple[Look, Shares]]:
    """Return the shares of the limits that this run alone reached, in drawing order."""
    series = []
    for mode in reversed(MODES):
        for look, column in report_facet(mode).limit_series:
            values = {row["length"]: row[column] for row in results.of_mode(mode) if row.get(column)}
            if values:
                inverse = column == "ttft_over_bound"
                series.append((look, {n: 1 / value if inverse else value for n, value in values.items()}))
    return series


def _their_shares(other: RunCurve, colour: str, marker: str) -> Iterator[tuple[Look, Shares]]:
    """Yield the shares of its own limits that another run's cold prompts reached, by prompt length."""
    for metric, name, shape in (("decode_tok_s", "decode", marker), ("ttft_s", "prefill", "o")):
        shares = {}
        for length, point in sorted(other.of_mode(COLD_MODE).items()):
            mean, limit = getattr(point, metric).mean, getattr(other.limits.get(length), metric, None)
            if mean and limit:
                shares[length] = mean / limit if metric == "decode_tok_s" else limit / mean
        if shares:
            yield Look(f"{other.name}: {name}{synthetic_note(other)}", colour, shape, hollow=True), shares
