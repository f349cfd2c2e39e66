"""Which figures a campaign has, and drawing them all.

The list is fixed by the campaign's modes and by whether it is compared with other runs, so that a rule can declare its
files. A figure without data is drawn all the same and says why it is empty; the reports leave it out.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from longctx.campaign.mode import MODES
from longctx.plan.system import System
from longctx.report.figures.placeholder import draw_or_explain
from longctx.report.mode import FigureSpec, report_facet
from longctx.results.campaign_results import FILLED_KV, RANDOM_WEIGHTS, CampaignResults
from longctx.results.compare.curves import METRICS, RunCurve

SUFFIXES = (".png", ".svg")
BOTH = (RANDOM_WEIGHTS, FILLED_KV)
SAME_GPUS = "no run on another number of GPUs to compare with"
NO_LIMITS = "nothing measured, or no limit of this hardware is known"


def _lazy(function: str, **options: Any) -> Callable[..., Any]:
    """Return a function that imports matplotlib when it is called: every job of Snakemake reads the list of figures."""
    name = "longctx.report.figures.metric"
    return lambda *arguments: getattr(import_module(name), function)(*arguments, **options)


def _gpu_counts_differ(results: CampaignResults, others: Sequence[RunCurve]) -> bool:
    ours = results.gpu_count
    return bool(ours) and any(other.gpu_count and other.gpu_count != ours for other in others)


TTFT, DECODE = (_lazy("metric_figure", metric=metric) for metric in METRICS)
TTFT_PER_GPU, DECODE_PER_GPU = (_lazy("metric_figure", metric=metric, per_gpu=True) for metric in METRICS)
LIMITS, HAS_LIMITS = _lazy("limits_figure"), _lazy("our_shares")
PER_GPU: Any = {"shows": _gpu_counts_differ, "empty": SAME_GPUS, "compares": True}
BEFORE_MODES = (
    FigureSpec("ttft", "Time to first token against prompt length", TTFT),
    FigureSpec("decode", "Decode throughput against prompt length", DECODE, synthetic=BOTH),
    # The plan's rule draws it, from numbers that nobody measured.
    FigureSpec("kv_footprint", "KV footprint against context length (the plan)", synthetic=()),
    FigureSpec("limits", "Distance to the hardware's limit", LIMITS, HAS_LIMITS, NO_LIMITS, synthetic=BOTH),
)
AFTER_MODES = (
    FigureSpec("ttft_per_gpu", "Time to first token × GPUs, normalised per GPU", TTFT_PER_GPU, **PER_GPU),
    FigureSpec("decode_per_gpu", "Decode throughput per GPU", DECODE_PER_GPU, **PER_GPU, synthetic=BOTH),
)


def campaign_figures(modes: Iterable[str], compares: bool) -> tuple[FigureSpec, ...]:
    """Return the figures of a campaign with these modes, in the reports' order; `compares`: with other runs."""
    of_modes = (figure for mode in MODES if mode in set(modes) for figure in report_facet(mode).figures)
    return tuple(figure for figure in (*BEFORE_MODES, *of_modes, *AFTER_MODES) if compares or not figure.compares)


def figure_files(modes: Iterable[str], compares: bool) -> list[str]:
    """Return the names of the files that `draw_all` writes for such a campaign: ttft.png, ttft.svg and so on."""
    drawn = (figure.name for figure in campaign_figures(modes, compares) if figure.draw)
    return [f"{name}{suffix}" for name in drawn for suffix in SUFFIXES]


def _figures(results: CampaignResults, others: Sequence[RunCurve]) -> tuple[FigureSpec, ...]:
    return campaign_figures(results.recipe.get("modes") or results.modes, bool(others))


def shown_figures(results: CampaignResults, others: Sequence[RunCurve]) -> list[FigureSpec]:
    """Return the figures that have something to show, or whose file says why they could not be drawn."""
    shown = []
    for figure in _figures(results, others):
        with suppress(Exception):
            if not figure.shows(results, others):
                continue
        shown.append(figure)
    return shown


def draw_all(results: CampaignResults, others: Sequence[RunCurve], out_dir: Path | str) -> list[str]:
    """Write exactly the files of `figure_files` into `out_dir` and return their paths.

    Older files of figures that the campaign no longer has are removed. A figure that cannot be drawn says so in its own
    file and in the log; the others are drawn.
    """
    out, written = Path(out_dir), list[str]()
    for figure in _figures(results, others):
        if figure.draw:
            draw = partial(_draw, figure, results, others, out / figure.name)
            written += map(str, draw_or_explain(out / figure.name, figure.caption, draw))
    for name in set(figure_files(MODES, True)) - {Path(path).name for path in written}:
        (out / name).unlink(missing_ok=True)
    return written


def _draw(figure: FigureSpec, results: CampaignResults, others: Sequence[RunCurve], stem: Path) -> None:
    """Draw and save one figure; one that fails or has nothing to show is an empty one that says so."""
    from longctx.report import style

    with style.theme():
        try:
            assert figure.draw is not None
            drawn = figure.draw(results, others) if figure.shows(results, others) else figure.empty
        except Exception as error:
            drawn = f"this figure could not be drawn: {type(error).__name__}"
            logging.getLogger(__name__).warning("figure %s could not be drawn: %r", figure.name, error)
        if isinstance(drawn, str):
            drawn = style.empty_figure(figure.caption, results.subtitle, drawn)
        style.save(drawn, stem)


def draw_kv_cache(system: System, lengths: Sequence[int], stem: Path, *, synthetic_weights: bool) -> list[Path]:
    """Draw the plan's figure as `stem`.png and `stem`.svg, or write there why it could not be drawn."""

    def draw() -> None:
        from longctx.report.figures import kv_cache

        kv_cache.draw(system, lengths, stem, synthetic_weights=synthetic_weights)

    return draw_or_explain(stem, "KV cache of one sequence against context length", draw)
