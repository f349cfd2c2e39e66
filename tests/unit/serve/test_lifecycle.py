"""serve(): a server is started, proven ours, described and ended, whoever dies first; bystanders stay alive."""

import contextlib
import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from longctx.campaign.config import ServeConfig
from longctx.campaign.recipe import Recipe
from longctx.errors import ServerError
from longctx.processes import leftovers, process_identity, reaper
from longctx.processes.launch import Ownership
from longctx.processes.leftovers import end_leftovers
from longctx.serve import lifecycle
from longctx.serve.launchers import local
from longctx.serve.lifecycle import serve
from longctx.serve.server import Server
from patching import replace_in
from tinyserver import tiny_python

pytestmark = pytest.mark.process

TINY = str(Path(__file__).parents[2] / "tinyserver.py")
SCRIPTS = str(Path(__file__).parents[3] / "scripts")
RECIPE = Recipe(model="m", served_name="tiny", max_model_len=2048)
SECRET = "hf_thisMustNeverBeSeen"
# Who starts the tests in a shell's background, or under nohup, lets them inherit that Ctrl-C and a closed terminal are
# ignored: not in the owner.
OWNER = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
sys.path.insert(0, {scripts!r})
from longctx.campaign.config import ServeConfig
from longctx.campaign.recipe import Recipe
from longctx.processes import leftovers, supervisor
from longctx.serve.lifecycle import serve
leftovers.GRACE_S = supervisor.GRACE_S = 0.5
recipe = Recipe(model="m", served_name="tiny", max_model_len=2048)
with serve(recipe, ServeConfig(python={python!r}), run_dir=Path({run_dir!r}),
           log_path=Path({log!r}), campaign="c", start_timeout_s=600):
    print("ready", flush=True)
    time.sleep(600)
"""


def tiny(tmp_path: Path, recipe: Recipe = RECIPE, **options: Any) -> contextlib.AbstractContextManager[Server]:
    launcher = ServeConfig(**{"python": tiny_python(tmp_path), **options.pop("launcher", {})})
    defaults = {"run_dir": tmp_path / "run", "log_path": tmp_path / "log", "campaign": "c", "start_timeout_s": 600}
    return serve(recipe, launcher, **(defaults | options))


def owner_id(tmp_path: Path) -> str:
    (record,) = (tmp_path / "run").glob("server-*.json")
    return str(json.loads(record.read_text())["id"])


def sockets(tmp_path: Path) -> Path:
    """The folder of sockets that the one record in the folder names; the server's is in it."""
    (path,) = (tmp_path / "run").glob("server-*.json")
    folder = Path(json.loads(path.read_text())["sockets"])
    assert [entry.is_socket() for entry in folder.iterdir()] == [True]
    return folder


def wait_until(true: Callable[[], Any], what: str, limit_s: float = 300.0) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "GRACE_S", 0.5)


@pytest.fixture
def bystander() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Somebody else's server, which must survive everything, and its port."""
    port = lifecycle.choose_port()
    env = os.environ | {"TINY": "other"}
    with subprocess.Popen([sys.executable, TINY, "--port", str(port)], env=env, stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: f"process {process.pid} " in lifecycle._listener(port), "bystander listens")
        yield process, port
        assert process.poll() is None, "the bystander was ended"
        process.kill()


