"""Figure 1: where the cache reaches the lines, and which texts keep clear of each other."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from longctx.model.reader import build_geometry, read_geometry
from longctx.plan.hardware import Parallelism, load_hardware
from longctx.plan.system import Settings, System
from longctx.report import style
from longctx.report.figures import kv_cache

MI, GIB = 2**20, 2**30
KIMI = read_geometry("kimi-linear-48b-a3b")
MI355X, H200 = load_hardware("MI355X", 8), load_hardware("H200")
PUBLISHED = Settings("fp8_e4m3", 0.952, 16384, aiter_version="v0.1.19.post2", passes=3)


def test_crossings_of_figure_1() -> None:
    assert kv_cache.crossing_tokens(KIMI, 6 * GIB, "fp8") == pytest.approx(1.6e6, rel=0.01)
    assert kv_cache.crossing_tokens(KIMI, 96 * GIB, "fp8") == pytest.approx(25.6e6, rel=0.01)
    exact = kv_cache.crossing_tokens(KIMI, 4032.0 * 1000, "fp8")
    assert exact == 1000
    windowed = replace(KIMI, layers=())
    assert kv_cache.crossing_tokens(windowed, 1.0, "fp8") is None


@pytest.mark.parametrize("hardware", [None, MI355X])
def test_figure_1_is_written(tmp_path: Path, hardware: Any) -> None:
    settings = replace(PUBLISHED, cpu_kv_gib=2.0)
    split = Parallelism(tensor=8 if hardware else 1)
    known = System(KIMI, hardware, split, settings)
    paths = kv_cache.draw(known, [1024, 65536], tmp_path / "kv", synthetic_weights=True)
    assert {path.suffix for path in paths} == {".png", ".svg"}
    assert all(path.stat().st_size > 5000 for path in paths)


@pytest.mark.parametrize("longest", [MI // 16, MI, 8 * MI])
def test_the_name_of_the_operating_point_hides_no_line_s_name(
    longest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    monkeypatch.setattr(style, "save", lambda figure, stem: drawn.append(figure))
    kv_cache.draw(System(KIMI, H200, Parallelism(), PUBLISHED), [1024, longest], tmp_path / "kv")
    drawn[0].draw_without_rendering()
    *names, point = drawn[0].axes[0].texts
    assert point.get_text().startswith("operating point")
    assert len(names) == 5, "the subtitle and four lines"
    assert not [name.get_text() for name in names if kv_cache.overlap(point, name)]


def test_a_model_without_a_growing_cache_has_a_figure(tmp_path: Path) -> None:
    configs = json.loads((Path(__file__).parents[3] / "data" / "real_configs.json").read_text())
    for name in ("Mamba2-2.7B", "Mistral-7B-v0.1"):
        known = System(build_geometry(configs[name]["config"], name), H200, Parallelism(), PUBLISHED)
        for path in kv_cache.draw(known, [1024, MI], tmp_path / name):
            assert path.stat().st_size > 5000
