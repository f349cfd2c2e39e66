"""Other runs beside this one: overlays in figures and report, and the gate that `snakemake compare` is."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from longctx.storage import parquet, schemas
from pipeline import Pipeline

PUBLISHED, H200 = "resources/results/mi355x-published.csv", "resources/results/h200-tp1/summary.parquet"


@pytest.fixture
def compared(prepared: Pipeline) -> Pipeline:
    """1Ki tokens in two passes, with the published run and the one on an H200 beside them."""
    prepared.configure(lengths=[1024], passes=2, compare=[PUBLISHED, H200])
    prepared.faults(measured={"ttft_s": 0.3})
    done = prepared.run()
    assert done.code == 0, done.output
    steady(prepared)
    return prepared


def steady(pipeline: Pipeline) -> None:
    """Write into the summary what a quiet machine measures: no late TTFT, and 1 % of spread in all that is compared."""
    rows = pipeline.summary()
    for row in rows:
        row["ttft_s_mean"], row["ttft_s_n"], row["n_late"] = row["ttft_s_mean"] or row["prefill_s_mean"], row["n"], 0
        for name in ("ttft_s", "decode_tok_s"):
            row[f"{name}_std"] = 0.01 * row[f"{name}_mean"]
    path = pipeline.results / "summary.parquet"
    before = path.stat()
    parquet.write_rows(path, schemas.SUMMARY, rows)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def faster(pipeline: Pipeline, name: str, factor: float) -> str:
    """Write this campaign's own summary as another run that was `factor` times faster; return its path."""
    rows: list[dict[str, Any]] = pipeline.summary()
    for row in rows:
        row["ttft_s_mean"] /= factor
        row["ttft_s_std"] /= factor
    path = Path("others") / name / "summary.parquet"
    parquet.write_rows(pipeline.folder / path, schemas.SUMMARY, rows)
    return str(path)


def gate(pipeline: Pipeline, *against: str) -> tuple[int, str]:
    """Return the code and the output of scripts/compare.py, run by itself."""
    script = str(pipeline.folder / "scripts" / "compare.py")
    others = [word for path in against for word in ("--against", path)]
    done = pipeline.tool(sys.executable, script, "--config-file", "config.yaml", *others)
    return done.returncode, done.stdout + done.stderr


def test_other_runs_are_drawn_and_the_gate_follows_the_configuration(compared: Pipeline) -> None:
    report = (compared.results / "report.md").read_text()
    for name in ("8 × MI355X (published)", "h200-tp1"):
        assert f"Against {name}" in report
        for figure in ("ttft", "decode"):
            assert name in (compared.results / "figures" / f"{figure}.svg").read_text()
    assert "h200-tp1 (synthetic: random weights)" in (compared.results / "figures" / "ttft.svg").read_text()

    same, fast = faster(compared, "same", 1.0), faster(compared, "fast", 10.0)
    code, said = gate(compared)
    assert code == 3, "a tenth of a GPU node, and three times the TTFT"
    assert "slower" in said
    assert gate(compared, same)[0] == 0
    code, said = gate(compared, fast)
    assert code == 3
    assert "against fast" in said.splitlines()[-1]

    compared.configure(compare=[same])
    assert compared.run("compare").code == 0
    assert compared.run("compare").jobs == {}
    compared.configure(compare=[fast])
    shut = compared.run("compare")
    assert shut.code != 0, "what was compared before opens no gate"
    assert "1 significant slowdown beyond 3%" in shut.output
    compared.configure(compare_threshold=20)
    assert compared.run("compare").code == 0
    assert len(compared.requests()) == 2, "nothing was measured for it"


def test_a_comparison_with_nothing_is_refused_before_anything_is_measured(prepared: Pipeline) -> None:
    done = prepared.run("compare")
    assert done.code != 0
    assert "config key compare: nothing to compare with" in done.output
    assert prepared.requests() == []
