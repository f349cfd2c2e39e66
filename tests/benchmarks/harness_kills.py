"""The long fault harness: kill -9 at random moments of real vLLM campaigns on the CPU, until 20 kills are done.

Two short lengths, two passes; each campaign is finished by the same command and must equal an undisturbed one in all
but times. Takes about half an hour on two cores.

    .venv/bin/python tests/benchmarks/harness_kills.py [KILLS] [SEED]
"""

import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "pipeline"), str(TESTS.parent / "scripts")]

import pipeline as pipelines  # noqa: E402
from harness import SUMMARY, Harness, invariants, timeless  # noqa: E402

# A start of vLLM takes up to half a minute here, a point not much more.
LONGEST_S, PATIENCE_S = 75.0, 900.0
POINTS = {f"{length}/pass{p}": [("cold", 0), ("repeat", 1)] for length in ("1Ki", "2Ki") for p in (1, 2)}


def real(folder: Path) -> pipelines.Pipeline:
    """A checkout that serves with the CPU vLLM of this one."""
    folder.mkdir()
    made = pipelines.make(folder)
    made.configure(
        lengths=["1Ki", "2Ki"],
        passes=2,
        repeats={"count": 2, "up_to": "2Ki"},
        serve={"python": str(TESTS.parent / ".venv-vllm" / "bin" / "python"), "start_timeout_s": 300},
    )
    return made


def main() -> None:
    kills, seed = (int(word) for word in (sys.argv[1:] + ["20", "1"][len(sys.argv) - 1 :]))
    pipelines.PATIENCE_S = PATIENCE_S
    chance, done = random.Random(seed), 0
    with tempfile.TemporaryDirectory() as name:
        calm = real(Path(name) / "undisturbed")
        calm.summarise()
        invariants(calm, POINTS)
        campaigns = 0
        while done < kills:
            campaigns += 1
            folder = Path(name) / "work"
            shutil.rmtree(folder, ignore_errors=True)
            violated = real(folder)
            harness = Harness(violated, "vllm.entrypoints", LONGEST_S, chance)
            start = time.monotonic()
            try:
                harness.violate(kills - done)
                finished = violated.run(SUMMARY)
                assert finished.code == 0, (harness.killed, finished.output)
                invariants(violated, POINTS)
                assert timeless(violated) == timeless(calm), harness.killed
                assert not harness.leaked(), harness.killed
            finally:
                violated.end()
            done += len(harness.killed)
            print(
                f"campaign {campaigns}: {len(harness.killed)} kills in {time.monotonic() - start:.0f} s:"
                f" {', '.join(harness.killed)}",
                flush=True,
            )
    print(
        f"{done} kills in {campaigns} campaigns (seed {seed}): no row lost or doubled, no process and no"
        " shared memory left, and each summary equals the undisturbed one in all but times"
    )


if __name__ == "__main__":
    main()
