"""The pipeline's own cost per point, beyond the server's start and its requests, and of a run with nothing to do.

Real Snakemake, the stand-in server; beside them bare Snakemake on an empty workflow, in the same run.

    .venv/bin/python tests/benchmarks/bench_pipeline.py [POINTS]
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "pipeline"), str(Path(__file__).parents[2] / "scripts")]

from pipeline import SNAKEMAKE, Pipeline, make  # noqa: E402

REPETITIONS = 3


def seconds(pipeline: Pipeline) -> float:
    start = time.monotonic()
    pipeline.summarise()
    return time.monotonic() - start


def bare_s(folder: Path) -> float:
    """Snakemake alone, with nothing to do either."""
    folder.mkdir()
    (folder / "Snakefile").write_text("rule one:\n    output: 'made'\n    shell: 'touch made'\n")
    (folder / "made").touch()
    start = time.monotonic()
    subprocess.run([SNAKEMAKE, "--cores", "1"], cwd=folder, capture_output=True, check=True)
    return time.monotonic() - start


def spent_s(pipeline: Pipeline, points: list[str]) -> float:
    """What servers took to start and requests, warm-ups included, to end."""
    start = sum(row["startup_s"] for point in points for row in pipeline.rows(point, "servers"))
    return float(start + sum(row["e2e_s"] for point in points for row in pipeline.rows(point)))


def main() -> None:
    n_points = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "work"
        folder.mkdir()
        pipeline = make(folder)
        pipeline.summarise()
        nothing = min(seconds(pipeline) for _ in range(REPETITIONS))
        bare = min(bare_s(Path(name) / f"bare{n}") for n in range(REPETITIONS))
        pipeline.configure(passes=1 + n_points // 2)
        total = seconds(pipeline)
        points = [f"{length}/pass{p}" for length in (256, 512) for p in range(2, 2 + n_points // 2)]
        spent = spent_s(pipeline, points)
        own = (total - nothing - spent) / len(points)
    print(f"nothing to do: {nothing:.2f} s; bare Snakemake {bare:.2f} s, ratio {nothing / bare:.2f}; target under 6 s")
    print(
        f"a point: {own:.2f} s beyond server start and requests ({spent / len(points):.2f} s of the stand-in);"
        f" {len(points)} points, plan and summary in {total:.1f} s; target under 3 s"
    )


if __name__ == "__main__":
    main()