@pytest.fixture
def owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """A process in a group of its own that serves a stubborn family of processes until it is killed."""
    monkeypatch.setenv("TINY", "family ignore_term sockets")
    code = OWNER.format(
        scripts=SCRIPTS, python=tiny_python(tmp_path), run_dir=str(tmp_path / "run"), log=str(tmp_path / "log")
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_a_server_is_described_and_leaves_nothing(tmp_path: Path) -> None:
    lines: list[str] = []
    with tiny(tmp_path, on_log=lines.append) as server:
        mark = owner_id(tmp_path)
        assert server.alive()
        assert server.process.pid in process_identity.marked(mark)
        assert server.death_reason() == ""
        assert (server.model, server.facts["model"], server.facts["launcher"]) == ("tiny", "tiny", "local")
        assert server.facts["vllm_version"] == "0.32.0"
        assert server.capacity_tokens() == 4096
        assert server.facts["startup_s"] > 0
        assert server.host_facts["cpu_count"] == os.cpu_count()
        assert "tiny server starts" in lines
        assert server.log_between(0, server.log_offset())[0].startswith("# longctx starts: ")
    assert not server.alive()
    assert process_identity.marked(mark) == {}
    assert list((tmp_path / "run").iterdir()) == []


def test_children_that_leave_the_group_and_ignore_sigterm_end_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINY", "family")
    with tiny(tmp_path) as server:
        mark = owner_id(tmp_path)
        assert server.process is not None
        assert len(server.process.processes()) == 3
    assert process_identity.marked(mark) == {}


def test_an_exception_in_the_block_ends_the_server(tmp_path: Path) -> None:
    marks = []

    def interrupted() -> None:
        with tiny(tmp_path):
            marks.append(owner_id(tmp_path))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert process_identity.marked(marks[0]) == {}


@pytest.mark.parametrize(
    ("signum", "group"),
    [
        *[(signal.SIGKILL, False), (signal.SIGKILL, True), (signal.SIGTERM, False), (signal.SIGTERM, True)],
        *[(signal.SIGINT, True), (signal.SIGHUP, True)],
    ],
)
def test_nothing_survives_its_owner(
    tmp_path: Path, owner: subprocess.Popen[str], bystander: Any, signum: int, group: bool
) -> None:
    mark, folder = owner_id(tmp_path), sockets(tmp_path)
    assert len(process_identity.marked(mark)) == 4  # the reaper, the server and its two children
    (os.killpg if group else os.kill)(owner.pid, signum)
    wait_until(lambda: not process_identity.marked(mark), "the server outlives its owner")
    wait_until(lambda: not list((tmp_path / "run").iterdir()), "the record stays")
    assert not folder.exists()


def test_the_next_start_ends_what_a_killed_owner_and_a_killed_reaper_left(
    tmp_path: Path, owner: subprocess.Popen[str], bystander: Any
) -> None:
    (path,) = (tmp_path / "run").glob("server-*.json")
    record = json.loads(path.read_text())
    os.kill(record["reaper"], signal.SIGSTOP)  # so that it can't work between the two kills
    owner.kill()
    owner.wait()
    os.kill(record["reaper"], signal.SIGKILL)
    wait_until(lambda: reaper.start_ticks(record["reaper"]) is None, "the reaper is dead")
    assert len(process_identity.marked(record["id"])) == 3
    (sentence,) = end_leftovers(tmp_path / "run")
    assert str(record["pid"]) in sentence
    assert process_identity.marked(record["id"]) == {}
    assert not path.exists()


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The shared memory that the server of this test keeps and never removes; it leaves a socket too."""
    path = Path(reaper.SHARED_MEMORY) / f"longctx-test-{os.getpid()}"
    monkeypatch.setenv("TINY", "shared sockets")
    monkeypatch.setenv("TINY_SHARED", str(path))
    yield path
    path.unlink(missing_ok=True)


def recorded(tmp_path: Path) -> list[str]:
    """The shared memory that the one record in the folder names."""
    (path,) = (tmp_path / "run").glob("server-*.json")
    return list(json.loads(path.read_text()).get("shared_memory", {}))


def test_shared_memory_and_sockets_of_a_server_end_with_it(tmp_path: Path, memory: Path) -> None:
    with tiny(tmp_path):
        assert memory.exists()
        folder = sockets(tmp_path)
    assert not memory.exists()
    assert not folder.exists()


def test_shared_memory_and_sockets_of_a_killed_server_are_removed(tmp_path: Path, memory: Path) -> None:
    with tiny(tmp_path) as server:
        wait_until(lambda: recorded(tmp_path) == [str(memory)], "the memory is noted")
        folder = sockets(tmp_path)
        assert server.process
        os.kill(server.process.pid, signal.SIGKILL)
        wait_until(lambda: not server.alive(), "death is noticed")
    assert not memory.exists()
    assert not folder.exists()


def test_what_is_left_goes_at_the_next_start_where_everyone_was_killed(tmp_path: Path, memory: Path) -> None:
    code = OWNER.format(
        scripts=SCRIPTS, python=tiny_python(tmp_path), run_dir=str(tmp_path / "run"), log=str(tmp_path / "log")
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        wait_until(lambda: recorded(tmp_path) == [str(memory)], "the memory is noted")
        (path,) = (tmp_path / "run").glob("server-*.json")
        record = json.loads(path.read_text())
        folder = sockets(tmp_path)
        os.kill(record["reaper"], signal.SIGSTOP)  # so that it can't work between the kills
        for pid in (owner.pid, record["reaper"], record["pid"]):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not process_identity.marked(record["id"]), "all are dead")
    assert memory.exists()
    assert folder.exists()
    end_leftovers(tmp_path / "run")
    assert not memory.exists()
    assert not folder.exists()


def test_shared_memory_that_others_map_or_made_anew_stays(tmp_path: Path, memory: Path) -> None:
    memory.write_bytes(bytes(1 << 16))
    with open(memory, "r+b") as file, mmap.mmap(file.fileno(), 1 << 16):
        noted = reaper.shared_memory([os.getpid()])
        assert str(memory) in noted
        reaper.free_shared_memory(noted)
        assert memory.exists(), "this process maps it"
    other = {str(memory): [noted[str(memory)][0], noted[str(memory)][1] + 1]}
    reaper.free_shared_memory(other)
    assert memory.exists(), "another file of the same name"
    reaper.free_shared_memory({str(memory): noted[str(memory)]})
    assert not memory.exists()


def test_what_is_no_socket_stays(tmp_path: Path) -> None:
    folder = tmp_path / "sockets"
    folder.mkdir()
    (folder / "precious").touch()
    (folder / "link").symlink_to(folder / "precious")
    reaper.remove_sockets(str(folder))
    assert sorted(path.name for path in folder.iterdir()) == ["link", "precious"]


def test_a_folder_for_sockets_that_the_recipe_names_is_used_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setenv("TINY", "sockets")
    try:
        with tiny(tmp_path, replace(RECIPE, env={"VLLM_RPC_BASE_PATH": str(theirs)})):
            pass
        assert [path.is_socket() for path in theirs.iterdir()] == [True]
    finally:
        shutil.rmtree(theirs)


def test_a_temporary_folder_whose_name_is_too_long_for_sockets_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 60)))
    launch = local.prepare(RECIPE, ServeConfig(python=sys.executable), Ownership("c", tmp_path), "127.0.0.1", 1)
    assert launch.sockets is None
    assert "VLLM_RPC_BASE_PATH" not in launch.env


def test_a_folder_for_sockets_that_cannot_be_made_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/longctx-is-not-there")
    with pytest.raises(
        ServerError, match=r"^/tmp/longctx-is-not-there/longctx-\w+: No such file.*no server is started"
    ):
        tiny(tmp_path).__enter__()
    assert list((tmp_path / "run").iterdir()) == []


def test_a_live_run_is_not_reaped(tmp_path: Path) -> None:
    with tiny(tmp_path) as server:
        assert end_leftovers(tmp_path / "run") == []
        assert server.alive()


def test_a_reused_process_id_another_host_and_an_earlier_boot_are_left_alone(
    tmp_path: Path, bystander: tuple[subprocess.Popen[bytes], int]
) -> None:
    process, port = bystander
    base = {
        "id": "0" * 12,
        "host": os.uname().nodename,
        "boot": process_identity.boot_id(),
        "owner": 1,
        "owner_start": -1,
        "reaper": None,
        "pid": process.pid,
        "start": 1,
        "port": port,
        "stop_commands": [],
    }
    true_start = reaper.start_ticks(process.pid)
    for name, change in {
        "reused": {},
        "host": {"host": "elsewhere", "start": true_start},
        "boot": {"boot": "earlier", "start": true_start},
    }.items():
        (tmp_path / f"server-{name}.json").write_text(json.dumps(base | change))
    (tmp_path / "server-torn.json").write_text('{"id": ')
    end_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"server-host.json", "server-torn.json"}


def test_a_killed_server_is_known_dead_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINY", "family")
    with tiny(tmp_path) as server:
        mark = owner_id(tmp_path)
        assert server.process
        os.kill(server.process.pid, signal.SIGKILL)
        wait_until(lambda: not server.alive(), "death is noticed")
        assert "killed by SIGKILL" in server.death_reason()
        wait_until(lambda: len(process_identity.marked(mark)) == 0, "its children end with it")


def test_a_killed_reaper_counts_as_death_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINY", "family sockets")
    with tiny(tmp_path) as server:
        (path,) = (tmp_path / "run").glob("server-*.json")
        record = json.loads(path.read_text())
        folder = sockets(tmp_path)
        os.kill(record["reaper"], signal.SIGKILL)
        wait_until(lambda: not server.alive(), "the loss is noticed")
    assert process_identity.marked(record["id"]) == {}
    assert not folder.exists()


def test_an_early_exit_gives_the_log_s_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINY", "exit")
    monkeypatch.setenv("TINY_WORDS", "ValueError: no such dtype\nRuntimeError: failed. See root cause above.")
    with pytest.raises(
        ServerError, match=r"exited with code 3 before it was ready: ValueError: no such dtype"
    ) as error:
        tiny(tmp_path).__enter__()
    assert error.value.reason == "server_start"
    assert "tiny server starts" in error.value.log_tail


def test_a_silent_server_ends_at_the_limit_with_the_log_s_tail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINY", "silent")
    lines: list[str] = []
    clock = time.monotonic
    # The limit is over as soon as the server has spoken, however long that takes.
    replace_in(monkeypatch, lifecycle, "time", monotonic=lambda: clock() + 3600 * ("tiny server starts" in lines))
    with pytest.raises(ServerError, match=r"not ready after 1800 s; its last words: tiny server starts") as error:
        tiny(tmp_path, start_timeout_s=1800.0, on_log=lines.append).__enter__()
    assert error.value.reason == "server_start"
    assert list((tmp_path / "run").iterdir()) == []


def test_kv_too_small_carries_the_longest_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINY", "exit")
    monkeypatch.setenv(
        "TINY_WORDS",
        "ValueError: The model's max seq len (9) is larger than the maximum number of tokens that can be stored in "
        "KV cache (7168). Try increasing",
    )
    with pytest.raises(ServerError, match="7168") as error:
        tiny(tmp_path).__enter__()
    assert (error.value.reason, error.value.kv_tokens) == ("kv_too_small", 7168)


def test_a_port_taken_since_it_was_chosen_is_named_with_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bystander: tuple[subprocess.Popen[bytes], int]
) -> None:
    process, port = bystander
    monkeypatch.setattr(lifecycle, "choose_port", lambda: port)
    monkeypatch.setenv("TINY", "exit")
    monkeypatch.setenv("TINY_WORDS", "OSError: [Errno 98] Address already in use")
    monkeypatch.setattr(lifecycle, "_served_names", lambda http: None)
    with pytest.raises(ServerError, match=f"port {port} is already used by process {process.pid} ") as error:
        tiny(tmp_path).__enter__()
    assert error.value.reason == "not_ours"


def test_another_server_on_our_port_is_never_taken_for_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bystander: tuple[subprocess.Popen[bytes], int]
) -> None:
    process, port = bystander
    monkeypatch.setattr(lifecycle, "choose_port", lambda: port)
    with pytest.raises(ServerError, match=f"port {port} .*process {process.pid} ") as error:
        tiny(tmp_path).__enter__()
    assert error.value.reason == "not_ours"


def test_a_program_that_cannot_run_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="/no/python is not an executable file"):
        tiny(tmp_path, launcher={"python": "/no/python"}).__enter__()


def test_a_contradicted_contract_fails_or_warns(tmp_path: Path) -> None:
    recipe = Recipe(model="m", served_name="tiny", max_model_len=2048, versions={"vllm": "0.25.1"})
    with pytest.raises(ServerError, match=r"vllm_version asked 0.25.1, is 0.32.0") as error:
        tiny(tmp_path, recipe).__enter__()
    assert error.value.reason == "contract"
    with tiny(tmp_path, recipe, contract="warn") as server:
        assert [entry["setting"] for entry in server.contract if entry["ok"] is False] == ["vllm_version"]


def test_secrets_are_in_no_file_and_on_no_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINY", "environment")
    for name in ("HF_TOKEN", "SOME_API_KEY", "DB_PASSWORD", "A_SECRET_THING"):
        monkeypatch.setenv(name, f"{SECRET}{name}")
    with tiny(tmp_path) as server:
        lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in process_identity.marked(owner_id(tmp_path))]
        files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
        texts = [server.env_json, *server.command, repr(server.facts), repr(server.host_facts), repr(server.contract)]
        assert b"HF_TOKEN=[secret]" in (tmp_path / "log").read_bytes()
    assert not [text for text in [*lines, *files, *(text.encode() for text in texts)] if SECRET.encode() in text]


def test_a_full_disk_or_an_unwritable_log_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"^/dev/full: the server's log cannot be written: No space left") as error:
        tiny(tmp_path, log_path=Path("/dev/full")).__enter__()
    assert error.value.reason == "disk_full"
    (tmp_path / "file").touch()
    with pytest.raises(ServerError, match="the server's log cannot be written: "):
        tiny(tmp_path, log_path=tmp_path / "file" / "log").__enter__()
    with pytest.raises(ServerError, match="Not a directory; no server is started"):
        tiny(tmp_path, run_dir=tmp_path / "file" / "run").__enter__()
