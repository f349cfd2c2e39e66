"""Draw every figure that a campaign's modes give."""

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from longctx.report import style
from longctx.report.figures.amortisation import amortisation_figure
from longctx.report.figures.limits import limits_figure
from longctx.report.figures.look import FigureInput
from longctx.report.figures.metric import metric_figure


def draw_all(given: FigureInput, out_dir: Path | str) -> dict[str, list[Path]]:
    """Draw every figure that has something to show into `out_dir` as PNG and SVG, and return the files by name.

    One that has nothing to show any more (another `compare`, fewer modes) is removed, or a report would show it as new.
    """
    out = Path(out_dir)
    drawn: dict[str, list[Path]] = {}
    others_counted = [other.gpu_count for other in given.others if other.gpu_count]
    per_gpu_differs = bool(given.gpu_count) and any(count != given.gpu_count for count in others_counted)
    figures: list[tuple[str, Callable[[], Figure | None]]] = [
        ("ttft", lambda: metric_figure(given, "ttft_s")),
        ("decode", lambda: metric_figure(given, "decode_tok_s")),
        ("limits", lambda: limits_figure(given)),
        ("amortisation", lambda: amortisation_figure(given)),
        ("ttft_per_gpu", lambda: metric_figure(given, "ttft_s", normalise=True) if per_gpu_differs else None),
        ("decode_per_gpu", lambda: metric_figure(given, "decode_tok_s", normalise=True) if per_gpu_differs else None),
    ]
    for name, draw in figures:
        with style.theme():
            if figure := draw():
                drawn[name] = style.save(figure, out / name)
            else:
                for suffix in (".png", ".svg"):
                    (out / f"{name}{suffix}").unlink(missing_ok=True)
    return drawn
