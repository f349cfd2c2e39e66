"""The life of one server: start, prove that it is ours and ready, ask it for its facts, hand it out, end it.

`serve` does all of it. Whatever ends the block (success, an exception, a signal, SIGKILL of this process) ends the
server too: by the `finally` here, or else by its reaper.
"""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import psutil

from longctx.campaign.config import ContainerConfig, ExternalConfig, Launcher
from longctx.campaign.recipe import Recipe
from longctx.errors import ServerError
from longctx.processes import cpu_affinity, leftovers
from longctx.processes.launch import Launch, Ownership
from longctx.processes.supervisor import SupervisedProcess
from longctx.redaction import secret_values
from longctx.serve import server_facts
from longctx.serve.contract import check, enforce
from longctx.serve.http import client, model_names
from longctx.serve.launchers import container, engines, external, local
from longctx.serve.machine import gpu_memory, gpus, host
from longctx.serve.root_cause import clean, root_cause_line
from longctx.serve.server import Server
from longctx.serve.server_log import Log

HOST = "127.0.0.1"
POLL_S = 0.1
PROBE_TIMEOUT_S = 3.0
TAIL_LINES = 30


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

    launcher is the configuration's section of who starts it; a launcher raises ServerError where nothing can start.
    run_dir keeps the ownership records and the GPUs' resting level, of all campaigns that share this host: what an
    earlier run of ours left there is ended first, and its memory waited for. The server's output is appended to
    log_path, secrets masked; on_log gets each new line while the server starts. contract: 'fail' or 'warn'. The block
    runs off the processors that the server's threads are bound to.
    ServerError has reason server_start, not_ours, kv_too_small, contract, disk_full or unsupported.
    """
    report = on_log or (lambda _: None)
    if isinstance(launcher, ExternalConfig):
        yield _agreed(external.connect(recipe, launcher), contract)
        return
    for sentence in leftovers.end_leftovers(run_dir):
        report(sentence)
    gpu_memory.wait_until_free(run_dir, report)
    ownership, port = Ownership(campaign, run_dir), choose_port()
    # A second served name that no other server can have: the proof that the answer is ours.
    unique_name = f"{recipe.served_name}-{ownership.id}"
    named = replace(recipe, served_aliases=(*recipe.served_aliases, unique_name))
    if isinstance(launcher, ContainerConfig):
        launch = container.prepare(named, launcher, ownership, HOST, port)
    else:
        launch = local.prepare(named, launcher, ownership, HOST, port)
    log = Log(log_path, secret_values(launch.env))
    log.begin(launch.command)
    with gpu_memory.resting_level(run_dir, launch.seen_env) as before:
        started_s = time.monotonic()
        process = SupervisedProcess.start(launch, ownership, port, log_path)
        try:
            start = _Start(process, log, port)
            start.wait_ready(unique_name, start_timeout_s, report)
            memory = {"gpu_memory_bytes": gpu_memory.taken_bytes(before)}
            server = start.describe(recipe, launch, memory, time.monotonic() - started_s)
            with cpu_affinity.keep_off(process.processes()):
                yield _agreed(server, contract)
        finally:
            if left := process.stop():
                report(f"processes {left} of the server survive SIGKILL")


def choose_port() -> int:
    """Return a free port on the loopback address."""
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        return int(sock.getsockname()[1])


@dataclass(frozen=True, slots=True)
class _Start:
    """A server between its start and its readiness."""

    process: SupervisedProcess
    log: Log
    port: int

    def wait_ready(self, name: str, limit_s: float, report: Callable[[str], None]) -> None:
        """Return once our own server lists its unique name; ServerError as soon as that is impossible."""
        deadline_s = time.monotonic() + limit_s
        with client(f"http://{HOST}:{self.port}", timeout_s=PROBE_TIMEOUT_S) as http:
            while True:
                for line in self.log.new_lines():
                    report(clean(line))
                if self.process.log_error:
                    message = f"{self.log.path}: the server's log cannot be written: {self.process.log_error}"
                    raise ServerError(message, "disk_full")
                if not self.process.alive():
                    raise self._early_end()
                names = _served_names(http)
                if names is not None and name in names:
                    return
                if names is not None:
                    other = f"{_listener(self.port)}, which serves {', '.join(names) or 'no model'}"
                    message = f"port {self.port} is answered by {other}: not the server that was started"
                    raise ServerError(message, "not_ours")
                if time.monotonic() > deadline_s:
                    lines = self._last_lines()
                    last = clean(lines[-1]) if lines else "it printed nothing"
                    raise _error(f"the server was not ready after {limit_s:g} s; its last words: {last}", lines)
                time.sleep(POLL_S)

    def describe(self, recipe: Recipe, launch: Launch, memory: dict[str, int | None], startup_s: float) -> Server:
        """Ask the ready server for its facts, and check its contract; `memory` is what its GPUs hold."""
        url, env = f"http://{HOST}:{self.port}", launch.seen_env
        known = launch.facts | memory | {"startup_s": round(startup_s, 3), "model": recipe.served_name}
        report = server_facts.collect(url, self.log.lines(), known, launch.probe)
        facts_of_host, env_json = host.host_facts(env, recipe.ranks), host.environment_json(env)
        described = (url, recipe.served_name, report.server_facts(), facts_of_host, check(recipe, report), env_json)
        words, numbers = self.log.masked_words(launch.command), gpus.gpu_numbers(env, recipe.ranks)
        if launch.server_env is not None and len(numbers) != len(gpus.gpus()):
            numbers = ()  # those of a container are known only if it uses all
        return Server(*described, words, log=self.log, process=self.process, gpu_numbers=numbers)

    def _early_end(self) -> ServerError:
        lines = self._last_lines()
        cause = root_cause_line(lines)
        too_small, longest = server_facts.kv_limit(lines)
        if too_small:
            holds = f"holds {longest} tokens at most" if longest else "has no room"
            return _error(f"the KV cache {holds}: {cause}", lines, "kv_too_small", longest)
        if "address already in use" in "\n".join(lines).lower():
            return _error(f"port {self.port} is already used by {_listener(self.port)}", lines, "not_ours")
        if refused := engines.explain(lines):
            return _error(f"the container did not start: {refused}", lines)
        return _error(f"the server {self.process.describe_exit()} before it was ready: {cause}", lines)

    def _last_lines(self) -> list[str]:
        """End the server, so that its last lines are in the log, and return the log."""
        self.process.stop()
        return self.log.lines()


def _error(text: str, lines: list[str], reason: str = "server_start", kv_tokens: int | None = None) -> ServerError:
    return ServerError(text, reason, "\n".join(lines[-TAIL_LINES:]), kv_tokens)


def _served_names(http: httpx.Client) -> list[str] | None:
    """Return the names of the served models; None while no healthy server answers."""
    try:
        return model_names(http.get("/v1/models")) if http.get("/health").is_success else None
    except httpx.HTTPError:
        return None


def _listener(port: int) -> str:
    """Name the process that listens on a port, if this user may see it. For messages only: it decides nothing."""
    with contextlib.suppress(psutil.Error, OSError):
        for socket_ in psutil.net_connections("tcp"):
            if socket_.laddr and socket_.laddr.port == port and socket_.status == psutil.CONN_LISTEN and socket_.pid:
                return f"process {socket_.pid} ({psutil.Process(socket_.pid).name()})"
    return "another process"


def _agreed(server: Server, contract: str) -> Server:
    if contract == "fail":
        enforce(server.contract)
    return server
