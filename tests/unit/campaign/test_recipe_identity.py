"""The identity of a campaign: shipped campaigns and measured recipes keep their hashes."""

import hashlib
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
import yaml
from longctx.campaign.campaign import Campaign, load
from longctx.campaign.mode import MODES
from shipped import CAMPAIGNS, ROOT, command_files, read_campaign

# Computed at the commit that moved the library into packages. A new hash means that finished measurements run again.
PINNED: dict[str, dict[str, str]] = orjson.loads((ROOT / "tests" / "data" / "campaign_hashes.json").read_bytes())
RESULTS = sorted(path.parent for path in (ROOT / "resources" / "results").glob("*/recipe.yaml"))


def sha256(value: Any) -> str:
    """Return the hash of `value` with its keys in their order: a Parquet, a file and Snakemake's params keep it."""
    return hashlib.sha256(orjson.dumps(value)).hexdigest()[:16]


# The modes of the first version, whose requests share one hash; a later mode's have one of their own.
FIRST_MODES = ("prefill", "reuse", "decode_only")


def hashes(campaign: Campaign) -> dict[str, str]:
    def requests(*modes: str) -> str:
        return sha256([(point.name, campaign.requests(point)) for mode in modes for point in campaign.points(mode)])

    return {
        "config": campaign.labels["config_hash"],
        "file": sha256(campaign.config.plain()),
        "plan_settings": sha256(campaign.plan_settings()),
        "requests": requests(*FIRST_MODES),
        **{f"requests of {mode}": requests(mode) for mode in MODES if mode not in FIRST_MODES},
        **{f"recipe of {mode}": campaign.recipe_hash(mode) for mode in MODES},
    }


@pytest.mark.parametrize("path", [ROOT / "config.yaml", *CAMPAIGNS], ids=lambda path: path.stem)
def test_a_shipped_campaign_keeps_its_hashes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    files = [] if path.stem == "config" else command_files(path)
    assert hashes(read_campaign(*files)) == PINNED[path.stem]


def test_every_pinned_campaign_is_shipped() -> None:
    assert set(PINNED) == {"config", *(path.stem for path in CAMPAIGNS)}


@pytest.mark.parametrize("folder", RESULTS, ids=lambda folder: folder.name)
def test_a_recipe_file_has_the_hashes_of_its_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    campaign, rows = load(folder / "recipe.yaml"), pq.read_table(folder / "rows.parquet")
    assert rows.schema.metadata[b"config_hash"].decode() == campaign.labels["config_hash"]
    recipes = set(zip(rows["mode"].to_pylist(), rows["recipe_hash"].to_pylist(), strict=True))
    assert recipes == {(mode, campaign.recipe_hash(mode)) for mode, _ in recipes}
    saved = yaml.safe_load((folder / "recipe.yaml").read_text())
    assert orjson.dumps(campaign.config.plain()) == orjson.dumps(saved), "the same keys in the same order"
