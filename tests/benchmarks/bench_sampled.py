"""Sampled TTFT against real prefills of one server: python tests/benchmarks/bench_sampled.py

The default tiny model on the CPU in chunks of 2,048 tokens, samples to 64Ki with three repeats, whole prompts of 16Ki
and 64Ki on the same server. Prints sampled / real with the estimate's interval; asserts nothing.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from longctx.lengths import format_length
from longctx.storage import parquet, schemas

ROOT = Path(__file__).parents[2]
CONFIG = {
    "modes": ["sampled"],
    "passes": 1,
    "sampled": {"from": "1Ki", "to": "64Ki", "repeats": 3, "whole": ["16Ki", "64Ki"]},
    "corpus": {"source": str(ROOT / "scripts")},
    "serve": {"scope": "campaign", "python": str(ROOT / ".venv-vllm" / "bin" / "python")},
}


def measure(folder: Path) -> Path:
    """Run the campaign in `folder` and return its results."""
    (folder / "campaign.yaml").write_text(yaml.safe_dump(CONFIG))
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--cores", "1"]
    files = [str(ROOT / "config.yaml"), "campaign.yaml"]
    subprocess.run([*command, "--configfile", *files, "--", "results/summary.parquet"], cwd=folder, check=True)
    return folder / "results"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        estimates = parquet.read_rows(measure(Path(name)) / "estimates.parquet", schemas.ESTIMATES)
    for row in estimates:
        if real_s := row["ttft_measured_s"]:
            low, middle, high = (row[column] / real_s for column in ("ttft_low_s", "ttft_estimate_s", "ttft_high_s"))
            print(
                f"{format_length(row['length'])}: real {real_s:.3f} s, sampled / real {middle:.3f}"
                f" (interval {low:.3f} to {high:.3f}, {row['samples']} samples)"
            )


if __name__ == "__main__":
    main()
