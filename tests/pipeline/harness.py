"""kill -9 at random moments of a campaign until it is done: what is left must equal an undisturbed run's."""

import contextlib
import os
import random
import signal
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from longctx.processes import reaper
from pipeline import Pipeline, until

SUMMARY = "results/summary.parquet"
VICTIMS = ("snakemake", "measure.py", "server", "reaper.py", "everything")
# What of a summary does not depend on how long things took.
TIMELESS = ("campaign", "recipe_hash", "mode", "length", "n", "n_failed", "n_doubtful", "n_missing",
            "cached_tokens_min", "max_new_tokens", "synthetic_weights", "filled_kv", "hosts", "prefill_s_n",
            "decode_tok_s_n")  # fmt: skip


@dataclass(slots=True)
class Harness:
    """`server`: a word of the server's command line; `longest_s`: until when, after its start, a run may be killed.

    memory: the shared memory of what was killed.
    """

    pipeline: Pipeline
    server: str
    longest_s: float
    random: random.Random
    killed: list[str] = field(default_factory=list)
    memory: set[str] = field(default_factory=set)

    def violate(self, kills: int) -> bool:
        """Kill up to `kills` runs, each once; return whether one of them got to its end unharmed."""
        while len(self.killed) < kills:
            if not self._one_run():
                return True
        return False

    def leaked(self) -> list[str]:
        """The shared memory that is still there."""
        return [path for path in self.memory if os.path.exists(path)]

    def _one_run(self) -> bool:
        wait_s, victim = self.random.uniform(0.3, self.longest_s), self.random.choice(VICTIMS)
        snakemake = self.pipeline.start(SUMMARY)
        with contextlib.suppress(AssertionError):
            until(lambda: snakemake.poll() is not None, patience_s=wait_s)
        if snakemake.poll() is not None:
            return False
        pids = self._pids(victim) or [snakemake.pid]
        if victim != "everything":  # whose reaper may die before it has looked
            self.memory |= set(reaper.shared_memory(self.pipeline.processes()))
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.killed.append(f"{'snakemake' if pids == [snakemake.pid] else victim} after {wait_s:.1f} s")
        snakemake.wait()
        return True

    def _pids(self, victim: str) -> list[int]:
        if victim == "everything":
            return list(self.pipeline.processes())
        found = self.pipeline.processes(self.server if victim == "server" else victim)
        # The reaper's command line tells what it keeps.
        return [pid for pid, command in found.items() if ("reaper.py" in command) == (victim == "reaper.py")]


def invariants(pipeline: Pipeline, points: dict[str, list[tuple[str, int]]]) -> None:
    """Every request of every point has one good row, in its Parquet and in its journal, and no process is left."""
    pipeline.nothing_left()
    for point, requests in points.items():
        rows = [record.data for record in pipeline.journal(point) if record.kind == "row"]
        good = [row for row in rows if row["role"] != "warmup" and row["status"] == "ok"]
        once = Counter((row["role"], row["request_index"]) for row in good)
        assert once == dict.fromkeys(requests, 1), point
        assert pipeline.measured(point) == [(role, index, "ok") for role, index in requests], point


def timeless(pipeline: Pipeline) -> list[dict[str, Any]]:
    """The summary without anything that depends on time."""
    return [{name: row[name] for name in TIMELESS} for row in pipeline.summary()]
