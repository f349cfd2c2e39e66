"""Comparison: curves from every source, ratios with their uncertainty, verdicts, and the gate's exit code."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import makerows
import pytest
from longctx.errors import DataError
from longctx.plan.forecasting import published_curves
from longctx.results import export, summary
from longctx.results.compare import comparison, curves
from longctx.results.compare.curves import CurvePoint, RunCurve
from longctx.results.statistics import Description
from longctx.storage import parquet, schemas

ROOT = Path(__file__).parents[4]
PUBLISHED = ROOT / "resources" / "results" / "mi355x-published.csv"


def curve(ttft: float, std: float | None = 0.01, n: int = 3, decode: float = 100.0, **options: Any) -> RunCurve:
    decoded = Description(n, decode, None if std is None else decode * 0.01)
    point = CurvePoint("prefill", 4096, Description(n, ttft, std and ttft * std), decoded)
    return RunCurve(options.pop("name", "run"), (point,), **options)


def verdicts(ours: RunCurve, theirs: RunCurve, **options: Any) -> dict[str, str]:
    return {row.metric: row.verdict for row in comparison.compare(ours, theirs, **options).rows}


SYSTEM = """# model: kimi-linear-48b-a3b
# hardware: {hardware}
# tensor_parallel_size: {tensor}
# kv_cache_dtype: fp8
prompt_tokens,ttft_s_mean,decode_tok_s_mean
1024,1,3
"""


def test_a_published_system_s_limits_are_the_planner_s() -> None:
    found = curves.read_curve(PUBLISHED).limits
    curve = next(curve for curve in published_curves.reference_curves() if curve.name == PUBLISHED.stem)
    assert list(found) == [1 << power for power in range(10, 27)], "doublings between the printed lengths too"
    assert {n: limit.ttft_s for n, limit in found.items()} == {n: curve.bound_s(n) for n in found}
    assert found[1 << 26].decode_tok_s == pytest.approx(29.5, abs=0.05), "docs/plan.md"


def test_a_table_that_does_not_tell_its_system_has_no_limits(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(SYSTEM.format(hardware="MI355X", tensor=8).replace("# model", "# models"))
    assert curves.read_curve(path).limits == {}


def test_published_table_is_read_with_its_notes() -> None:
    found = curves.read_curve(PUBLISHED)
    assert (found.gpu_count, len(found.points), found.synthetic_weights) == (8, 6, False)
    last = found.of_mode("prefill")[1 << 26]
    assert last.ttft_s == Description(3, 40171.67, 115.49)
    assert last.decode_tok_s == Description(3, 16.6, 0.0)
    assert last.rounding == {"ttft_s": pytest.approx(0.01), "decode_tok_s": pytest.approx(0.1)}


def test_probe_with_modes_and_other_column_names_is_read() -> None:
    found = curves.read_curve(ROOT / "resources" / "results" / "h200-probe.csv")
    assert found.synthetic_weights
    assert found.of_mode("decode_only")[1 << 23].decode_tok_s.mean == 68.7
    assert found.of_mode("decode_only")[1 << 23].ttft_s.mean is None
    assert found.of_mode("prefill")[1024].decode_tok_s.mean is None
    assert found.limits[1 << 23].decode_tok_s
    assert max(n for n, limit in found.limits.items() if limit.ttft_s) == 1 << 20, "none of what was not prefilled"


def test_summary_parquet_and_csv_give_the_same_curve(tmp_path: Path) -> None:
    rows = summary.summarise(makerows.campaign(), makerows.expected(), makerows.plan())
    folder = tmp_path / "june"
    parquet.write_rows(folder / "summary.parquet", schemas.SUMMARY, rows)
    export.write_csv(folder / "summary.csv", rows)
    one, other = curves.read_curve(folder / "summary.parquet"), curves.read_curve(folder / "summary.csv")
    assert one.points == other.points
    assert one.limits == other.limits
    assert {length: limit.ttft_s for length, limit in one.limits.items() if limit.ttft_s} == {
        row["length"]: row["ttft_bound_s"] for row in rows if row["ttft_bound_s"]
    }
    assert one.limits[1 << 23].decode_tok_s, "decode has a limit where nothing is prefilled"
    assert (one.name, one.gpu_count, one.synthetic_weights) == ("june", 1, True)
    assert (other.name, other.gpu_count, other.synthetic_weights) == ("june", 1, True)


@pytest.mark.parametrize(
    ("text", "said"),
    [("a,b\n1,2\n", "columns missing for a comparison: prompt_tokens"),
     ("prompt_tokens,ttft_s_mean,decode_tok_s_mean\n1024,fast,3\n", "ttft_s_mean is 'fast', not a number"),
     ("prompt_tokens,ttft_s_mean,decode_tok_s_mean\n,1,3\n", "a row has no prompt_tokens"),
     ("", "columns missing"),
     ("prompt_tokens,ttft_s_mean,decode_tok_s_mean\n1024,1\n", "the row of 1024 has not as many cells"),
     ("prompt_tokens,ttft_s_mean,decode_tok_s_mean\n1024,nan,3\n", "ttft_s_mean is 'nan', not a number"),
     (SYSTEM.format(hardware="MI355X", tensor=8).replace("fp8", "fp7"), "kv_cache_dtype: 'fp7' is not one of"),
     (SYSTEM.format(hardware="MI999", tensor=8), "hardware.gpu: 'MI999' is not in gpus.csv"),
     (SYSTEM.format(hardware="MI355X", tensor="all"), "tensor_parallel_size is 'all', not a number of GPUs"),
     (SYSTEM.format(hardware="MI355X", tensor=0), "tensor_parallel_size is '0', not a number of GPUs"),
     (SYSTEM.format(hardware="MI355X", tensor=8).replace("kimi-linear-48b-a3b", "Kimi"), "Kimi: neither a config"),
     (SYSTEM.format(hardware="MI355X", tensor=8).replace("fp8", "int3"), "kv_cache_dtype: 'int3' is not one of"),
     ("# n: three\nprompt_tokens,ttft_s_mean,decode_tok_s_mean\n1024,1,3\n", "n is 'three', not a number")],
)  # fmt: skip
def test_a_bad_table_is_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "other.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=said):
        curves.read_curve(path)


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        curves.read_curve(tmp_path / "summary.parquet")


@pytest.mark.parametrize(
    ("path", "said"),
    [("resources/results/h200-tp1", "is a folder; name a run's summary.parquet"),
     ("resources/results/h200-tp1/rows.parquet", "is no summary of this format"), ("config.yaml", "is no summary")],
)  # fmt: skip
def test_a_wrong_file_is_one_short_sentence_that_deletes_nothing(path: str, said: str) -> None:
    with pytest.raises(DataError, match=said) as raised:
        curves.read_curve(ROOT / path)
    assert "delete" not in str(raised.value)


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [(1.10, 1.00, "slower"), (0.90, 1.00, "faster"), (1.02, 1.00, "same"), (1.00, 1.00, "same")],
)
def test_verdict_of_ttft(ours: float, theirs: float, verdict: str) -> None:
    assert verdicts(curve(ours), curve(theirs))["ttft_s"] == verdict


def test_verdict_of_decode_is_the_other_way_round() -> None:
    assert verdicts(curve(1.0, decode=90.0), curve(1.0))["decode_tok_s"] == "slower"
    assert verdicts(curve(1.0, decode=110.0), curve(1.0))["decode_tok_s"] == "faster"


def test_noise_is_no_slowdown() -> None:
    assert verdicts(curve(1.10, std=0.2), curve(1.00, std=0.2))["ttft_s"] == "noise"


def ladder_of(factors: list[float], cv: float) -> RunCurve:
    described = [Description(3, factor, factor * cv) for factor in factors]
    return RunCurve(
        "run", tuple(CurvePoint("prefill", 1024 * (i + 1), d, Description()) for i, d in enumerate(described))
    )


def test_among_many_lengths_one_lucky_difference_is_no_slowdown() -> None:
    """5.2 % at a spread of 2 % is significant tested alone (p 0.03), and is to be expected once among 30."""
    alone = comparison.compare(ladder_of([1.052], 0.02), ladder_of([1.0], 0.02))
    assert [row.verdict for row in alone.rows] == ["slower"]
    among = comparison.compare(ladder_of([1.052] + [1.0] * 29, 0.02), ladder_of([1.0] * 30, 0.02))
    assert [row.verdict for row in among.rows] == ["unproven"] + ["same"] * 29
    assert not among.shuts()
    assert among.shuts(strict=True)
    everywhere = comparison.compare(ladder_of([1.052] * 30, 0.02), ladder_of([1.0] * 30, 0.02))
    assert len(everywhere.having("slower")) == 30


def test_one_pass_against_three_is_tested_with_their_spread() -> None:
    assert verdicts(curve(1.5, std=None, n=1), curve(1.0))["ttft_s"] == "slower"
    assert verdicts(curve(1.04, std=None, n=1), curve(1.0, std=0.02))["ttft_s"] == "noise"


def test_one_pass_each_proves_nothing() -> None:
    found = comparison.compare(curve(1.5, std=None, n=1), curve(1.0, std=None, n=1))
    assert [row.verdict for row in found.rows] == ["unproven", "same"]
    assert [row.metric for row in found.slower_unproven()] == ["ttft_s"]
    assert comparison.verdict_sentence([found]).startswith("No significant slowdown; 1 differ")


def test_threshold_is_the_callers() -> None:
    assert verdicts(curve(1.10), curve(1.00), threshold=0.2)["ttft_s"] == "same"


def test_lengths_that_only_one_side_has() -> None:
    rows = summary.summarise(makerows.campaign(faults=False), {})
    found = comparison.compare(curves.curve_from_summary(rows), curves.read_curve(PUBLISHED))
    said = {(row.mode, row.length, row.metric): row.verdict for row in found.rows}
    assert said["prefill", 2048, "ttft_s"] == "only_ours"
    assert said["prefill", 1 << 26, "ttft_s"] == "only_theirs"
    assert said["decode_only", 1 << 23, "decode_tok_s"] == "only_ours"
    assert ("decode_only", 1 << 23, "ttft_s") not in said


def test_a_rung_that_failed_here_is_lost_and_shuts_the_gate() -> None:
    rows = [makerows.row(length=1024), makerows.bad_row("server_died", length=1 << 20)]
    found = comparison.compare(curves.curve_from_summary(summary.summarise(rows, {})), curves.read_curve(PUBLISHED))
    assert [(row.length, row.metric) for row in found.having("lost")] == [
        (1 << 20, "ttft_s"),
        (1 << 20, "decode_tok_s"),
    ]
    assert found.shuts()
    assert "no value here where the other run has one: TTFT at 1Mi (prefill), decode at 1Mi" in (
        comparison.verdict_sentence([found])
    )


def test_runs_without_a_length_in_common_open_no_gate() -> None:
    found = comparison.compare(
        ladder_of([1.0], 0.01), RunCurve("June", (CurvePoint("prefill", 7, *[Description(3, 1, 0)] * 2),))
    )
    assert found.shuts()
    assert comparison.verdict_sentence([found]).endswith("no length in common with June, so nothing was compared.")


def test_what_else_differs_is_said() -> None:
    real, fake = curve(1.0, gpu="MI355X", gpu_count=8), curve(1.0, gpu="H200", gpu_count=1, synthetic_weights=True)
    assert comparison.cautions(comparison.compare(fake, real)) == [
        "Different systems: this run 1 × H200, random weights; the other 8 × MI355X."
    ]
    assert comparison.cautions(comparison.compare(fake, fake)) == [
        "Both runs had random weights: speeds are real, outputs mean nothing."
    ]
    assert comparison.cautions(comparison.compare(curve(1.0, synthetic_weights=True), curve(1.0)))[0].startswith(
        "This run"
    )
    assert comparison.cautions(comparison.compare(real, real)) == []
    filled = RunCurve("a", (CurvePoint("decode_only", 4096, Description(), Description(3, 10.0, 0.1)),))
    assert comparison.cautions(comparison.compare(filled, filled)) == [
        "In decode_only the KV cache was filled, not prefilled."
    ]


def test_filled_caches_are_never_compared_with_prefills() -> None:
    filled = RunCurve("a", (CurvePoint("decode_only", 4096, Description(), Description(3, 10.0, 0.1)),))
    assert {row.verdict for row in comparison.compare(filled, curve(1.0)).rows} == {"only_ours", "only_theirs"}


def test_per_gpu_scales_both_sides() -> None:
    ours, theirs = curve(2.0, gpu_count=1), curve(1.0, gpu_count=8)
    found = {row.metric: row.ratio for row in comparison.compare(ours, theirs, normalise=True).rows}
    assert found["ttft_s"] is not None
    assert found["ttft_s"].value == pytest.approx(2 / 8)
    assert found["decode_tok_s"] is not None
    assert found["decode_tok_s"].value == pytest.approx(8.0)
    assert comparison.compare(ours, curve(1.0), normalise=True).rows[0].verdict == "only_ours"


def test_sentence_names_the_worst() -> None:
    found = comparison.compare(curve(1.5), curve(1.0, name="June"))
    assert comparison.verdict_sentence([found]) == (
        "1 significant slowdown beyond 3%; the worst is 50.0% in TTFT at 4Ki (prefill) against June."
    )


def run_compare(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "compare.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)


def write_summary(folder: Path, factor: float, passes: int = 3) -> Path:
    rows = [row for row in makerows.campaign(faults=False, top="256Ki", passes=passes) if row["mode"] == "prefill"]
    for row in rows:
        row["ttft_s"] *= factor
    path = folder / "summary.parquet"
    parquet.write_rows(path, schemas.SUMMARY, summary.summarise(rows, {}))
    return path


@pytest.mark.process
def test_the_gate_opens_and_shuts(tmp_path: Path) -> None:
    base, slow = write_summary(tmp_path / "base", 1.0), write_summary(tmp_path / "slow", 1.2)
    same = run_compare("--ours", base, "--against", base)
    assert (same.returncode, same.stderr) == (0, "")
    assert "No significant slowdown." in same.stdout
    worse = run_compare("--ours", slow, "--against", base, "--out", tmp_path / "compare.parquet")
    assert worse.returncode == 3
    assert "slower" in worse.stdout
    back = parquet.read_rows(tmp_path / "compare.parquet", schemas.COMPARISON)
    assert {row["verdict"] for row in back if row["metric"] == "ttft_s"} == {"slower"}
    assert run_compare("--ours", slow, "--against", base, "--threshold", 0.5).returncode == 0


GIB = 2**30
# One MI355X with Kimi Linear, and the same where a release takes 4 GiB more for itself.
HELD = {"kv_capacity_tokens": 44_000_000, "kv_cache_bytes": 165 * GIB, "weights_bytes": 98 * GIB}
TAKEN = {"kv_capacity_tokens": 42_900_000, "kv_cache_bytes": 161 * GIB, "weights_bytes": 102 * GIB}


def holding(facts: dict[str, float], **options: Any) -> RunCurve:
    run = curve(1.0, **options)
    return replace(run, points=tuple(replace(point, facts=facts) for point in run.points))


def test_four_gib_more_per_gpu_shut_the_gate_though_nothing_is_slower() -> None:
    found = comparison.compare(holding(TAKEN), holding(HELD, name="last release"))
    assert {row.verdict for row in found.rows if row.metric in curves.METRICS} == {"same"}
    assert {row.metric for row in found.having("less_room")} == set(HELD)
    assert found.shuts()
    text = comparison.to_text([found])
    assert text.splitlines()[-1].startswith(
        "No significant slowdown; less room: KV capacity at 4Ki (prefill) -2.5% against"
    )
    assert not comparison.compare(holding(HELD), holding(TAKEN)).shuts()
    assert comparison.compare(holding(HELD), holding(TAKEN)).having("more_room")


def test_memory_in_use_counts_where_the_cache_has_a_fixed_size() -> None:
    before, after = ({**HELD, "gpu_memory_bytes": gib * GIB} for gib in (270, 274))
    found = comparison.compare(holding(after), holding(before))
    assert [row.metric for row in found.having("less_room")] == ["gpu_memory_bytes"]
    assert found.shuts()


def test_two_starts_of_one_release_hold_the_same() -> None:
    starts = {"kv_capacity_tokens": 9_798_743, "weights_bytes": 0.2 * GIB}, {"kv_capacity_tokens": 9_800_167}
    other = starts[1] | {"weights_bytes": 0.3 * GIB}
    found = comparison.compare(holding(starts[0]), holding(other))
    assert not found.shuts()
    assert "within 1% at 2 points: KV capacity, weights per GPU" in comparison.to_text([found])


def test_memory_of_other_gpus_or_of_a_run_that_tells_none_is_no_fault() -> None:
    one, two = holding(TAKEN, gpu="H200", gpu_count=1), holding(HELD, gpu="H200", gpu_count=2)
    for ours, theirs in ((one, two), (holding({}), holding(HELD)), (holding(TAKEN), curve(1.0))):
        assert not comparison.compare(ours, theirs).shuts()
    only = replace(holding(HELD), points=tuple(replace(p, length=1) for p in holding(HELD).points))
    assert comparison.compare(holding(HELD), only).nothing_shared


@pytest.mark.process
def test_the_gate_judges_what_the_summaries_say_of_memory(tmp_path: Path) -> None:
    base = write_summary(tmp_path / "base", 1.0)
    rows = [row for row in makerows.campaign(faults=False, top="256Ki") if row["mode"] == "prefill"]
    for row in rows:
        row["kv_capacity_tokens"] = round(row["kv_capacity_tokens"] * 0.9)
    parquet.write_rows(tmp_path / "less" / "summary.parquet", schemas.SUMMARY, summary.summarise(rows, {}))
    export.write_csv(tmp_path / "less" / "summary.csv", summary.summarise(rows, {}))
    for name in ("summary.parquet", "summary.csv"):
        found = run_compare("--ours", tmp_path / "less" / name, "--against", base, "--out", tmp_path / "out.parquet")
        assert found.returncode == 3
        assert "less room: KV capacity at 1Ki (prefill) -10.0%" in found.stdout.splitlines()[-1]
    back = parquet.read_rows(tmp_path / "out.parquet", schemas.COMPARISON)
    assert {(row["verdict"], row["p"]) for row in back if row["metric"] == "kv_capacity_tokens"} == {
        ("less_room", None)
    }


@pytest.mark.process
def test_the_strict_gate_wants_proof(tmp_path: Path) -> None:
    base, slow = write_summary(tmp_path / "base", 1.0, passes=1), write_summary(tmp_path / "slow", 1.2, passes=1)
    assert run_compare("--ours", slow, "--against", base).returncode == 0
    assert run_compare("--ours", slow, "--against", base, "--strict").returncode == 3


@pytest.mark.process
@pytest.mark.parametrize(
    ("options", "said"),
    [(["--threshold", "0"], "argument --threshold: 0 is not above 0"), (["--threshold", "-1"], "-1 is not above 0"),
     (["--confidence", "1.5"], "1.5 is not above 0 and below 1"), (["--threshold", "x"], "argument --threshold"),
     (["--per-gpu"], "does not say how many GPUs it ran on")],
)  # fmt: skip
def test_an_option_that_makes_no_sense_is_refused(tmp_path: Path, options: list[str], said: str) -> None:
    base = tmp_path / "base.csv"
    base.write_text("prompt_tokens,ttft_s_mean,decode_tok_s_mean\n1024,1,3\n")
    found = run_compare("--ours", base, "--against", base, *options)
    assert found.returncode not in (0, 3)
    assert said in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.process
def test_nothing_to_compare_with_is_one_sentence(tmp_path: Path) -> None:
    found = run_compare("--ours", tmp_path / "summary.parquet")
    assert found.returncode == 1
    assert found.stderr.startswith("error: config key compare: nothing to compare with")
    assert "Traceback" not in found.stderr


@pytest.mark.process
def test_one_slower_rung_of_a_real_run_shuts_the_gate(tmp_path: Path) -> None:
    measured = ROOT / "resources" / "results" / "h200-tp1" / "summary.parquet"
    assert run_compare("--ours", measured, "--against", measured).returncode == 0
    rows = parquet.read_rows(measured, schemas.SUMMARY)
    for row in rows:
        if (row["mode"], row["length"]) == ("prefill", 1 << 18):
            row["ttft_s_mean"] *= 1.1
    parquet.write_rows(tmp_path / "slower" / "summary.parquet", schemas.SUMMARY, rows)
    found = run_compare("--ours", tmp_path / "slower" / "summary.parquet", "--against", measured)
    assert found.returncode == 3
    assert found.stdout.splitlines()[-1] == (
        "1 significant slowdown beyond 3%; the worst is 10.0% in TTFT at 256Ki (prefill) against h200-tp1."
    )
    per_gpu = run_compare("--ours", measured, "--against", PUBLISHED, "--per-gpu")
    assert "h200-tp1 / 8 × MI355X (published) per GPU" in per_gpu.stdout
