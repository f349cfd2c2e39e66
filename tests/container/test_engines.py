"""Launcher `container` on real engines: whoever dies first, no container of ours is left and no other is touched."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from enginehere import CAMPAIGN, IMAGE, ROOT, RUN, Engine, wait_until
from longctx.campaign.config import ContainerConfig
from longctx.campaign.recipe import Recipe
from longctx.errors import ServerError
from longctx.processes import leftovers
from longctx.processes.leftovers import end_leftovers
from longctx.serve.lifecycle import serve

pytestmark = [pytest.mark.container, pytest.mark.timeout(900)]
Options = Callable[..., dict[str, Any]]
DIGEST = {"podman": "{{.Digest}}", "docker": "{{.Id}}"}
SECRET = "hf_thisMustNeverBeSeen"
OWNER = """
import json, signal, sys, time
from pathlib import Path
sys.path.insert(0, {scripts!r})
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell started in the background
from longctx.campaign.config import ContainerConfig
from longctx.campaign.recipe import Recipe
from longctx.serve.launchers import container
from longctx.serve.lifecycle import serve
container.STOP_GRACE_S = 3  # for the servers that ignore SIGTERM
given = json.loads(sys.argv[1])
with serve(Recipe(**given["recipe"]), ContainerConfig(**given["options"]), run_dir=Path(given["run_dir"]),
           log_path=Path(given["log"]), campaign={campaign!r}, start_timeout_s=300):
    print("ready", flush=True)
    time.sleep(600)
"""


def recipe(tmp_path: Path, **plan: Any) -> Recipe:
    """The stand-in's recipe: a model folder of its own, and a plan of faults."""
    (tmp_path / "model").mkdir(exist_ok=True)
    env = {"FAKE_PYTHON": str(Path(sys.base_prefix) / "bin" / "python3"), "FAKE_PLAN": json.dumps(plan)}
    return Recipe(model=str(tmp_path / "model"), served_name="m", max_model_len=2048, env=env)


def start(tmp_path: Path, options: dict[str, Any], asked: Recipe | None = None) -> Any:
    return serve(
        asked or recipe(tmp_path),
        ContainerConfig(**options),
        run_dir=tmp_path / "run",
        log_path=tmp_path / "log",
        campaign=CAMPAIGN,
        start_timeout_s=300,
        contract="warn",
    )


@pytest.fixture(autouse=True)
def bystander(engine: Engine) -> Iterator[None]:
    """Somebody else's container, which must survive every test; and no container of ours before or after."""
    assert engine.containers() == []
    name = f"somebody-elses-container-{RUN}"
    ran = engine.start("--detach", "--name", name, "--label", "app=other", IMAGE, "sleep", "600")
    assert ran.returncode == 0, ran.stderr
    yield
    running = engine.call("inspect", "--format", "{{.State.Running}}", name).stdout.strip()
    engine.end(name)
    assert running == "true"
    assert engine.containers() == []


@contextlib.contextmanager
def owner(tmp_path: Path, options: dict[str, Any], **plan: Any) -> Iterator[subprocess.Popen[str]]:
    """A process in a group of its own that serves from a container until it is killed."""
    asked = recipe(tmp_path, **plan)
    given = {
        "recipe": {"model": asked.model, "served_name": "m", "max_model_len": 2048, "env": asked.env},
        "options": options,
        "run_dir": str(tmp_path / "run"),
        "log": str(tmp_path / "log"),
    }
    code = OWNER.format(scripts=str(ROOT / "scripts"), campaign=CAMPAIGN)
    with subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(given)], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        yield process
        process.kill()


def ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def kill_both(owner: subprocess.Popen[str], reaper: int) -> None:
    """Kill an owner and its reaper before either can act."""
    os.kill(reaper, signal.SIGSTOP)
    owner.kill()
    owner.wait()
    os.kill(reaper, signal.SIGKILL)


