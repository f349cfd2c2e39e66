"""Figures: what is on the axes, read back from matplotlib, for whole, partial, failed and empty campaigns."""

import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import makereport
import makerows
import matplotlib as mpl
import pytest
from longctx import units
from longctx.campaign.mode import MODES
from longctx.report import style
from longctx.report.figures import draw
from longctx.report.figures import metric as metric_figures
from longctx.results import summary
from longctx.results.campaign_results import RANDOM_WEIGHTS, CampaignResults, subtitle
from longctx.results.compare import curves
from longctx.results.compare.curves import RunCurve
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[4]
PUBLISHED = ROOT / "resources" / "results" / "mi355x-published.csv"


def campaign(rows: list[dict[str, Any]] | None = None, **options: Any) -> CampaignResults:
    if rows is None:
        rows = summary.summarise(makerows.campaign(), makerows.expected(), makerows.plan())
    return makereport.of_summary(rows, **options)


def metric_figure(results: CampaignResults, metric: str, *others: RunCurve, per_gpu: bool = False) -> Figure:
    return metric_figures.metric_figure(results, others, metric, per_gpu=per_gpu)


def series(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    """Return x and y of everything with a name in the legend."""
    found = {}
    for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
        line = handle[0] if isinstance(handle, ErrorbarContainer) else handle
        found[label] = (list(line.get_xdata()), list(line.get_ydata()))
    return found


def drawn(figure: Any) -> dict[str, tuple[list[float], list[float]]]:
    return series(figure.axes[0])


def test_ttft_shows_the_means_of_cold_and_hot_prompts_apart() -> None:
    source = campaign()
    found = drawn(metric_figure(source, "ttft_s"))
    cold = [row for row in source.of_mode("prefill") if row["ttft_s_mean"]]
    assert found["cold prompt"] == ([row["length"] for row in cold], [row["ttft_s_mean"] for row in cold])
    assert found["behind a resident prefix"][0] == [1 << 18, 1 << 19, 1 << 20]
    assert "KV cache filled, no prefill" not in found
    assert found["not measured"][0] == [1 << 21]


def test_decode_marks_filled_caches_as_such() -> None:
    found = drawn(metric_figure(campaign(), "decode_tok_s"))
    assert found["KV cache filled, no prefill"][0][-1] == 1 << 23
    assert found["cold prompt"][0][-1] == 1 << 20
    assert found["failed or doubtful"][0] == [1 << 24]


def test_a_late_ttft_is_in_no_point_and_a_rung_of_them_is_marked() -> None:
    marked = {"reason": "client_starved", "reasons": ["client_starved"], "ttft_s": 9.0}
    some = [makerows.row(length=4096, ttft_s=2.0), makerows.row(length=4096, pass_index=2, **marked)]
    rows = summary.summarise([*some, makerows.row(length=8192, **marked)], {})
    found = drawn(metric_figure(campaign(rows), "ttft_s"))
    assert found["cold prompt"] == ([4096], [2.0])
    assert found["late: only a bound is known"][0] == [8192]
    assert drawn(metric_figure(campaign(rows), "decode_tok_s"))["cold prompt"][0] == [4096, 8192]


def test_a_first_token_that_no_event_shows_is_not_called_unmeasured() -> None:
    unseen = {"ttft_s": None, "overhead_s": None, "reasons": ["first_token_unseen"]}
    rows = summary.summarise([makerows.row(length=4096, **unseen)], {})
    found = drawn(metric_figure(campaign(rows), "ttft_s"))
    assert found["the stream does not show the first token"][0] == [4096]
    assert "not measured" not in found


@pytest.mark.parametrize("name", ["$\\frac{", "a\x1b[31mb\x07", "<b>&", "x_{y}^$z$"])
def test_a_model_s_name_spoils_no_figure(name: str, tmp_path: Path) -> None:
    """Seen from a server that named its model so: a formula, or characters that no SVG may hold."""
    rows = [makerows.row(model=name, vllm_version=name)]
    results = campaign(summary.summarise(rows, {}), subtitle=subtitle(rows))
    metric_figure(results, "ttft_s").savefig(tmp_path / "figure.svg")
    ElementTree.parse(tmp_path / "figure.svg")


def test_a_rate_axis_that_spans_little_has_ticks_enough_to_be_read() -> None:
    rows = summary.summarise([makerows.row(length=n, decode_tok_s=r) for n, r in ((1024, 540.0), (16384, 230.0))], {})
    figure = metric_figure(campaign(rows), "decode_tok_s")
    axes = figure.axes[0]
    low, high = axes.get_ylim()
    assert len([tick for tick in axes.yaxis.get_majorticklocs() if low <= tick <= high]) >= 3


def test_error_bars_are_the_standard_deviations() -> None:
    rows = summary.summarise([makerows.row(pass_index=i, ttft_s=10.0 + i) for i in (1, 2, 3)], {})
    axes = metric_figure(campaign(rows), "ttft_s").axes[0]
    bar = next(one for one in axes.containers if isinstance(one, ErrorbarContainer))
    low, high = bar[2][0].get_segments()[0][:, 1]
    assert (low, high) == (pytest.approx(11.0), pytest.approx(13.0))


def test_a_deviation_beyond_the_mean_still_draws() -> None:
    rows = summary.summarise([makerows.row(pass_index=i, ttft_s=10.0**i) for i in (-3, 0, 3)], {})
    axes = metric_figure(campaign(rows), "ttft_s").axes[0]
    bar = next(one for one in axes.containers if isinstance(one, ErrorbarContainer))
    assert bar[2][0].get_segments()[0][0, 1] > 0


def test_axes_read_as_people_write() -> None:
    figure = metric_figure(campaign(), "ttft_s", curves.read_curve(PUBLISHED))
    figure.canvas.draw()
    axes = figure.axes[0]
    assert axes.get_xscale() == axes.get_yscale() == "log"
    x = [label.get_text() for label in axes.get_xticklabels()]
    y = [label.get_text() for label in axes.get_yticklabels()]
    assert {"1Ki", "64Ki", "1Mi", "64Mi"} <= set(x)
    assert {"0.1 s", "1 s", "1 min", "1 h", "10 h"} <= set(y)


def test_overlay_normalised_per_gpu() -> None:
    results, published = campaign(), curves.read_curve(PUBLISHED)
    decode = drawn(metric_figure(results, "decode_tok_s", published, per_gpu=True))
    assert decode["8 × MI355X (published)"][1][-1] == pytest.approx(16.6 / 8)
    ttft = drawn(metric_figure(results, "ttft_s", published, per_gpu=True))
    assert ttft["8 × MI355X (published)"][1][-1] == pytest.approx(40171.67 * 8)
    plain = drawn(metric_figure(results, "decode_tok_s", published))
    assert plain["8 × MI355X (published)"][1][-1] == 16.6


def test_limits_are_shares() -> None:
    found = drawn(metric_figures.limits_figure(campaign(), []))
    assert found["decode: measured / bandwidth bound"][1] == pytest.approx([0.5] * 11, rel=0.03)
    assert all(0 < share < 1 for share in found["prefill: bound / measured TTFT (MFU)"][1])
    assert not metric_figures.our_shares(campaign(summary.summarise([makerows.row()], {})))


def test_others_are_drawn_against_their_own_limits() -> None:
    published = curves.read_curve(PUBLISHED)
    source = campaign()
    shares = drawn(metric_figures.limits_figure(source, [published]))
    x, y = shares["8 × MI355X (published): prefill"]
    assert x == [point.length for point in published.points]
    assert y[-1] == pytest.approx(published.limits[1 << 26].ttft_s / 40171.67)
    assert shares["8 × MI355X (published): decode"][1][-1] == pytest.approx(0.56, abs=0.01)
    for name, factor in (("ttft_s", 8), ("decode_tok_s", 1 / 8)):
        limit = [getattr(published.limits[n], name) for n in sorted(published.limits)]
        assert drawn(metric_figure(source, name, published))["limit of 8 × MI355X (published)"][1] == limit
        per_gpu = drawn(metric_figure(source, name, published, per_gpu=True))
        assert per_gpu["limit of 8 × MI355X (published)"][1] == pytest.approx([factor * value for value in limit])


@pytest.mark.parametrize("runs", [0, 1, 3])
def test_no_point_lies_under_the_legend_of_the_limits(runs: int) -> None:
    source = campaign()
    others = [curves.read_curve(PUBLISHED), *(curves.curve_from_summary(source.summary, f"host {i}") for i in range(2))]
    figure = metric_figures.limits_figure(source, others[:runs])
    figure.draw_without_rendering()
    axes = figure.axes[0]
    (box,) = (legend.get_window_extent() for legend in (*figure.legends, axes.get_legend()) if legend)
    points = [point for line in axes.lines if len(line.get_xdata()) > 2 for point in line.get_xydata()]
    assert points
    assert not any(box.contains(*axes.transData.transform(point)) for point in points)


def test_one_limit_is_drawn_once() -> None:
    source = campaign()
    again = curves.curve_from_summary(source.summary, "the same hardware")
    found = drawn(metric_figure(campaign(), "ttft_s", again))
    assert "least time the hardware allows" in found
    assert "limit of the same hardware" not in found
    shares = drawn(metric_figures.limits_figure(campaign(), [again]))
    assert "the same hardware: prefill (synthetic: random weights)" in shares


def test_limits_that_meet_at_one_length_are_two() -> None:
    source = campaign()
    met = min(row["length"] for row in source.summary if row["ttft_bound_s"])
    rows = [
        row | {"ttft_bound_s": row["ttft_bound_s"] and row["ttft_bound_s"] * (1 if row["length"] == met else 2)}
        for row in source.summary
    ]
    other = curves.curve_from_summary(rows, "other hardware")
    assert "limit of other hardware" in drawn(metric_figure(campaign(), "ttft_s", other))


def test_a_limit_per_gpu_is_drawn_once_where_more_of_the_same_gpus_were_used() -> None:
    source = campaign()
    rows = [
        row | {"gpu_count": 4, "ttft_bound_s": row["ttft_bound_s"] and row["ttft_bound_s"] / 4}
        for row in source.summary
    ]
    four = curves.curve_from_summary(rows, "four")
    assert "limit of four" in drawn(metric_figure(campaign(), "ttft_s", four))
    assert "limit of four" not in drawn(metric_figure(campaign(), "ttft_s", four, per_gpu=True))


def label_texts(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_synthetic_numbers_say_so_and_real_ones_do_not() -> None:
    assert RANDOM_WEIGHTS in label_texts(metric_figure(campaign(), "ttft_s"))
    real = summary.summarise([makerows.row(synthetic_weights=False)], {})
    assert RANDOM_WEIGHTS not in label_texts(metric_figure(campaign(real), "ttft_s"))


@pytest.mark.parametrize(
    "rows",
    [
        [],
        summary.summarise([], {("prefill", 4096): 3}),
        summary.summarise([makerows.bad_row("error_event")], {}),
        summary.summarise([makerows.row(decode_tok_s=None)], {}),
        summary.summarise([makerows.row("decode_only")], {}),
        summary.summarise([makerows.row(length=1)], {}),
        summary.summarise([makerows.row(length=1000), makerows.row(length=1017)], {}),
    ],
    ids=["empty", "missing", "failed", "one-token", "decode-only", "length-1", "odd-lengths"],
)
def test_every_state_of_a_campaign_draws(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    results = campaign(rows)
    paths = [Path(path) for path in draw.draw_all(results, [], tmp_path)]
    assert [path.name for path in paths] == draw.figure_files(results.modes, compares=False)
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    assert all(path.stat().st_size > 1000 for path in paths)


def shown_ticks(axes: Axes) -> list[str]:
    low, high = axes.get_ylim()
    ticks = zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
    return [label.get_text() for value, label in ticks if low <= value <= high and label.get_text()]


@pytest.mark.parametrize("metric", ["ttft_s", "decode_tok_s"])
def test_a_single_point_can_be_read_off(metric: str) -> None:
    rows = summary.summarise([makerows.row(pass_index=i) for i in (1, 2)], {}, makerows.plan())
    figure = metric_figure(campaign(rows), metric)
    figure.canvas.draw()
    axes = figure.axes[0]
    assert len(shown_ticks(axes)) >= 2
    bound = next(line for line in axes.lines if "allows" in str(line.get_label()))
    assert bound.get_marker() == "_", "a line through one point would be invisible"
    low, high = axes.get_ylim()
    value = rows[0][f"{metric}_mean"]
    assert low * 1.2 < value < high / 1.2


def test_the_legend_and_the_curves_leave_the_marks_of_failures_free() -> None:
    rows = [makerows.bad_row("error_event", length=n) for n in (1024, 4096, 65536)]
    figure = metric_figure(campaign(summary.summarise(rows, {}, makerows.plan())), "decode_tok_s")
    figure.canvas.draw()
    axes = figure.axes[0]
    assert "nothing measured" in label_texts(figure)
    marks = next(line for line in axes.lines if line.get_label() == "failed or doubtful")
    tops = axes.get_xaxis_transform().transform([(1024, marks.get_ydata()[0])])[:, 1] + 8
    legend = axes.get_legend()
    assert legend is not None
    assert legend.get_window_extent().y0 > tops.max() - 4
    bound = next(line for line in axes.lines if "allows" in str(line.get_label()))
    assert axes.transData.transform([(65536, min(bound.get_ydata()))])[0, 1] > tops.max()


def test_a_continued_prefill_is_not_called_unmeasured() -> None:
    rows = summary.summarise(
        [makerows.row(length=1024), makerows.row(length=4096, ttft_s=None, reason="resumed", reasons=["resumed"])], {}
    )
    found = drawn(metric_figure(campaign(rows), "ttft_s"))
    assert found["continued after a crash"][0] == [4096]
    assert "not measured" not in found
    assert "continued after a crash" not in drawn(metric_figure(campaign(rows), "decode_tok_s"))


def test_a_decode_that_a_compiled_kernel_spoiled_is_not_called_unmeasured() -> None:
    marks = [["compiled"], ["compiled", "resumed"]]
    ttft_s = [40171.67, None]
    rows = [makerows.row(length=4096 << i, ttft_s=ttft_s[i], decode_tok_s=None, reasons=marks[i]) for i in range(2)]
    source = campaign(summary.summarise([makerows.row(length=1024), *rows], {}))
    found = drawn(metric_figure(source, "decode_tok_s"))
    assert found["a kernel compiled meanwhile"][0] == [4096, 8192]
    assert "not measured" not in found
    assert drawn(metric_figure(source, "ttft_s"))["continued after a crash"][0] == [8192]


def test_our_own_points_lie_on_top_of_others() -> None:
    axes = metric_figure(campaign(), "ttft_s", curves.read_curve(PUBLISHED)).axes[0]
    order = {c.get_label(): c[0].get_zorder() for c in axes.containers if isinstance(c, ErrorbarContainer)}
    assert order["cold prompt"] > order["8 × MI355X (published)"]


def test_equal_data_gives_equal_bytes(tmp_path: Path) -> None:
    results, others = campaign(subtitle="a · b"), [curves.read_curve(PUBLISHED)]
    first, second = draw.draw_all(results, others, tmp_path / "a"), draw.draw_all(results, others, tmp_path / "b")
    assert len(first) == 12
    for one, other in zip(first, second, strict=True):
        assert Path(one).read_bytes() == Path(other).read_bytes(), one


def test_the_files_follow_from_the_modes_and_from_runs_to_compare() -> None:
    alone = draw.figure_files(["prefill"], compares=False)
    assert alone == [f"{name}.{suffix}" for name in ("ttft", "decode", "limits") for suffix in ("png", "svg")]
    assert set(draw.figure_files(MODES, compares=True)) - set(alone) == {
        f"{name}.{suffix}"
        for name in ("amortisation", "chunks", "ttft_per_gpu", "decode_per_gpu")
        for suffix in ("png", "svg")
    }


@pytest.mark.process
def test_the_list_of_figures_needs_no_matplotlib() -> None:
    program = (
        "import sys; from longctx.report.figures import draw;"
        "draw.figure_files(['prefill', 'reuse', 'decode_only'], True);"
        "sys.exit('matplotlib' in sys.modules)"
    )
    folders = {"PYTHONPATH": str(ROOT / "scripts")}
    assert subprocess.run([sys.executable, "-c", program], env=folders, check=False).returncode == 0


def test_a_figure_of_another_campaign_is_removed(tmp_path: Path) -> None:
    published = curves.read_curve(PUBLISHED)
    assert str(tmp_path / "decode_per_gpu.png") in draw.draw_all(campaign(), [published], tmp_path)
    (tmp_path / "kv_footprint.png").write_bytes(b"the plan's own")
    prefill = campaign(summary.summarise([makerows.row()], {}))
    draw.draw_all(prefill, [], tmp_path)
    names = ["decode.png", "kv_footprint.png", "limits.png", "ttft.png"]
    assert sorted(path.name for path in tmp_path.glob("*.png")) == names


def test_a_figure_without_data_is_written_and_not_shown(tmp_path: Path) -> None:
    results, others = campaign(summary.summarise([makerows.row()], {})), [curves.RunCurve("unknown GPUs", ())]
    assert len(draw.draw_all(results, others, tmp_path)) == 10
    assert [figure.name for figure in draw.shown_figures(results, others)] == ["ttft", "decode", "kv_footprint"]


def test_a_figure_that_fails_costs_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: Any) -> None:
        raise KeyError("no such column")

    monkeypatch.setattr(metric_figures, "our_shares", fail)
    results = campaign()
    written = draw.draw_all(results, [], tmp_path)
    assert [Path(path).name for path in written] == draw.figure_files(results.modes, compares=False)
    assert "could not be drawn: KeyError" in (tmp_path / "limits.svg").read_text()
    assert "limits" in caplog.text
    assert "limits" in [figure.name for figure in draw.shown_figures(results, [])]


def test_a_figure_that_cannot_be_saved_costs_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save = style.save

    def fail(figure: Any, stem: Path) -> list[Path]:
        if stem.name == "decode":
            raise MemoryError("too many pixels")
        return save(figure, stem)

    monkeypatch.setattr(style, "save", fail)
    results = campaign()
    written = draw.draw_all(results, [], tmp_path)
    assert [Path(path).name for path in written] == draw.figure_files(results.modes, compares=False)
    assert "could not be drawn: MemoryError: too many pixels" in (tmp_path / "decode.svg").read_text()
    assert "figure decode could not be drawn" in caplog.text
    assert mpl.image.imread(tmp_path / "decode.png").shape[:2] == (1, 1)
    assert mpl.image.imread(tmp_path / "ttft.png").shape[0] > 100


WITHOUT_MATPLOTLIB = """
import sys
sys.modules["matplotlib"] = None
from longctx.report.figures import draw
from longctx.results.campaign_results import CampaignResults
print(*draw.draw_all(CampaignResults("empty"), [], sys.argv[1]), sep="\\n")
"""


@pytest.mark.process
def test_without_matplotlib_every_figure_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_MATPLOTLIB, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [Path(line).name for line in done.stdout.splitlines()] == draw.figure_files([], compares=False)
    assert "could not be drawn: ModuleNotFoundError" in (tmp_path / "ttft.svg").read_text()


def test_the_theme_changes_nothing_outside() -> None:
    before = dict(mpl.rcParams)
    with style.theme():
        style.new("title", "subtitle")
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.08, "0.08 s"), (0.67, "0.67 s"), (18.44, "18.4 s"), (745.22, "12.4 min"), (40171.67, "11.2 h"), (None, "—"),
     (0.002, "2.00 ms"), (5e-5, "50.0 µs"), (119.9, "120 s"), (400_000.0, "111 h"), (0.0, "0.00 µs")],
)  # fmt: skip
def test_human_seconds(seconds: float | None, text: str) -> None:
    assert units.human_seconds(seconds) == text
