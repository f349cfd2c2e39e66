"""The fault harness in a bounded form; tests/benchmarks/harness_kills.py is the long one, on real vLLM."""

import random
from collections import Counter
from pathlib import Path

import pytest
from harness import SUMMARY, Harness, invariants, timeless
from pipeline import Pipeline, copy

REPEATED, ONE = [("cold", 0), ("repeat", 1)], [("cold", 0)]
POINTS = {f"{length}/pass{p}": REPEATED if length == 256 else ONE for length in (256, 512) for p in (1, 2)}
CHANGES = {"passes": 2, "repeats": {"count": 2, "up_to": 256}}
KILLS, SEED = 3, 1


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, prepared_folder: Path) -> list[dict[str, object]]:
    pipeline = copy(prepared_folder, tmp_path_factory.mktemp("undisturbed") / "work")
    pipeline.configure(**CHANGES)
    pipeline.summarise()
    invariants(pipeline, POINTS)
    return timeless(pipeline)


@pytest.mark.slow
def test_random_kills_leave_the_results_of_an_undisturbed_run(
    prepared: Pipeline, undisturbed: list[dict[str, object]]
) -> None:
    prepared.configure(**CHANGES)
    prepared.faults(measured={"ttft_s": 0.3})
    harness = Harness(prepared, "fakeserver.py", 6.0, random.Random(SEED))
    harness.violate(KILLS)
    done = prepared.run(SUMMARY)
    assert done.code == 0, (harness.killed, done.output)
    invariants(prepared, POINTS)
    assert timeless(prepared) == undisturbed, harness.killed
    sent = Counter(prepared.requests())
    assert len(sent) == sum(map(len, POINTS.values()))
    assert sum(sent.values()) - len(sent) <= len(harness.killed), (harness.killed, sent)
