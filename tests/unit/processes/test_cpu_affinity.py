"""The client keeps off the processors on which a CPU server computes."""

import io
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from longctx.campaign.config import ServeConfig
from longctx.campaign.recipe import Recipe
from longctx.processes import cpu_affinity
from longctx.progress import watch
from longctx.serve.lifecycle import serve
from tinyserver import tiny_python

needs_two = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two processors (Linux)"
)


def block_sees(tmp_path: Path) -> tuple[set[int], set[int]]:
    """Processors of this thread and of one started in the block, while a server runs."""
    recipe = Recipe(model="m", served_name="tiny", max_model_len=2048)
    launcher = ServeConfig(python=tiny_python(tmp_path))
    with serve(recipe, launcher, run_dir=tmp_path / "run", log_path=tmp_path / "log", campaign="c", start_timeout_s=60):
        later: list[set[int]] = []
        thread = threading.Thread(target=lambda: later.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
        return os.sched_getaffinity(0), later[0]


@pytest.mark.process
@needs_two
def test_the_client_leaves_a_processor_to_the_thread_that_is_bound_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.sched_getaffinity(0)
    monkeypatch.setenv("TINY", "bound")
    assert block_sees(tmp_path) == (before - {max(before)}, before - {max(before)})
    assert os.sched_getaffinity(0) == before


@pytest.mark.process
@needs_two
def test_a_server_without_bound_threads_changes_nothing(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    assert block_sees(tmp_path) == (before, before)


@needs_two
def test_where_no_processor_would_be_left_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.sched_getaffinity(0)
    monkeypatch.setattr(cpu_affinity, "bound_cpus", lambda pids: set(before))
    with cpu_affinity.keep_off([]):
        assert os.sched_getaffinity(0) == before


@needs_two
def test_processes_that_have_ended_bind_nothing() -> None:
    assert cpu_affinity.bound_cpus([2**22 + 1]) == set()


MEASURING = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from longctx.progress.status_file import StatusWriter
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
StatusWriter(Path(sys.argv[1]), campaign="c", expected=[], point="prefill/1Ki/pass1").update(phase="measuring")
print("written", flush=True)
sys.stdin.read()
"""


@pytest.mark.process
@needs_two
def test_watching_stays_where_the_measurement_stays(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)

    def kept_to() -> set[int]:
        """Processors of a thread that has looked once."""
        with ThreadPoolExecutor(1) as thread:
            thread.submit(watch.watch, tmp_path, once=True, out=io.StringIO()).result()
            return thread.submit(os.sched_getaffinity, 0).result()

    scripts = Path(watch.__file__).parents[2]
    command = [sys.executable, "-c", MEASURING, str(tmp_path / "status.json"), str(scripts)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as measuring:
        assert measuring.stdout is not None
        assert measuring.stdout.readline() == b"written\n"
        assert kept_to() == {max(before)}
    assert kept_to() == before, "anywhere once it has ended"
    assert os.sched_getaffinity(0) == before
