"""The life of one server: start, prove that it is ours and ready, ask it for its facts, hand it out, end it.

`serve` is the whole of it. Whatever ends the block (success, an exception, a signal, SIGKILL of this process) ends the
server too: by the `finally` here, or else by its reaper.
"""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import psutil

from longctx.campaign.recipe import Launcher, Recipe
from longctx.errors import ServerError
from longctx.processes import cpu_affinity, leftovers, reaper, supervisor
from longctx.processes.launch import Launch
from longctx.serve import contract, facts
from longctx.serve.contract import enforce
from longctx.serve.launchers import container, engines, external, local
from longctx.serve.launchers.kinds import Kind
from longctx.serve.log import Log
from longctx.serve.machine import gpu_memory, gpus, host
from longctx.serve.server import Server

HOST = "127.0.0.1"
POLL_S = 0.1
PROBE_TIMEOUT_S = 3.0
TAIL_LINES = 30


def kinds() -> dict[str, Kind]:
    """Return the launchers that start servers, by name."""
    return {"local": local, "container": container}


@contextlib.contextmanager
def serve(
    recipe: Recipe,
    launcher: Launcher,
    *,
    run_dir: Path,
    log_path: Path,
    campaign: str,
    start_timeout_s: float,
    contract: str = "fail",
    on_log: Callable[[str], None] | None = None,
) -> Iterator[Server]:
    """Yield a ready server that runs `recipe`, with its facts and its checked contract; end it after the block.

    run_dir keeps the ownership records: what an earlier run of ours left there is ended first. The server's output is
    appended to log_path, secrets masked; on_log gets each new line while the server starts. contract: 'fail' or 'warn'.
    The block runs off the processors that the server's threads are bound to.
    ServerError has reason server_start, not_ours, kv_too_small, contract, disk_full or unsupported.
    """
    say = on_log or (lambda _: None)
    if launcher.kind == "external":
        yield _agreed(external.connect(recipe, launcher.options), contract)
        return
    if (kind := kinds().get(launcher.kind)) is None:
        raise ServerError(f"launcher: {launcher.kind!r} is not local, container or external", "server_start")
    for sentence in leftovers.end_leftovers(run_dir):
        say(sentence)
    gpu_memory.wait_until_free(run_dir)
    owner = supervisor.new_owner(campaign, run_dir)
    port = choose_port(launcher.options.get("port"))
    unique_name = f"{recipe.served_name}-{owner.id}"
    launch = kind.prepare(_named(recipe, unique_name), launcher.options, owner, HOST, port)
    log = Log(log_path, reaper.secret_values(launch.env))
    log.begin(launch.command)
    with gpu_memory.resting_level(run_dir, launch.seen_env):
        started = time.monotonic()
        kept = supervisor.keep(launch, owner, port, log_path)
        try:
            _wait_ready(kept, log, port, unique_name, started + start_timeout_s, start_timeout_s, say)
            server = _describe(recipe, launch, kept, log, port, time.monotonic() - started)
            with cpu_affinity.keep_off(kept.processes()):
                yield _agreed(server, contract)
        finally:
            if left := kept.stop():
                say(f"processes {left} of the server survive SIGKILL")


def choose_port(wanted: int | None = None) -> int:
    """Return a free port on the loopback address; ServerError(reason='not_ours') if the wanted one is taken."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, wanted or 0))
        except OSError as error:
            raise ServerError(f"port {wanted} is already used by {_listener(wanted or 0)}", "not_ours") from error
        port: int = sock.getsockname()[1]
    return port


def _named(recipe: Recipe, unique_name: str) -> Recipe:
    """Return the recipe with a second served name that no other server can have: the proof that the answer is ours."""
    return replace(recipe, served_aliases=(*recipe.served_aliases, unique_name))


def _wait_ready(
    kept: supervisor.SupervisedProcess,
    log: Log,
    port: int,
    name: str,
    deadline: float,
    limit_s: float,
    say: Callable[[str], None],
) -> None:
    """Return once our own server lists its unique name; ServerError as soon as it can't be."""
    with httpx.Client(base_url=f"http://{HOST}:{port}", timeout=PROBE_TIMEOUT_S, trust_env=False) as client:
        while True:
            for line in log.new_lines():
                say(facts.clean(line))
            if kept.log_error:
                raise _log_failure(kept.log_error, log)
            if not kept.alive():
                raise _early_end(kept, log, port)
            names = _served_names(client)
            if names is not None and name in names:
                return
            if names is not None:
                raise ServerError(
                    f"port {port} is answered by {_listener(port)}, which serves {', '.join(names) or 'no model'}: "
                    "not the server that was started",
                    "not_ours",
                )
            if time.monotonic() > deadline:
                raise _too_late(kept, log, limit_s)
            time.sleep(POLL_S)