def test_a_server_runs_labelled_in_its_container_and_leaves_nothing(
    tmp_path: Path, stand_in: Options, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_OF_THE_HOST", "1")
    with start(tmp_path, stand_in()) as server:
        (name,) = engine.containers()
        labels = engine.call("inspect", "--format", "{{json .Config.Labels}}", name).stdout
        assert json.loads(labels).items() >= {"longctx.owner": name.removeprefix("longctx-")}.items()
        assert server.alive()
        assert httpx.get(f"{server.url}/version", trust_env=False).json() == {"version": "0.32.0"}
        digest = engine.call("image", "inspect", "--format", DIGEST[engine.name], IMAGE).stdout.strip()
        assert json.loads(server.env_json).get("VLLM_NO_USAGE_STATS") == "1"
        assert "VLLM_OF_THE_HOST" not in server.env_json
        facts = {key: server.facts[key] for key in ("launcher", "image", "image_digest")}
        assert facts == {"launcher": "container", "image": IMAGE, "image_digest": digest}
    assert "Application startup complete" in (tmp_path / "log").read_text()
    assert engine.containers() == []


def test_a_bridge_network_publishes_the_port(tmp_path: Path, stand_in: Options, engine: Engine) -> None:
    if engine.name == "docker":
        pytest.skip("the docker daemon of these tests has no bridge")
    try:
        with start(tmp_path, stand_in(network="bridge", ipc=None)) as server:
            assert httpx.get(f"{server.url}/health", trust_env=False).is_success
    except ServerError as error:
        if re.search("netavark|CNI|iptables", error.log_tail):
            pytest.skip(f"no bridge network here: {error}")
        raise


def test_secrets_reach_the_server_but_no_file_or_command_line(
    tmp_path: Path, stand_in: Options, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    with start(tmp_path, stand_in(pass_env=["HF_TOKEN"])) as server:
        (name,) = engine.containers()
        inside = engine.call("exec", name, "printenv", "HF_TOKEN").stdout.strip()
        lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in server.process.processes()]
        seen = json.dumps([server.command, server.facts, server.env_json])
    assert inside == SECRET
    assert SECRET not in seen
    assert not any(SECRET.encode() in line for line in lines)
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(SECRET in text for text in written)


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda s: s.name)
def test_a_killed_owner_leaves_no_container(tmp_path: Path, stand_in: Options, engine: Engine, signum: int) -> None:
    with owner(tmp_path, stand_in()) as process:
        ready(process)
        assert len(engine.containers()) == 1
        os.killpg(process.pid, signum)
        wait_until(lambda: not engine.containers(), "the container is gone")
    wait_until(lambda: not list((tmp_path / "run").glob("server-*.json")), "the record is gone")


@pytest.mark.parametrize("delay_s", [0.05, 0.15, 0.3, 0.6])
def test_an_owner_killed_while_its_container_starts_leaves_none(
    tmp_path: Path, stand_in: Options, engine: Engine, delay_s: float
) -> None:
    with owner(tmp_path, stand_in()) as process:
        wait_until(lambda: list((tmp_path / "run").glob("server-*.json")), "the record is written")
        time.sleep(delay_s)
        process.kill()
        wait_until(lambda: not list((tmp_path / "run").glob("server-*.json")), "the reaper is done")
    assert engine.containers() == []


def test_a_server_that_ignores_sigterm_is_ended_too(tmp_path: Path, stand_in: Options, engine: Engine) -> None:
    with owner(tmp_path, stand_in(), ignore_term=True, child="ignore_term") as process:
        ready(process)
        process.kill()
        wait_until(lambda: not engine.containers(), "the container is gone")


def test_leftovers_of_a_killed_owner_and_reaper_are_removed_at_the_next_start(
    tmp_path: Path, stand_in: Options, engine: Engine
) -> None:
    with owner(tmp_path, stand_in(), ignore_term=True) as process:
        ready(process)
        (left,) = engine.containers()
        (record,) = (tmp_path / "run").glob("server-*.json")
        kill_both(process, json.loads(record.read_text())["reaper"])
    assert engine.containers() == [left]
    with start(tmp_path, stand_in()):
        assert left not in engine.containers()
        assert not record.exists()
    assert engine.containers() == []


def kill_all(owner: subprocess.Popen[str], run_dir: Path) -> None:
    """Kill owner, reaper and the engine's client before any can act, as a cluster does that cancels a job."""
    (record,) = run_dir.glob("server-*.json")
    pids = json.loads(record.read_text())
    os.kill(pids["pid"], signal.SIGSTOP)  # the engine's client, before it hears of the reaper's death
    kill_both(owner, pids["reaper"])
    os.kill(pids["pid"], signal.SIGKILL)


