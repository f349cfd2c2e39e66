"""What each mode gives the summary, and what the stages before it never pay for."""

import subprocess
import sys
from pathlib import Path

import pytest
from longctx.campaign.mode import MODES, campaign_facet
from longctx.results.mode import METRICS, results_facet

SCRIPTS = Path(__file__).parents[3] / "scripts"


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_without_a_prefill_has_no_ttft(mode: str) -> None:
    facet = results_facet(mode)
    assert set(facet.metrics) <= set(METRICS)
    assert ("ttft_s" in facet.metrics) == campaign_facet(mode).measures_ttft
    assert campaign_facet(mode).measures_ttft or not facet.ttft_is_cold


@pytest.mark.process
def test_measuring_and_starting_a_run_load_no_statistics() -> None:
    code = (
        "import sys; import longctx.measure.protocol, longctx.run.node_request, longctx.run.startup;"
        " import longctx.results.campaign_results; print({'pandas', 'scipy.stats'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=SCRIPTS, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "set()\n"
