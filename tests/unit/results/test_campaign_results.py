"""A campaign's results: what is read, what is named as damaged, and which numbers are called synthetic."""

import json
from pathlib import Path

import makerows
import pytest
from longctx.campaign.campaign import from_dict
from longctx.errors import DataError
from longctx.results import campaign_results, fits, summary
from longctx.results.campaign_results import FILLED_KV, RANDOM_WEIGHTS, CampaignResults
from longctx.storage import parquet, schemas

CAMPAIGN = from_dict({"model": {"source": "synthetic", "weights": "dummy"}, "lengths": ["1Ki"]})


def written(folder: Path) -> dict[str, Path]:
    """Write the tables of a small campaign and return their paths as CampaignResults.read takes them."""
    rows = makerows.campaign(top="256Ki", passes=1, faults=False)
    summarised = summary.summarise(rows, {}, makerows.plan())
    tables = {
        "summary": (schemas.SUMMARY, summarised),
        "fits": (schemas.FITS, fits.fits(summarised)),
        "rows": (schemas.MEASUREMENTS, rows),
        "servers": (schemas.SERVERS, makerows.servers(rows)),
        "plan": (schemas.PLAN, makerows.plan()),
    }
    for name, (schema, table) in tables.items():
        metadata = {campaign_results.DAMAGED: json.dumps(["a.parquet: torn"])}
        parquet.write_rows(folder / f"{name}.parquet", schema, table, metadata)
    return {name: folder / f"{name}.parquet" for name in tables}


def test_everything_is_read_and_damaged_files_are_named(tmp_path: Path) -> None:
    paths, validation = written(tmp_path), tmp_path / "1Ki.parquet"
    validation.write_bytes(b"PAR1 torn")
    results = CampaignResults.read(CAMPAIGN, **paths, validation=[validation, tmp_path / "2Ki.parquet"])
    assert results.modes == ["prefill", "reuse", "decode_only"]
    assert [row["length"] for row in results.of_mode("reuse")] == [1 << 18]
    assert (results.gpu_count, results.price) == (1, None)
    assert results.subtitle == "kimi-linear-48b-a3b · 1 × NVIDIA H200 · vLLM 0.25.1 · fp8_e4m3 KV"
    assert results.damaged[0] == "a.parquet: torn"
    assert [text.partition(":")[0] for text in results.damaged[1:]] == [str(validation)]
    assert (len(results.plan), results.validation) == (len(makerows.plan()), [])


@pytest.mark.parametrize("plan", ["", "missing.parquet"])
def test_a_plan_may_be_unknown_but_a_summary_may_not(tmp_path: Path, plan: str) -> None:
    paths = written(tmp_path) | {"plan": Path(plan)}
    assert CampaignResults.read(CAMPAIGN, **paths).plan == []
    paths["summary"].unlink()
    with pytest.raises(DataError):
        CampaignResults.read(CAMPAIGN, **paths)


def test_synthetic_numbers_are_named_by_mode() -> None:
    rows = [
        makerows.row(),
        makerows.row("decode_only"),
        makerows.row("reuse", synthetic_weights=False, prefix_caching=True),
    ]
    results = CampaignResults("c", summary=summary.summarise(rows, {}))
    assert results.synthetic_labels() == [RANDOM_WEIGHTS, FILLED_KV]
    assert results.synthetic_labels("prefill") == [RANDOM_WEIGHTS]
    assert results.synthetic_labels("prefill", "reuse") == [RANDOM_WEIGHTS]
    assert results.synthetic_labels("reuse") == []
    assert CampaignResults("empty").synthetic_labels() == []


def test_the_subtitle_says_what_is_known() -> None:
    gpu = {"model": "m", "gpu": "H200", "gpu_count": 8, "vllm_version": "0.25.1", "kv_cache_dtype": "fp8_e4m3"}
    assert campaign_results.subtitle([{"model": None}, gpu]) == "m · 8 × H200 · vLLM 0.25.1 · fp8_e4m3 KV"
    assert campaign_results.subtitle([{"model": "m", "gpu_count": 0, "cpu": "a CPU"}]) == "m · a CPU"
    assert campaign_results.subtitle([]) == ""
