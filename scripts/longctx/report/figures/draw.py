"""Which figures a campaign has, and drawing them all.

The list is fixed by the campaign's modes and by whether it is compared with other runs, so that a rule can declare its
files. A figure without data is drawn all the same and says why it is empty; the reports leave it out.
matplotlib is imported when the first figure is drawn: Snakemake reads the list in every job.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from longctx.campaign.mode import MODES
from longctx.report.mode import FigureSpec, report_facet
from longctx.results.campaign_results import FILLED_KV, RANDOM_WEIGHTS, CampaignResults
from longctx.results.curves import RunCurve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw = Callable[[CampaignResults, Sequence[RunCurve]], "Figure"]
SUFFIXES = (".png", ".svg")
BOTH = (RANDOM_WEIGHTS, FILLED_KV)


def _metric(metric: str, *, per_gpu: bool = False) -> Draw:
    def draw(results: CampaignResults, others: Sequence[RunCurve]) -> "Figure":
        from longctx.report.figures.metric import metric_figure

        return metric_figure(results, others, metric, per_gpu=per_gpu)

    return draw


def _draw_limits(results: CampaignResults, others: Sequence[RunCurve]) -> "Figure":
    from longctx.report.figures.limits import limits_figure

    return limits_figure(results, others)


def _has_limits(results: CampaignResults, others: Sequence[RunCurve]) -> bool:
    from longctx.report.figures.limits import our_shares

    return bool(our_shares(results))


def _gpu_counts_differ(results: CampaignResults, others: Sequence[RunCurve]) -> bool:
    ours = results.gpu_count
    return bool(ours) and any(other.gpu_count and other.gpu_count != ours for other in others)


SAME_GPUS = "no run on another number of GPUs to compare with"
BEFORE_MODES = (
    FigureSpec("ttft", "Time to first token against prompt length", _metric("ttft_s")),
    FigureSpec("decode", "Decode throughput against prompt length", _metric("decode_tok_s"), synthetic=BOTH),
    # The plan's rule draws it from numbers that nobody measured.
    FigureSpec("kv_footprint", "KV footprint against context length (the plan)", synthetic=()),
    FigureSpec(
        "limits",
        "Distance to the hardware's limit",
        _draw_limits,
        _has_limits,
        "nothing measured, or no limit of this hardware is known",
        synthetic=BOTH,
    ),
)
AFTER_MODES = (
    FigureSpec(
        "ttft_per_gpu",
        "Time to first token × GPUs, normalised per GPU",
        _metric("ttft_s", per_gpu=True),
        _gpu_counts_differ,
        SAME_GPUS,
        compares=True,
    ),
    FigureSpec(
        "decode_per_gpu",
        "Decode throughput per GPU",
        _metric("decode_tok_s", per_gpu=True),
        _gpu_counts_differ,
        SAME_GPUS,
        compares=True,
        synthetic=BOTH,
    ),
)


def campaign_figures(modes: Iterable[str], compares: bool) -> tuple[FigureSpec, ...]:
    """Return the figures of a campaign with these modes, in the reports' order; `compares`: with other runs."""
    of_modes = (figure for mode in MODES if mode in set(modes) for figure in report_facet(mode).figures)
    return tuple(figure for figure in (*BEFORE_MODES, *of_modes, *AFTER_MODES) if compares or not figure.compares)


def figure_files(modes: Iterable[str], compares: bool) -> list[str]:
    """Return the names of the files that `draw_all` writes for such a campaign: ttft.png, ttft.svg and so on."""
    drawn = (figure for figure in campaign_figures(modes, compares) if figure.draw)
    return [f"{figure.name}{suffix}" for figure in drawn for suffix in SUFFIXES]


def shown_figures(results: CampaignResults, others: Sequence[RunCurve]) -> list[FigureSpec]:
    """Return the figures that have something to show."""
    return [figure for figure in _figures(results, others) if _shows(figure, results, others)]


def _shows(figure: FigureSpec, results: CampaignResults, others: Sequence[RunCurve]) -> bool:
    try:
        return figure.shows(results, others)
    except Exception:  # its file says so
        return True


def _figures(results: CampaignResults, others: Sequence[RunCurve]) -> tuple[FigureSpec, ...]:
    return campaign_figures(results.recipe.get("modes") or results.modes, bool(others))


def draw_all(results: CampaignResults, others: Sequence[RunCurve], out_dir: Path | str) -> list[str]:
    """Write exactly the files of `figure_files` into `out_dir` and return their paths.

    Older files of figures that the campaign no longer has are removed. A figure that cannot be drawn says so in its own
    file and in the log; the others are drawn.
    """
    from longctx.report import style

    out, figures = Path(out_dir), _figures(results, others)
    written: list[str] = []
    for figure in figures:
        if figure.draw:
            with style.theme():
                written += map(str, style.save(_draw(figure, results, others), out / figure.name))
    for figure in set(campaign_figures(MODES, True)) - set(figures):
        for suffix in SUFFIXES:
            (out / f"{figure.name}{suffix}").unlink(missing_ok=True)
    return written


def _draw(figure: FigureSpec, results: CampaignResults, others: Sequence[RunCurve]) -> "Figure":
    from longctx.report.figures.look import empty_figure

    reason = figure.empty
    try:
        if figure.draw and figure.shows(results, others):
            return figure.draw(results, others)
    except Exception as error:
        reason = f"this figure could not be drawn: {type(error).__name__}"
        logging.getLogger(__name__).warning("figure %s could not be drawn: %r", figure.name, error)
    return empty_figure(figure.caption, results.subtitle, reason)