def test_a_container_ends_by_itself_where_no_process_of_ours_is_left(
    tmp_path: Path, stand_in: Options, engine: Engine
) -> None:
    with owner(tmp_path, stand_in()) as process:
        ready(process)
        assert len(engine.containers()) == 1
        kill_all(process, tmp_path / "run")
        wait_until(lambda: not engine.containers(), "the container ended itself")


def test_a_container_without_any_process_of_ours_is_found_by_its_record(
    tmp_path: Path, stand_in: Options, engine: Engine
) -> None:
    with owner(tmp_path, stand_in(), ignore_term=True) as process:
        ready(process)
        kill_all(process, tmp_path / "run")
    assert len(engine.containers()) == 1, "its guard is still patient with it"
    assert end_leftovers(tmp_path / "run") != []
    assert engine.containers() == []


def test_a_container_of_an_earlier_boot_is_removed_by_its_record(
    tmp_path: Path, stand_in: Options, engine: Engine
) -> None:
    with owner(tmp_path, stand_in()) as process:
        ready(process)
        (record,) = (tmp_path / "run").glob("server-*.json")
        text = record.read_text()
        process.kill()
        wait_until(lambda: not record.exists(), "the server is gone")
    name = f"longctx-{json.loads(text)['id']}"
    label = f"longctx.campaign={CAMPAIGN}"
    assert engine.start("--detach", "--name", name, "--label", label, IMAGE, "true").returncode == 0
    record.write_text(json.dumps(json.loads(text) | {"boot": "an earlier one"}))
    assert end_leftovers(tmp_path / "run") == []
    assert not record.exists()
    assert engine.containers() == []


def test_a_container_that_is_removed_is_noticed_at_once(tmp_path: Path, stand_in: Options, engine: Engine) -> None:
    with start(tmp_path, stand_in()) as server:
        (name,) = engine.containers()
        engine.end(name)
        wait_until(lambda: not server.alive(), "the death is noticed")
        assert server.death_reason() != ""


def test_a_server_that_exits_gives_its_own_last_words(tmp_path: Path, stand_in: Options, engine: Engine) -> None:
    asked = recipe(tmp_path, exit_after_s=0.1, exit_lines="RuntimeError: the device is on fire")
    with pytest.raises(ServerError, match="the device is on fire"), start(tmp_path, stand_in(), asked):
        pass


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"image": "localhost/no-such-image:1"}, "the image localhost/no-such-image:1 does not exist"),
        ({"engine": "docker"}, "docker is not installed"),
        ({"mounts": ["/no/such/folder:/data"]}, "mount source /no/such/folder does not exist"),
        ({"mounts": ["/etc/passwd:/var:ro"]}, "mount of /etc/passwd was refused"),
        ({"python": "/no/such/python"}, "container.python is not in the image"),
        ({"extra_args": ["--device", "nvidia.com/gpu=all"]}, "nvidia.com/gpu=all is not "),
        ({"extra_args": ["--ulimit", "nofile=99999999:99999999"]}, "lower container.ulimits"),
    ],
)
def test_one_sentence_for_what_cannot_start(
    tmp_path: Path,
    stand_in: Options,
    engine: Engine,
    options: dict[str, Any],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "engine" in options:
        monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerError, match=words) as caught, start(tmp_path, stand_in(**options)):
        pass
    assert caught.value.reason == "server_start"
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "run").glob("server-*.json"))


def test_the_recipe_is_read_only_and_checkpoints_are_not(tmp_path: Path, stand_in: Options, engine: Engine) -> None:
    (tmp_path / "checkpoint").mkdir()
    tiers = {
        "kv_connector_extra_config": {"secondary_tiers": [{"type": "fs", "root_dir": str(tmp_path / "checkpoint")}]}
    }
    with start(tmp_path, stand_in(), replace(recipe(tmp_path), kv_transfer_config=tiers)):
        (name,) = engine.containers()
        assert engine.call("exec", name, "touch", str(tmp_path / "model" / "x")).returncode != 0
        assert engine.call("exec", name, "touch", str(tmp_path / "checkpoint" / "x")).returncode == 0
    assert (tmp_path / "checkpoint" / "x").exists()


def test_a_live_run_of_ours_is_left_alone(tmp_path: Path, stand_in: Options, engine: Engine) -> None:
    with start(tmp_path, stand_in()):
        names = engine.containers()
        assert leftovers.end_leftovers(tmp_path / "run") == []
        assert engine.containers() == names
