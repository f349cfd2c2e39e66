"""Figure: the measured share of the hardware's limits."""

from collections.abc import Iterator

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from longctx.report import style
from longctx.report.figures.look import LOOK, FigureInput, Look, looks, unreal
from longctx.report.figures.metric import MOST_INSIDE
from longctx.results.curves import RunCurve


def limits_figure(given: FigureInput) -> Figure | None:
    """Draw the share of the hardware's limit that was reached: MFU of prefill, bandwidth of decode; None without."""
    ours = list(_our_shares(given))
    if not ours:
        return None
    # The legend is read from the last drawn: ours, then the others.
    drawn = [*(pair for other in reversed(looks(given.others)) for pair in _shares(*other)), *ours]
    crowded = len(drawn) > MOST_INSIDE
    height = style.HEIGHT_IN + (0.21 * len(drawn) if crowded else 0)
    figure, axes = style.new("Distance to the hardware's limit", given.subtitle, height=height)
    for look, shares in drawn:
        axes.plot(list(shares), list(shares.values()), label=look.label, **look.options)
    axes.axhline(1.0, linestyle=(0, (5, 3)), linewidth=1.2, color=style.MUTED)
    style.length_axis(axes, sorted({length for _, shares in drawn for length in shares}))
    axes.set_ylim(0, 1.06 * max(1.0, *(max(shares.values()) for _, shares in drawn)))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylabel("Share of the limit")
    if crowded:
        figure.legend(loc="outside lower left", reverse=True)
    else:  # opaque: it may lie over the line at 100 %
        axes.legend(loc="best", reverse=True, frameon=True, framealpha=0.9, edgecolor="none", facecolor=style.PAPER)
    style.mark_synthetic(axes, given.labels(*LOOK))
    return figure


def _our_shares(given: FigureInput) -> Iterator[tuple[Look, dict[int, float]]]:
    """Yield the shares of the limits that this run reached, by prompt length."""
    for look, mode, field in (
        (Look("decode, KV cache filled", style.VERMILLION, "s", 9.5, hollow=True), "decode_only", "decode_over_bound"),
        (Look("decode: measured / bandwidth bound", style.ORANGE, "^"), "prefill", "decode_over_bound"),
        (Look("prefill: bound / measured TTFT (MFU)", style.BLUE, "o"), "prefill", "ttft_over_bound"),
    ):
        found = {row["length"]: row[field] for row in given.of_mode(mode) if row.get(field)}
        if found:
            yield look, {n: 1 / value if field == "ttft_over_bound" else value for n, value in found.items()}


def _shares(other: RunCurve, colour: str, marker: str) -> Iterator[tuple[Look, dict[int, float]]]:
    """Yield the shares of its own limits that another run's cold prompts reached, by prompt length."""
    for metric, what, shape in (("decode_tok_s", "decode", marker), ("ttft_s", "prefill", "o")):
        shares = {}
        for length, point in sorted(other.of_mode("prefill").items()):
            mean, limit = getattr(point, metric).mean, getattr(other.limits.get(length), metric, None)
            if mean and limit:
                shares[length] = mean / limit if metric == "decode_tok_s" else limit / mean
        if shares:
            yield Look(f"{other.name}: {what}{unreal(other)}", colour, shape, hollow=True), shares
