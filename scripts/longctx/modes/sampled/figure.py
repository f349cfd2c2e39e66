"""Figure: what a chunk of a prefill costs behind so many tokens, sampled, in real prefills, and at the limit."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from longctx.errors import DataError
from longctx.lengths import format_length
from longctx.modes.sampled.estimates import chunk_curve, estimated
from longctx.plan.forecasting.chunk_curve import STANDARD_ERRORS
from longctx.report import palette
from longctx.report.palette import Look
from longctx.results.campaign_results import FILLED_KV, RANDOM_WEIGHTS, CampaignResults
from longctx.results.compare.curves import RunCurve
from longctx.results.ttft.chunks import ITERATIONS

if TYPE_CHECKING:  # the reports' tables do not need matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Cost of a prefill chunk against its depth"
LABELS = (RANDOM_WEIGHTS, FILLED_KV)
LOOK = Look("sampled, not measured (estimate)", palette.VERMILLION, "D", 7.5, hollow=True)


def has_curve(results: CampaignResults, others: Sequence[RunCurve] = ()) -> bool:
    try:
        return len(chunk_curve(results.rows).knots) > 1
    except DataError:
        return False


def draw(results: CampaignResults, others: Sequence[RunCurve] = ()) -> "Figure":
    """Draw the sampled curve with its errors over the chunks of real prefills; DataError without samples."""
    from longctx.report import style

    curve = chunk_curve(results.rows)
    figure, axes = style.new(TITLE, results.subtitle)
    depths = [knot.depth_tokens + curve.chunk_tokens / 2 for knot in curve.knots]
    _draw_real(axes, results, curve.chunk_tokens)
    look: Any = LOOK.options | {"linestyle": ""}
    ends = np.geomspace(curve.chunk_tokens / 2, depths[-1], 200)
    line = [curve.cost_s(middle - curve.chunk_tokens / 2) for middle in ends]
    axes.plot(ends, line, linestyle=":", linewidth=1.2, color=LOOK.colour)
    costs, errors = zip(*((knot.cost_s, STANDARD_ERRORS * knot.error_s) for knot in curve.knots), strict=True)
    axes.errorbar(depths, costs, yerr=errors, label=f"sampled, {curve.samples} requests", **look)
    bounded = [row for row in estimated(results.estimates) if row["last_chunk_bound_s"]]
    if bounded:
        middles = [row["length"] - curve.chunk_tokens / 2 for row in bounded]
        dashed: Any = {"linestyle": (0, (5, 3)), "linewidth": 1.2, "color": palette.MUTED}
        limits = [row["last_chunk_bound_s"] for row in bounded]
        axes.plot(middles, limits, label="least time the hardware allows", **dashed)
    style.length_axis(axes, [curve.chunk_tokens // 2, round(depths[-1])], "Tokens before the middle of the chunk")
    style.time_axis(axes, f"Time of a chunk of {format_length(curve.chunk_tokens)} tokens")
    axes.legend(loc="upper left")
    style.mark_synthetic(axes, results.synthetic_labels())
    return figure


def _draw_real(axes: "Axes", results: CampaignResults, chunk_tokens: int) -> None:
    """Draw the chunks of real prefills as points, spans as if cut into full chunks; marked ones apart."""
    chunks = [row for row in results.chunks if row["source"] != ITERATIONS or row["tokens"] == chunk_tokens]
    looks = (("real prefills", palette.BLUE, "."), ("real prefills, slow or compiling", palette.ORANGE, "x"))
    for is_marked, (label, colour, marker) in enumerate(looks):
        shown = [row for row in chunks if bool(row["mark"]) == is_marked]
        if shown:
            x = [row["depth"] + row["tokens"] / 2 for row in shown]
            y = [row["seconds"] / row["tokens"] * chunk_tokens for row in shown]
            axes.plot(x, y, linestyle="", marker=marker, markersize=5, color=colour, label=label, alpha=0.7)
