"""A one-node SLURM as its users see it, and a campaign that goes through it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import yaml
from longctx.storage.journal import read

ROOT = Path(__file__).parents[2]
# Snakemake waits for ever for a job that slurmctld forgot.
LIMIT_S = 900


class Slurm:
    """`squeue` and `scancel` against the node."""

    def run(self, *command: str) -> str:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout

    def jobs(self, comment: str = "rule_") -> dict[str, str]:
        """Return the state of each job, by id, whose comment (rule and wildcards) has these words."""
        lines = self.run("squeue", "-h", "--states=all", "-o", "%i|%k|%T").splitlines()
        return {job: state for job, said, state in (line.split("|") for line in lines) if comment in said}

    def job(self, number: str) -> dict[str, str]:
        """Return what scontrol says about a job."""
        words = self.run("scontrol", "show", "-o", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)


class Sweep:
    """A campaign in a folder of its own, run as a user would: snakemake --workflow-profile profiles/slurm."""

    def __init__(self, folder: Path, config: dict[str, Any], fault: dict[str, Any] | None = None) -> None:
        self.folder, self.results = folder, folder / "results"
        self.requests_log, self.plan = folder / "requests.jsonl", folder / "plan.json"
        self.process: subprocess.Popen[bytes] | None = None
        (folder / "campaign.yaml").write_text(yaml.safe_dump(config))
        self.fault(**(fault or {}))

    def fault(self, **plan: Any) -> None:
        """Set the stand-in server's plan; it is read anew for each request."""
        self.plan.write_text(json.dumps({"requests_log": str(self.requests_log), **plan}))

    def start(self, *arguments: str, target: str = "results/summary.parquet") -> None:
        command = [
            sys.executable,
            "-m",
            "snakemake",
            target,
            "--snakefile",
            ROOT / "Snakefile",
            "--configfile",
            "campaign.yaml",
            "--workflow-profile",
            ROOT / "profiles" / "slurm",
            "--slurm-init-seconds-before-status-checks",
            "1",
            *arguments,
        ]
        env = os.environ | {"FAKE_PYTHON": sys.executable, "FAKE_PLAN": str(self.plan)}
        with open(self.folder / "output", "ab") as output:
            self.process = subprocess.Popen(command, cwd=self.folder, env=env, stdout=output, stderr=subprocess.STDOUT)

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(LIMIT_S)

    def run(self, *arguments: str, target: str = "results/summary.parquet") -> int:
        self.start(*arguments, target=target)
        return self.wait()

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text()

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the journalled rows of a point that count."""
        records, _ = read(self.results / "journal" / f"{name}.jsonl")
        return [record.data for record in records if record.kind == "row" and record.data["role"] != "warmup"]

    def sent(self) -> list[str]:
        """Return the sha256 of each prompt that a stand-in server got, warm-ups included, in order."""
        return [json.loads(line)["sha256"] for line in self.requests_log.read_text().splitlines()]

    def begun(self, name: str) -> int:
        """Return how many requests that count were begun."""
        records, _ = read(self.results / "journal" / f"{name}.jsonl")
        return sum(record.kind == "begin" and record.data["role"] != "warmup" for record in records)

    def until(self, what: Callable[[], bool], limit_s: float = 300) -> None:
        """Wait for something to be true; fail with Snakemake's output if it never is."""
        deadline = time.monotonic() + limit_s
        while not what():
            assert time.monotonic() < deadline, self.output
            time.sleep(0.1)

    def processes(self) -> list[psutil.Process]:
        """Return every process that works in the campaign's folder, Snakemake, servers and reapers included."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.cwd() == str(self.folder) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def close(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
