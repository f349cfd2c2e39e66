"""The recipe and the page for servers over several nodes say what the planner and vLLM say."""

import subprocess
import sys

import pytest
from longctx.campaign.campaign import Campaign
from longctx.plan.campaign_plan import plan_campaign
from shipped import ROOT, read_campaign

PAGE = (ROOT / "docs" / "multi-node.md").read_text()
KIMI = "moonshotai/Kimi-Linear-48B-A3B-Instruct"


@pytest.fixture
def campaign() -> Campaign:
    return read_campaign(ROOT / "workflow/campaigns/multinode.yaml")


def test_the_campaign_holds_256mi_tokens_by_the_plan(campaign: Campaign) -> None:
    rows = plan_campaign(campaign).rows
    assert [(row["length"] >> 20, row["fits"], row["reason"]) for row in rows] == [
        (length, True, None) for length in (64, 128, 256)
    ]
    assert rows[-1]["ttft_bound_s"] is None, "nothing is prefilled"


@pytest.mark.parametrize("version", ["0.25.1", "0.32.0"])
def test_its_flags_are_vllms(campaign: Campaign, version: str) -> None:
    known = set((ROOT / f"tests/data/server_logs/{version}-flags.txt").read_text().split())
    ours = {word for word in campaign.recipe("decode_only", 256 << 20).extra_args if word.startswith("--")}
    assert ours == {"--nnodes", "--node-rank", "--master-addr", "--distributed-executor-backend"}
    assert ours | {"--headless"} <= known


@pytest.mark.process
@pytest.mark.parametrize(("gpu", "utilization"), [("MI355X", "0.952"), ("H200", "0.95")])
def test_the_page_shows_what_the_planner_prints(gpu: str, utilization: str) -> None:
    said = subprocess.run(
        [
            sys.executable,
            ROOT / "scripts/plan.py",
            "--model",
            KIMI,
            "--gpu",
            gpu,
            "--count",
            "8",
            "--gpu-memory-utilization",
            utilization,
            "--vllm-version",
            "0.25.1",
            "--hold",
            "256Mi",
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert f"```\n{said[said.index('Holding') :].strip()}\n```" in PAGE
    assert "**Not run by the authors**" in PAGE
