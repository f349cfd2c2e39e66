"""The real Snakemake on a copy of this checkout, serving from tests/fakeserver.py: what the pipeline tests drive."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import yaml
from longctx.storage import journal, parquet

ROOT = Path(__file__).parents[2]
SNAKEMAKE = str(Path(sys.executable).with_name("snakemake"))
LONGCTX = str(Path(sys.executable).with_name("longctx"))
# Unlike any warm-up's, so that the server's own record tells measured requests.
NEW_TOKENS = 6
CONFIG: dict[str, Any] = {
    "lengths": [256, 512],
    "passes": 1,
    "max_new_tokens": NEW_TOKENS,
    "model": {"source": "synthetic", "weights": "dummy"},
    "corpus": {"source": "corpus"},
    # A machine busy with other tests makes clocks disagree.
    "measure": {"clock_tolerance": 1e6},
    "serve": {
        "python": str(ROOT / "tests" / "bin" / "fake-vllm-python"), "kv_cache_dtype": "fp8_e4m3",
        "cpu_kv_cache_gib": 2, "enforce_eager": True, "headroom_tokens": 64,
    },
}  # fmt: skip
PATIENCE_S = 1800.0  # a limit for a machine that others use too; nothing waits for it


@dataclass(slots=True)
class Finished:
    """A Snakemake run that ended: `output` is all that it said; `jobs` counts the jobs that succeeded, by rule."""

    code: int
    output: str

    @property
    def jobs(self) -> Counter[str]:
        rules = re.findall(r"^Finished jobid: \d+ \(Rule: (\w+)\)$", self.output, re.MULTILINE)
        return Counter(rule for rule in rules if rule != "all")

    @property
    def said(self) -> list[str]:
        """Lines of ours, not of Snakemake's own."""
        return [line for line in self.output.splitlines() if line.startswith("longctx: ")]

    @property
    def planned(self) -> Counter[str]:
        """Jobs by rule that a dry run (`-n`) would start."""
        table = self.output.rpartition("Job stats:")[2].partition("\n\n")[0]
        counts = re.findall(r"^(\w+) +(\d+)$", table, re.MULTILINE)
        return Counter({rule: int(n) for rule, n in counts if rule not in ("all", "total")})


