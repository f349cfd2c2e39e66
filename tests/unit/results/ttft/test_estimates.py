"""Estimates in the summary stage: their own tables and columns, and a failure that costs nothing else."""

from pathlib import Path
from typing import Any

import makesamples
import pytest
from longctx.campaign.campaign import Campaign, from_dict
from longctx.lengths import ladder
from longctx.modes.sampled.results import SampledResults
from longctx.results import export
from longctx.results.collect import CollectedRows
from longctx.results.compare import comparison, curves
from longctx.storage import parquet, schemas

MI = 2**20
CONFIG: dict[str, Any] = {
    "model": {"source": "synthetic", "weights": "dummy", "geometry": "resources/models/kimi-linear-48b-a3b.json"},
    "hardware": {"gpu": "H200"}, "modes": ["prefill", "sampled"], "lengths": ["64Ki", "1Mi"],
    "sampled": {"from": "1Ki", "to": "8Mi"}, "serve": {"max_num_batched_tokens": makesamples.CHUNK},
}  # fmt: skip


@pytest.fixture
def campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Campaign:
    monkeypatch.chdir(tmp_path)
    return from_dict(CONFIG)


def write(campaign: Campaign) -> Path:
    """Write the tables of samples and one real prefill; return the folder."""
    rows = [*makesamples.campaign(), makesamples.real(MI, role="cold")]
    rows = [row | {"recipe_hash": campaign.recipe_hash(row["mode"]), "source": "a.parquet"} for row in rows]
    export.write_summary(campaign, CollectedRows(rows), campaign.results / "summary.parquet")
    return campaign.results


def test_a_summary_has_estimates_and_chunks_beside_it(campaign: Campaign) -> None:
    folder = write(campaign)
    estimates = parquet.read_rows(folder / "estimates.parquet", schemas.ESTIMATES)
    assert [row["length"] for row in estimates] == ladder("1Ki", "8Mi")
    assert all(row["ttft_low_s"] < row["ttft_estimate_s"] < row["ttft_high_s"] for row in estimates)
    assert [row["length"] for row in estimates if row["ttft_measured_s"]] == [MI]
    deep = estimates[-1]
    assert 0 < deep["last_chunk_bound_s"] < deep["last_chunk_s"], "8Mi on an H200 is above the hardware's limit"
    chunks = parquet.read_rows(folder / "chunks.parquet", schemas.CHUNKS)
    assert [row["depth"] for row in chunks] == list(range(0, MI, makesamples.CHUNK))
    summary = {(row["mode"], row["length"]): row for row in parquet.read_rows(folder / "summary.parquet")}
    sampled, real = summary["sampled", MI], summary["prefill", MI]
    assert sampled["ttft_estimate_s"] == next(row["ttft_estimate_s"] for row in estimates if row["length"] == MI)
    assert (sampled["ttft_s_mean"], sampled["prefill_s_mean"], sampled["energy_j_mean"]) == (None, None, None)
    assert real["ttft_estimate_s"] is None
    assert real["ttft_s_mean"] is not None


def test_a_failing_estimate_costs_itself(campaign: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("no chunk")

    monkeypatch.setattr(SampledResults, "estimates", fail)
    monkeypatch.setattr(SampledResults, "chunk_curve", fail)
    folder = write(campaign)
    estimates = parquet.read_rows(folder / "estimates.parquet", schemas.ESTIMATES)
    assert {row["reason"] for row in estimates} == {"the estimate failed: ZeroDivisionError('no chunk')"}
    assert {row["ttft_estimate_s"] for row in estimates} == {None}
    summary = parquet.read_rows(folder / "summary.parquet", schemas.SUMMARY)
    assert next(row["ttft_s_mean"] for row in summary if row["mode"] == "prefill" and row["length"] == MI) is not None


def test_estimates_are_compared_with_nothing(campaign: Campaign) -> None:
    curve = curves.read_curve(write(campaign) / "summary.parquet")
    compared = comparison.compare(curve, curve)
    assert {row.mode for row in compared.rows if row.metric == "ttft_s"} == {"prefill"}
    assert "Estimated TTFT is not compared: only measured values are." in comparison.cautions(compared)
    from_csv = curves.read_curve(campaign.results / "summary.csv")
    assert (from_csv.estimates, from_csv.of_mode("sampled")[MI].ttft_s.mean) == (True, None)
