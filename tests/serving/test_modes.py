"""All modes through the real Snakemake and a real vLLM on the CPU, one server for each mode."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from busy import told
from longctx.results.campaign_results import FILLED_KV
from longctx.storage import parquet, schemas

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
PREFILL, REUSE, DECODE, SAMPLED = (1, 17, 1023, 1024, 4096), (4096,), (1024, 16384), (1024, 4096, 16384)
CHUNK = 2048  # vLLM's own choice on a CPU
QUERIES, NEW_TOKENS, SUFFIX_TOKENS = 2, 16, 64
LABELS = {1024: "1Ki", 4096: "4Ki", 16384: "16Ki"}
CONFIG: dict[str, Any] = {
    "lengths": list(PREFILL), "passes": 1, "max_new_tokens": NEW_TOKENS,
    "modes": ["prefill", "reuse", "decode_only", "sampled"],
    "reuse": {"lengths": list(REUSE), "queries": QUERIES, "suffix_tokens": SUFFIX_TOKENS},
    "decode_only": {"lengths": list(DECODE)}, "sampled": {"lengths": list(SAMPLED), "whole": [4096]},
    "model": {"source": "synthetic", "weights": "dummy"}, "corpus": {"source": str(ROOT / "scripts")},
    # A machine busy with other tests makes clocks disagree.
    "measure": {"clock_tolerance": 100},
    "serve": {
        "scope": "campaign", "python": str(PYTHON), "kv_cache_dtype": "fp8_e4m3", "cpu_kv_cache_gib": 1,
        "enforce_eager": True, "headroom_tokens": 128, "start_timeout_s": 900,
        "extra_args": ["--distributed-executor-backend", "uni"], "env": {"VLLM_ENABLE_V1_MULTIPROCESSING": 0},
    },
}  # fmt: skip
pytestmark = [
    pytest.mark.serving,
    pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-vllm"),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of one run of everything."""
    folder = tmp_path_factory.mktemp("modes")
    (folder / "campaign.yaml").write_text(yaml.safe_dump(CONFIG))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "snakemake",
            "--snakefile",
            ROOT / "Snakefile",
            "--configfile",
            "campaign.yaml",
            "--cores",
            "1",
        ],
        cwd=folder,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "results"


def rows(results: Path, length: int, run: str = "pass1") -> list[dict[str, Any]]:
    """The measured rows of a point, without warm-ups."""
    path = results / "measurements" / LABELS.get(length, str(length)) / f"{run}.parquet"
    return [row for row in parquet.read_rows(path, schemas.MEASUREMENTS) if row["role"] != "warmup"]


def sound(row: dict[str, Any]) -> bool:
    """Whether nothing speaks against a row but a busy machine."""
    return row["status"] == "ok" and not told(row)


@pytest.fixture
def summary(results: Path) -> dict[tuple[str, int], dict[str, Any]]:
    found = parquet.read_rows(results / "summary.parquet", schemas.SUMMARY)
    return {(row["mode"], row["length"]): row for row in found}


@pytest.mark.parametrize("length", PREFILL)
def test_a_cold_prompt_has_the_length_that_its_label_says(results: Path, length: int) -> None:
    (row,) = rows(results, length)
    assert sound(row), row["detail"]
    assert (row["prompt_tokens"], row["completion_tokens"], row["cached_tokens"]) == (length, NEW_TOKENS, 0)
    assert row["ttft_s"] > row["prefill_s"] > 0
    assert row["filled_kv"] is False


def test_hot_queries_are_proven_by_their_cached_tokens(results: Path) -> None:
    for length in REUSE:
        cold, *hot = rows(results, length, "reuse-pass1")
        assert (cold["role"], cold["status"], cold["cached_tokens"]) == ("cold", "ok", 0), cold["detail"]
        assert [(row["role"], row["request_index"]) for row in hot] == [("reuse", n + 1) for n in range(QUERIES)]
        for row in hot:
            assert sound(row), row["detail"]
            assert row["prompt_tokens"] == length + SUFFIX_TOKENS
            assert length - row["block_size"] <= row["cached_tokens"] <= length
            assert row["prefix_caching"] is True


def test_a_filled_cache_gives_decode_and_no_ttft(results: Path) -> None:
    for length in DECODE:
        (row,) = rows(results, length, "decode_only-pass1")
        assert sound(row), row["detail"]
        assert (row["role"], row["filled_kv"], row["prompt_tokens"]) == ("decode_only", True, length)
        assert [row[name] for name in ("ttft_s", "prefill_s", "overhead_s")] == [None] * 3
        assert row["decode_tok_s"] > 0
        assert row["external_hit_tokens"] == length - 1, "the connector pretended to have all but the last token"
        (server,) = parquet.read_rows(
            results / "servers" / LABELS[length] / "decode_only-pass1.parquet", schemas.SERVERS
        )
        assert "DecodeBenchConnector" in " ".join(server["command"])