@dataclass(slots=True)
class Pipeline:
    """A working folder with the pipeline in it."""

    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    config: dict[str, Any] = field(default_factory=lambda: json.loads(json.dumps(CONFIG)))

    def __post_init__(self) -> None:
        self.configure()
        self.faults()

    @property
    def results(self) -> Path:
        return self.folder / "results"

    def configure(self, **changes: Any) -> None:
        for key, value in changes.items():
            self.config[key] = self.config[key] | value if isinstance(value, dict) and key in self.config else value
        (self.folder / "config.yaml").write_text(yaml.safe_dump(self.config))

    def faults(self, measured: dict[str, Any] | None = None, **plan: Any) -> None:
        """Set what the server does wrong from now on; `measured`: to measured requests, not to warm-ups."""
        plan |= {
            "requests_log": str(self.folder / "requests.jsonl"),
            "by_max_tokens": {str(NEW_TOKENS): measured or {}},
        }
        temporary = self.folder / "plan.json.new"
        temporary.write_text(json.dumps(plan))
        temporary.replace(self.folder / "plan.json")

    def hold(self, turn: int, **measured: Any) -> None:
        """Let the `turn`th measured request of each server (from 0) wait for its first token until `release`."""
        (self.folder / "hold").touch()
        self.faults(measured=measured | {"by_turn": {str(turn): {"hold": str(self.folder / "hold")}}})

    def release(self) -> None:
        """Let what waits go on. After `faults()` alone it waits still, and no later request does."""
        (self.folder / "hold").unlink()

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {
            "FAKE_PLAN": str(self.folder / "plan.json"),
            "FAKE_PYTHON": sys.executable,
            "LONGCTX_TEST": self.mark,
        }

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start Snakemake as the leader of a group of its own, as a shell does; its output goes to a file."""
        with open(self.folder / "output.txt", "w") as output:
            return subprocess.Popen(
                [SNAKEMAKE, "--cores", "1", *arguments],
                cwd=self.folder,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                text=True,
                process_group=0,
            )

    def finish(self, process: "subprocess.Popen[str]") -> Finished:
        code = process.wait(PATIENCE_S)
        return Finished(code, (self.folder / "output.txt").read_text())

    def run(self, *arguments: str) -> Finished:
        return self.finish(self.start(*arguments))

    def summarise(self, *arguments: str) -> Finished:
        """Run the command that measures all and draws nothing; it must succeed."""
        done = self.run("results/summary.parquet", *arguments)
        assert done.code == 0, done.output
        return done

    def tool(self, *command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def requests(self) -> list[tuple[int, str]]:
        """(length, sha256 of the ids) of every measured request that reached a server, in order."""
        path = self.folder / "requests.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [(line["count"], line["sha256"]) for line in lines if line["max_tokens"] == NEW_TOKENS]

    def rows(self, point: str, table: str = "measurements") -> list[dict[str, Any]]:
        return parquet.read_rows(self.results / table / f"{point}.parquet")

    def measured(self, point: str) -> list[tuple[str, int, str]]:
        """(role, request_index, status) of the point's rows, without warm-ups."""
        rows = self.rows(point)
        return [(row["role"], row["request_index"], row["status"]) for row in rows if row["role"] != "warmup"]

    def summary(self) -> list[dict[str, Any]]:
        return parquet.read_rows(self.results / "summary.parquet")

    def journal(self, point: str) -> list[journal.Record]:
        return journal.read(self.results / "journal" / f"{point}.jsonl")[0]

    def status(self) -> dict[str, Any]:
        try:
            return dict(orjson.loads((self.results / "status.json").read_bytes()))
        except (OSError, orjson.JSONDecodeError):
            return {}

    def phase(self) -> str:
        return " ".join(entry.get("phase", "") for entry in self.status().get("current", {}).values())

    def processes(self, word: str = "") -> dict[int, str]:
        """{pid: command line} of every live process of this pipeline whose command line has `word`."""
        found = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) != os.getpid():
                with contextlib.suppress(OSError):
                    marked = f"LONGCTX_TEST={self.mark}\0".encode() in (folder / "environ").read_bytes() + b"\0"
                    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    if marked and word in command:
                        found[int(folder.name)] = command
        return found

    def one(self, word: str) -> int:
        """Return the process of ours that runs `word`: 'measure.py' or 'fakeserver.py'."""
        found = {pid: command for pid, command in self.processes(word).items() if "reaper.py" not in command}
        # The shell that Snakemake started carries the same words and is no Python.
        pids = [pid for pid, command in found.items() if not command.startswith(("/usr/bin/bash", "/bin/bash"))]
        assert len(pids) == 1, found
        return pids[0]

    def end(self) -> None:
        """Kill whatever of this pipeline still runs."""
        while found := self.processes():
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)

    def nothing_left(self) -> None:
        """Wait until no process of this pipeline is left; AssertionError names what stays."""
        until(lambda: not self.processes(), lambda: f"left behind: {self.processes()}")


def until(reached: Callable[[], object], what: Callable[[], str] | str = "", patience_s: float = PATIENCE_S) -> None:
    """Wait until `reached()` is true; AssertionError after the patience."""
    deadline = time.monotonic() + patience_s
    while not reached():
        assert time.monotonic() < deadline, what if isinstance(what, str) else what()
        time.sleep(0.02)


@contextlib.contextmanager
def running(pipeline: Pipeline, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """A started Snakemake; whatever the test did, nothing of it is left behind."""
    process = pipeline.start(*arguments)
    try:
        yield process
    finally:
        if process.poll() is None:
            pipeline.end()
        process.wait()


def make(folder: Path) -> Pipeline:
    """Lay out a checkout with a tiny corpus in `folder`."""
    for name in ("scripts", "workflow", "profiles", "envs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(ROOT / "Snakefile", folder)
    (folder / "resources").symlink_to(ROOT / "resources")
    (folder / "corpus").mkdir()
    for source in sorted((ROOT / "scripts" / "longctx" / "prompts").glob("*.py")):
        shutil.copy2(source, folder / "corpus")
    return Pipeline(folder)


def copy(source: Path, target: Path) -> Pipeline:
    """Return a pipeline that goes on from a copy of another one's folder, times of files included."""
    shutil.copytree(source, target, symlinks=True)
    return Pipeline(target)