def _served_names(client: httpx.Client) -> list[str] | None:
    """Return the model names served on the port, None while nobody answers there as a healthy server."""
    try:
        if not client.get("/health").is_success:
            return None
        answer = client.get("/v1/models")
        return [str(model["id"]) for model in answer.json()["data"]] if answer.is_success else []
    except httpx.HTTPError:
        return None
    except (ValueError, KeyError, TypeError):
        return []


def _early_end(kept: supervisor.SupervisedProcess, log: Log, port: int) -> ServerError:
    kept.stop()  # so that the last words are in the log
    lines = log.lines()
    tail = "\n".join(lines[-TAIL_LINES:])
    too_small, longest = facts.kv_limit(lines)
    if too_small:
        holds = f"holds {longest} tokens at most" if longest else "has no room"
        return ServerError(f"the KV cache {holds}: {facts.root_cause_line(lines)}", "kv_too_small", tail, longest)
    if "address already in use" in "\n".join(lines).lower():
        return ServerError(f"port {port} is already used by {_listener(port)}", "not_ours", tail)
    if refused := engines.explain(lines):
        return ServerError(f"the container did not start: {refused}", "server_start", tail)
    how = supervisor.describe_exit(kept.exit_code)
    return ServerError(f"the server {how} before it was ready: {facts.root_cause_line(lines)}", "server_start", tail)


def _too_late(kept: supervisor.SupervisedProcess, log: Log, limit_s: float) -> ServerError:
    kept.stop()
    lines = log.lines()
    last = facts.clean(lines[-1]) if lines else "it printed nothing"
    message = f"the server was not ready after {limit_s:g} s; its last words: {last}"
    return ServerError(message, "server_start", "\n".join(lines[-TAIL_LINES:]))


def _log_failure(problem: tuple[int, str], log: Log) -> ServerError:
    return ServerError(f"{log.path}: the server's log cannot be written: {problem[1]}", "disk_full")


def _listener(port: int) -> str:
    """Name who listens on a port, as far as this user may see it; for messages only, never to decide whom to end."""
    with contextlib.suppress(psutil.Error, OSError):
        for found in psutil.net_connections("tcp"):
            if found.laddr and found.laddr.port == port and found.status == psutil.CONN_LISTEN and found.pid:
                return f"process {found.pid} ({psutil.Process(found.pid).name()})"
    return "another process"


def _describe(
    recipe: Recipe, launch: Launch, kept: supervisor.SupervisedProcess, log: Log, port: int, startup_s: float
) -> Server:
    url = f"http://{HOST}:{port}"
    known = launch.facts | {"startup_s": round(startup_s, 3), "model": recipe.served_name}
    said = facts.collect(url, log.lines(), known, launch.probe)
    return Server(
        url=url,
        model=recipe.served_name,
        facts=said.server_facts(),
        host_facts=host.host_facts(launch.seen_env, recipe.ranks),
        contract=contract.check(recipe, said),
        env_json=host.environment_json(launch.seen_env),
        command=log.masked_words(launch.command),
        log=log,
        kept=kept,
        gpu_numbers=_gpu_numbers(recipe, launch),
    )


def _gpu_numbers(recipe: Recipe, launch: Launch) -> tuple[int, ...]:
    """Return the GPUs that the server computes on; which ones a container was given is known only if it uses all."""
    numbers = gpus.gpu_numbers(launch.seen_env, recipe.ranks)
    return numbers if launch.server_env is None or len(numbers) == len(gpus.gpus()) else ()


def _agreed(server: Server, contract: str) -> Server:
    if contract == "fail":
        enforce(server.contract)
    return server