def test_a_sample_claims_what_it_was_told_to_and_nothing_else(results: Path) -> None:
    for length in SAMPLED:
        short, long, *others = rows(results, length, "sampled-pass1")
        for row, chunks in ((short, 1), (long, 3)):
            assert sound(row), row["detail"]
            claimed = max(0, length - chunks * CHUNK)
            assert row["max_num_batched_tokens"] == CHUNK
            told = [row[name] for name in ("prompt_tokens", "claimed_tokens", "cached_tokens", "external_hit_tokens")]
            assert told == [length, claimed, claimed, claimed]
            assert [row[name] for name in ("ttft_s", "prefill_s", "decode_tok_s")] == [None] * 3
            assert row["sample_prefill_s"] > 0
            assert row["overhead_s"] is not None
            assert row["filled_kv"] is (claimed > 0)
            assert row["sm_clock_mhz"] is row["throttle_reasons"] is None, "no GPU here"
        assert len([row for row in others if row["role"] == "whole"]) == (length == 4096)


def test_a_whole_prompt_beside_samples_is_a_real_prefill(results: Path) -> None:
    (row,) = (row for row in rows(results, 4096, "sampled-pass1") if row["role"] == "whole")
    assert (row["status"], row["claimed_tokens"], row["cached_tokens"]) == ("ok", None, 0), row["detail"]
    assert row["ttft_s"] > row["prefill_s"] > 0
    assert row["sample_prefill_s"] is None
    assert row["filled_kv"] is False


def test_estimates_stand_in_a_table_of_their_own(results: Path) -> None:
    estimates = {row["length"]: row for row in parquet.read_rows(results / "estimates.parquet", schemas.ESTIMATES)}
    assert set(estimates) == set(SAMPLED)
    for row in estimates.values():
        assert 0 <= row["ttft_low_s"] <= row["ttft_estimate_s"] <= row["ttft_high_s"], row["reason"]
    assert estimates[4096]["ttft_measured_s"] > 0


def test_modes_are_summarised_apart(results: Path, summary: dict[tuple[str, int], dict[str, Any]]) -> None:
    keys = [*(("prefill", n) for n in PREFILL), *(("reuse", n) for n in REUSE), *(("decode_only", n) for n in DECODE)]
    keys += [("sampled", n) for n in SAMPLED]
    assert list(summary) == keys
    several = {"reuse": QUERIES, "sampled": 2}
    counted = {key: row["n"] for key, row in summary.items() if key != ("sampled", max(SAMPLED))}
    assert counted == {key: several.get(key[0], 1) for key in counted}
    assert summary["sampled", max(SAMPLED)]["n"] >= 2, "more where the cost of a chunk seems to bend"
    for (mode, length), row in summary.items():
        assert row["synthetic_weights"] is True
        assert row["filled_kv"] is (
            None if mode in ("prefill", "reuse") or (mode, length) == ("sampled", 1024) else True
        )
        if not row["n_late"]:  # on a busy machine
            assert (row["ttft_s_mean"] is None) == (mode in ("decode_only", "sampled"))
        assert (row["decode_tok_s_mean"] is None) == (mode == "sampled")
        if mode == "prefill":
            (measured,) = rows(results, length)
            assert row["ttft_s_mean"] == (None if row["n_late"] else measured["ttft_s"])
            assert row["decode_tok_s_mean"] == measured["decode_tok_s"], "nothing else is in this mean"
    (filled,) = rows(results, 1024, "decode_only-pass1")
    assert summary["decode_only", 1024]["decode_tok_s_mean"] == filled["decode_tok_s"]
    assert summary["reuse", 4096]["cached_tokens_min"] > 0


def test_reports_and_figures_say_what_is_not_real(results: Path) -> None:
    for name in ("ttft", "decode", "amortisation"):
        assert (results / "figures" / f"{name}.png").stat().st_size > 10_000
        assert "synthetic: random weights" in drawn(results / "figures" / f"{name}.svg")
    assert "KV cache filled, no prefill" in drawn(results / "figures" / "decode.svg")
    assert "KV cache filled, no prefill" not in drawn(results / "figures" / "ttft.svg")
    for name in ("report.md", "report.html"):
        report = (results / name).read_text()
        assert "synthetic: random weights" in report
        assert FILLED_KV in report
        assert "Decode throughput with a filled KV cache (no prefill, so no TTFT)" in report
        assert "What a resident prefix buys" in report


def drawn(path: Path) -> str:
    """The texts of a figure, which Matplotlib keeps beside the glyphs' outlines."""
    return path.read_text()


def test_the_difference_between_a_filled_and_a_prefilled_cache_is_reported(
    results: Path, summary: dict[tuple[str, int], dict[str, Any]]
) -> None:
    report = (results / "report.md").read_text()
    section = report.partition("Filled cache against real prefill")[2]
    share = summary["decode_only", 1024]["decode_tok_s_mean"] / summary["prefill", 1024]["decode_tok_s_mean"] - 1
    line = next(line for line in section.splitlines() if re.match(r"\| *1Ki", line))
    assert f"{share:+.1%}" in line
    assert json.loads((results / "status.json").read_bytes())
