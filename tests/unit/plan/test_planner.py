"""The plan: fits, reasons, mends, hours, what a node could hold, Figure 1 and the command line."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from longctx.campaign.campaign import from_dict
from longctx.campaign.point import Point
from longctx.errors import GeometryError
from longctx.measure import protocol
from longctx.model.reader import build_geometry, read_geometry
from longctx.plan import text
from longctx.plan.campaign_plan import measured_ttft, plan_campaign
from longctx.plan.fit import Settings, aiter_problem, max_context, needed_tokens
from longctx.plan.hardware import Parallelism, load_hardware
from longctx.plan.planner import campaign_hours, plan_point, plan_points
from longctx.plan.splits import hold_table, nodes_table, splits
from longctx.plan.text import heading, hold_lines
from longctx.report import style
from longctx.report.figures import kv_cache
from longctx.resources import MODELS_DIR
from longctx.storage import parquet, schemas
from longctx.units import length_name

MI, GIB = 2**20, 2**30
KIMI = read_geometry("kimi-linear-48b-a3b")
LLAMA = read_geometry("llama-3.1-8b")
MI355X, H200 = load_hardware("MI355X", 8), load_hardware("H200")
TP8 = Parallelism(tensor=8)
PUBLISHED = Settings("fp8_e4m3", 0.952, 16384, aiter_version="v0.1.19.post2", passes=3)
SCRIPT = Path(__file__).parents[3] / "scripts" / "plan.py"


def test_the_published_recipe_fits_and_takes_days() -> None:
    points = [("prefill", 2**i) for i in range(10, 27)]
    rows = plan_points(KIMI, MI355X, TP8, points, PUBLISHED, requests=lambda _, n: 5 if n <= 65536 else 1)
    assert all(row["fits"] for row in rows)
    last = rows[-1]
    assert last["kv_bytes_per_rank"] == 252 * GIB
    assert last["est_ttft_s"] == pytest.approx(40171.67)
    assert last["est_hours"] == pytest.approx(3 * 40171.67 / 3600, rel=0.02)
    hours = campaign_hours(rows)
    assert hours is not None
    assert 40 < hours < 60


def test_bf16_does_not_fit_at_64mi_and_the_mend_says_what_would() -> None:
    row = plan_point(KIMI, MI355X, TP8, replace(PUBLISHED, kv_dtype="bfloat16"), 64 * MI)
    assert (row["fits"], row["reason"], row["est_hours"]) == (False, "does_not_fit", None)
    assert row["kv_bytes_per_rank"] == 504 * GIB
    assert row["remedy"].startswith("needs 504.1 GiB of KV cache per rank, 25")
    assert "would fit: kv_cache_dtype fp8 or TP8 DCP2 or lengths up to 34,5" in row["remedy"]


def test_every_mend_that_names_a_split_really_fits() -> None:
    row = plan_point(KIMI, H200, Parallelism(), Settings("fp8", 0.95, 16384), 16 * MI)
    assert row["fits"] is False
    assert "TP2 on 2 GPUs" in row["remedy"]
    again = plan_point(KIMI, load_hardware("H200", 2), Parallelism(tensor=2), Settings("fp8", 0.95, 16384), 16 * MI)
    assert again["fits"] is True


def test_weights_alone_may_not_fit() -> None:
    row = plan_point(read_geometry("deepseek-v3"), H200, Parallelism(), Settings("fp8"), 1024)
    assert row["fits"] is False
    assert "the weights (626.8 GiB per GPU) leave no room" in row["remedy"]
    assert "TP8 on 8 GPUs" in row["remedy"]
    assert row["capacity_tokens"] == 0


def test_1024_in_and_16_out_need_1040() -> None:
    assert needed_tokens(1024, Settings(max_new_tokens=16, headroom_tokens=1)) == 1040
    assert needed_tokens(1024, Settings(max_new_tokens=16, headroom_tokens=64)) == 1088, "new tokens count in it"
    tokens_of = {"max_new_tokens": 16, "headroom_tokens": 1, "cpu_kv_gib": 1.0}
    block = 128
    tiny = replace(LLAMA, layers=(replace(LLAMA.layers[0], count=1),))
    for held, fits in ((1024, False), (1152, True)):
        pool = (held // block + 1) * block * tiny.kv_bytes_per_token("fp8") / GIB
        row = plan_point(tiny, None, Parallelism(), Settings("fp8", **(tokens_of | {"cpu_kv_gib": pool})), 1024)
        assert row["capacity_tokens"] == held
        assert row["fits"] is fits


def test_cpu_plans_without_hardware() -> None:
    settings = Settings("fp8", cpu_kv_gib=4.0, headroom_tokens=1024)
    row = plan_point(LLAMA, None, Parallelism(), settings, 1024)
    assert row["fits"] is True
    assert row["ttft_bound_s"] is row["decode_bound_tok_s"] is row["est_ttft_s"] is row["est_hours"] is None
    refused = plan_point(LLAMA, None, Parallelism(), settings, MI)
    assert "VLLM_CPU_KVCACHE_SPACE=128" in refused["remedy"]
    unknown = plan_point(LLAMA, None, Parallelism(), Settings("fp8"), 1024)
    assert (unknown["fits"], unknown["reason"]) == (None, None)
    assert text.heading(LLAMA, None, Parallelism(), settings)[0] == f"{LLAMA.name} on CPU, KV cache fp8"


def test_beyond_2_to_24_tokens_rocm_needs_aiter() -> None:
    for version in ("v0.1.19.post2", "0.1.20", ">=0.1.19.post2", "0.2.0"):
        assert aiter_problem(MI355X, 64 * MI, replace(PUBLISHED, aiter_version=version)) is None
    for version in ("0.1.19", "v0.1.19.post1", "0.1.5", None, "main"):
        problem = aiter_problem(MI355X, 64 * MI, replace(PUBLISHED, aiter_version=version))
        assert problem is not None
        assert "AITER v0.1.19.post2 or newer" in problem
    old = replace(PUBLISHED, aiter_version="0.1.5")
    assert aiter_problem(MI355X, 8 * MI, old) is None
    assert aiter_problem(MI355X, 2**24 - 128, old) is None
    assert aiter_problem(MI355X, 2**24, old) is not None
    assert aiter_problem(H200, 64 * MI, old) is None
    row = plan_point(KIMI, MI355X, TP8, old, 32 * MI)
    assert (row["fits"], row["reason"]) == (False, "unsupported")


def test_capacity_limits_max_context() -> None:
    settings = Settings("fp8", 0.95, 16384)
    longest = max_context(KIMI, H200, Parallelism(), settings)
    assert longest is not None
    assert plan_point(KIMI, H200, Parallelism(), settings, longest)["fits"] is True
    assert plan_point(KIMI, H200, Parallelism(), settings, longest + 1)["fits"] is False


def test_measured_rungs_update_the_forecast() -> None:
    measured = {1024: 0.157, 16384: 0.306, 65536: 1.89, 131072: 3.791, 262144: 10.707}
    points = [("prefill", 65536), ("prefill", MI)]
    before = plan_points(KIMI, H200, Parallelism(), points, Settings("fp8", 0.95), curves=[])
    after = plan_points(KIMI, H200, Parallelism(), points, Settings("fp8", 0.95), measured=measured, curves=[])
    assert [row["est_ttft_s"] for row in before] == [None, None]
    assert (after[0]["est_ttft_s"], after[0]["est_source"]) == (1.89, "measured")
    assert after[1]["est_ttft_s"] == pytest.approx(119.8, rel=0.1)
    assert after[1]["est_ttft_low_s"] < 119.8 < after[1]["est_ttft_high_s"]


def test_modes_cost_what_they_send() -> None:
    settings = Settings("fp8", 0.95, passes=2, start_s=0.0)
    points = [("prefill", MI), ("reuse", MI), ("decode_only", MI)]
    rows = plan_points(KIMI, H200, Parallelism(), points, settings, requests=lambda *_: 3)
    prefill, reuse, decode_only = rows
    assert prefill["est_hours"] == pytest.approx(2 * 3 * 119.8 / 3600, rel=0.02)
    assert reuse["est_hours"] == pytest.approx(2 * 119.8 / 3600, rel=0.05)
    assert decode_only["est_hours"] < 0.01
    assert decode_only["ttft_bound_s"] is decode_only["est_ttft_s"] is None


def test_a_campaign_takes_the_hours_of_what_runs_and_is_unknown_where_one_of_these_is() -> None:
    runs, refused = {"reason": None, "est_hours": 2.0}, {"reason": "does_not_fit", "est_hours": None}
    assert campaign_hours([runs, refused, runs]) == 4.0
    assert campaign_hours([runs, {"reason": None, "est_hours": None}]) is None


@pytest.mark.parametrize(("scope", "starts"), [("point", 8), ("pass", 4), ("campaign", 2)])
def test_each_mode_starts_servers_of_its_own(scope: str, starts: int) -> None:
    settings = Settings("fp8", 0.95, passes=2, max_new_tokens=1, start_s=3600.0, scope=scope)
    points = [(mode, length) for mode in ("prefill", "decode_only") for length in (1024, 2048)]
    rows = plan_points(KIMI, H200, Parallelism(), points, settings)
    assert sum(row["est_hours"] for row in rows) == pytest.approx(starts, abs=0.01)


@pytest.mark.parametrize(("length", "step_s"), [(1024, 0.004), (64 * MI, 0.060)])
def test_a_decode_step_is_planned_as_long_as_the_published_one(length: int, step_s: float) -> None:
    settings = replace(PUBLISHED, passes=1, start_s=0.0, max_new_tokens=128)
    row = plan_point(KIMI, MI355X, TP8, settings, length, mode="decode_only")
    assert row["est_hours"] * 3600 / 128 == pytest.approx(step_s, rel=0.15)


def test_hold_table_covers_splits_and_precisions() -> None:
    rows = hold_table(KIMI, MI355X, PUBLISHED)
    longest = {(row["parallelism"], row["kv_dtype"]): row["max_context"] for row in rows}
    assert longest["TP8", "bfloat16"] < 64 * MI <= longest["TP8", "fp8"]
    assert longest["TP8 DCP8", "fp8"] == pytest.approx(8 * longest["TP8", "fp8"], rel=0.01)
    assert ("PP8", "fp8") in longest
    text = "\n".join(hold_lines(rows))
    assert "How long a context could this node hold" in text
    llama = {row["parallelism"] for row in hold_table(LLAMA, MI355X, PUBLISHED)}
    assert "TP8" in llama
    assert not any("DCP" in label for label in llama)


def test_512mi_over_nodes_is_computed_not_run() -> None:
    rows = nodes_table(KIMI, MI355X, PUBLISHED, 512 * MI)
    assert (rows[0]["nodes"], rows[0]["parallelism"]) == (1, "TP8 DCP8")
    assert rows[0]["kv_bytes_per_rank"] == 252 * GIB
    assert any(row["nodes"] == 2 and "PP2" in row["parallelism"] for row in rows)
    assert all(row["max_context"] >= 512 * MI for row in rows)
    assert "(computed, not run)" in text.nodes_lines(512 * MI, MI355X, rows)[0]
    assert nodes_table(KIMI, H200, PUBLISHED, 2**36, max_nodes=1) == []


def test_splits_are_those_the_model_allows() -> None:
    qwen = read_geometry("qwen2.5-7b-1m")
    assert [s.label for s in splits(qwen, 8)] == ["TP4 PP2", "TP2 PP4", "PP8"]


@pytest.mark.parametrize(
    ("tokens", "name"),
    [
        (65536, "64Ki"),
        (64 * MI, "64Mi"),
        (770579, "752.5Ki"),
        (5825 * 1024, "5.6Mi"),
        (1010000, "986.3Ki"),
        (None, "no limit"),
        (1000, "1000"),
    ],
)
def test_length_names_are_short(tokens: int | None, name: str) -> None:
    assert length_name(tokens) == name


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
    split = TP8 if hardware else Parallelism()
    paths = kv_cache.draw(KIMI, hardware, split, settings, [1024, 65536], tmp_path / "kv", synthetic_weights=True)
    assert {path.suffix for path in paths} == {".png", ".svg"}
    assert all(path.stat().st_size > 5000 for path in paths)


@pytest.mark.parametrize("longest", [MI // 16, MI, 8 * MI])
def test_the_name_of_the_operating_point_hides_no_line_s_name(
    longest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    monkeypatch.setattr(style, "save", lambda figure, stem: drawn.append(figure))
    kv_cache.draw(KIMI, H200, Parallelism(), PUBLISHED, [1024, longest], tmp_path / "kv")
    drawn[0].draw_without_rendering()
    *names, point = drawn[0].axes[0].texts
    assert point.get_text().startswith("operating point")
    assert len(names) == 5, "the subtitle and four lines"
    assert not [name.get_text() for name in names if kv_cache.overlap(point, name)]


def test_a_model_without_a_growing_cache_has_a_figure_and_windows_are_named(tmp_path: Path) -> None:
    configs = json.loads((Path(__file__).parents[2] / "data" / "real_configs.json").read_text())
    mamba = build_geometry(configs["Mamba2-2.7B"]["config"], "mamba")
    mistral = build_geometry(configs["Mistral-7B-v0.1"]["config"], "mistral")
    for geometry in (mamba, mistral):
        for path in kv_cache.draw(geometry, H200, Parallelism(), PUBLISHED, [1024, MI], tmp_path / geometry.name):
            assert path.stat().st_size > 5000
    assert mistral.windowed_bytes("bfloat16") == 32 * 2 * 8 * 128 * 4096 * 2
    text = "\n".join(heading(mistral, H200, Parallelism(), PUBLISHED))
    assert "windowed layers hold at most 512 MiB more in BF16, 256 MiB in FP8" in text
    assert "windowed" not in "\n".join(heading(KIMI, H200, Parallelism(), PUBLISHED))


def test_lengths_beyond_the_model_s_own_limit_are_noted() -> None:
    assert text.position_note(LLAMA, 131072) == []
    assert "own limit is 131,072 tokens" in text.position_note(LLAMA, MI)[0]


def test_a_shipped_curve_counts_as_the_same_setup_for_the_same_split_only() -> None:
    settings = replace(PUBLISHED, kv_dtype="fp8")
    sources = {
        split.label: plan_points(KIMI, MI355X, split, [("prefill", MI)], settings)[0]["est_source"]
        for split in (TP8, Parallelism(pipeline=8))
    }
    assert sources == {"TP8": "mi355x-published", "PP8": "mi355x-published, scaled by hardware"}


def test_a_pinned_revision_is_looked_up_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    repo, commit = tmp_path / "models--some--model", "0" * 40
    folder = repo / "snapshots" / commit
    folder.mkdir(parents=True)
    (folder / "config.json").write_text((MODELS_DIR / "llama-3.1-8b.json").read_text())
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.file_download.HF_HUB_CACHE", str(tmp_path), raising=False)
    plan = plan_campaign(from_dict(campaign(model={"source": "some/model", "revision": commit}, lengths=["1Ki"])))
    assert plan.geometry.parameters_total == LLAMA.parameters_total


def test_a_model_that_the_plan_cannot_read_is_planned_from_a_file_that_it_can(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "brand_new"}))
    model = {"source": str(tmp_path)}
    with pytest.raises(
        GeometryError, match=r"brand_new.*name a config\.json that the plan can read as model\.geometry"
    ):
        plan_campaign(from_dict(campaign(model=model)))
    model["geometry"] = "resources/models/llama-3.1-8b.json"
    assert plan_campaign(from_dict(campaign(model=model))).geometry.parameters_total == LLAMA.parameters_total


def campaign(**changes: Any) -> dict[str, Any]:
    base = {
        "model": {"source": "moonshotai/Kimi-Linear-48B-A3B-Instruct"},
        "lengths": ["1Ki", "64Ki", "64Mi"],
        "passes": 3,
        "repeats": {"count": 5, "up_to": "64Ki"},
        "modes": ["prefill", "reuse"],
        "hardware": {"gpu": "MI355X", "count": 8},
        "serve": {
            "tensor_parallel_size": 8,
            "kv_cache_dtype": "fp8_e4m3",
            "gpu_memory_utilization": 0.952,
            "max_num_batched_tokens": 16384,
            "aiter_version": "0.1.19.post2",
        },
    }
    return base | changes


def test_a_campaign_is_planned_from_its_configuration() -> None:
    plan = plan_campaign(from_dict(campaign()))
    assert plan.parallelism == TP8
    assert plan.settings.headroom_tokens == 16384
    assert [(row["mode"], row["length"]) for row in plan.rows][:2] == [("prefill", 1024), ("prefill", 65536)]
    assert all(row["fits"] for row in plan.rows)
    measured = plan_campaign(from_dict(campaign()), {1024: 0.1, 65536: 0.9})
    assert measured.rows[0]["est_source"] == "measured"


def test_a_mode_with_passes_of_its_own_costs_its_own_hours() -> None:
    def hours(**reuse: Any) -> dict[str, float]:
        planned = plan_campaign(from_dict(campaign(lengths=["1Mi"], passes=4, reuse=reuse)))
        return {row["mode"]: row["est_hours"] for row in planned.rows}

    assert hours(passes=1)["prefill"] == hours()["prefill"]
    assert hours(passes=1)["reuse"] == pytest.approx(hours()["reuse"] / 4)


@pytest.mark.parametrize(
    "changes",
    [{"reuse": {"queries": 9}}, {"reuse": {"passes": 9}}, {"lengths": ["2Ki"]}, {"decode_only": {"passes": 9}}],
)
def test_whatever_the_plan_depends_on_makes_it_anew(changes: dict[str, Any]) -> None:
    assert from_dict(campaign(**changes)).plan_settings() != from_dict(campaign()).plan_settings()


def test_measured_lengths_come_from_good_summary_rows() -> None:
    rows = [
        {"mode": "prefill", "length": 1024, "ttft_s_mean": 0.1},
        {"mode": "prefill", "length": 4096, "ttft_s_mean": None},
        {"mode": "reuse", "length": 8192, "ttft_s_mean": 0.01},
    ]
    assert measured_ttft(rows) == {1024: 0.1}


def test_a_length_refused_by_the_plan_keeps_its_reason_and_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old = campaign(serve={**campaign()["serve"], "aiter_version": "0.1.5"})
    job = object.__new__(protocol._Job)
    job.campaign, job.plan = from_dict(old), protocol._plan_rows(from_dict(old))
    monkeypatch.setattr(protocol.parquet, "read_rows", lambda *_: [])
    found = job._why_not(Point(64 * MI, 1))
    assert found is not None
    assert found[0] == "unsupported"
    assert found[1].startswith("beyond 2^24 tokens ROCm needs AITER")


@pytest.mark.parametrize(("launcher", "needed"), [("local", 1024 + 16384), ("external", 1024 + 128)])
def test_the_server_s_own_capacity_must_hold_length_and_headroom(launcher: str, needed: int) -> None:
    job = object.__new__(protocol._Job)
    job.mode = "prefill"
    there = {"external": {"url": "http://127.0.0.1:1"}, "serve": {}} if launcher == "external" else {}
    job.campaign = from_dict(campaign(launcher=launcher, max_new_tokens=128, lengths=["1Ki"], **there))

    def gate(capacity: int | None) -> str | None:
        server = SimpleNamespace(capacity_tokens=lambda: capacity)
        return job._gate(SimpleNamespace(server=server), Point(1024, 1))

    assert gate(needed) is None
    assert gate(None) is None
    refused = gate(needed - 1)
    assert refused is not None
    assert refused.startswith(f"the server's KV cache holds {needed - 1} tokens, this point needs {needed}; ")


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *args], capture_output=True, text=True, check=False)


def test_a_user_with_a_config_and_a_gpu_name(tmp_path: Path) -> None:
    out, figure = tmp_path / "plan.parquet", tmp_path / "figures" / "kv_footprint.png"
    model = str(MODELS_DIR / "kimi-linear-48b-a3b.json")
    done = run("--model", model, "--gpu", "H200", "--lengths", "1Mi..16Mi", "--out", str(out), "--figure", str(figure))
    assert done.returncode == 0, done.stderr
    for said in ("36.", "16Mi prefill: needs", "campaign: ", "bfloat16", "fp8"):
        assert said in done.stdout
    rows = parquet.read_rows(out, schemas.PLAN)
    assert [row["fits"] for row in rows] == [True, True, True, True, False]
    assert figure.exists()
    assert figure.with_suffix(".svg").exists()


def test_a_campaign_file_on_the_command_line(tmp_path: Path) -> None:
    config, out, text = tmp_path / "c.json", tmp_path / "plan.parquet", tmp_path / "plan.txt"
    config.write_text(json.dumps(campaign()))
    done = run(
        "--config-file", str(config), "--out", str(out), "--text", str(text), "--measured", str(tmp_path / "none")
    )
    assert done.returncode == 0, done.stderr
    assert "campaign: " in text.read_text()
    assert done.stdout == "", "`snakemake plan` prints the file"
    assert done.stderr.startswith("plan: ")
    assert len(parquet.read_rows(out, schemas.PLAN)) == 6


@pytest.mark.parametrize(
    ("args", "split"),
    [(["--decode-context", "2"], "TP8 DCP2"), (["--pipeline", "2"], "TP4 PP2"), (["--tensor", "2"], "TP2"), ([], "TP8"),
     (["--pipeline", "4", "--decode-context", "2"], "TP2 PP4 DCP2")],
)  # fmt: skip
def test_the_split_that_was_asked_for_is_planned(args: list[str], split: str) -> None:
    done = run("--model", "kimi-linear-48b-a3b", "--gpu", "H200", "--count", "8", "--lengths", "1Ki", *args)
    assert done.stdout.startswith(f"Kimi-Linear-48B-A3B on 8 x H200, {split}, ")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--model", "kimi-linear-48b-a3b"], "--gpu: missing"),
        (["--model", "kimi-linear-48b-a3b", "--gpu", "H900"], "hardware.gpu: 'H900' is not in"),
        (["--model", "no-such", "--gpu", "H200"], "no-such: neither a config.json"),
        (["--model", "kimi-linear-48b-a3b", "--gpu", "H200", "--tensor", "2"], "TP2 needs 2 GPUs and there are 1"),
        (["--model", "kimi-linear-48b-a3b", "--gpu", "H200", "--lengths", "1Ki..3Ki"], "not from: 1Ki times"),
        (["--model", "some/model", "--gpu", "H200"], "; fetch it first: hf download some/model config.json"),
        (["--model", "kimi-linear-48b-a3b", "--gpu-memory-utilization", "nan"], "'nan' is not above 0 and at most 1"),
        (["--model", "kimi-linear-48b-a3b", "--gpu-memory-utilization", "1.5"], "'1.5' is not above 0 and at most 1"),
        (["--model", "kimi-linear-48b-a3b", "--passes", "0"], "--passes: '0' is not a whole number of at least 1"),
        (
            ["--model", "qwen2.5-7b-1m", "--gpu", "H200", "--count", "8", "--decode-context", "8"],
            "this model has no split of 8 GPUs with --decode-context 8",
        ),
        ([], "one of the arguments --config-file --model is required"),
    ],
)
def test_mistakes_give_one_sentence(args: list[str], said: str) -> None:
    done = run(*args)
    assert done.returncode == 1
    assert said in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
