"""Ownership of server processes: a record on disk, the reaper around each server, and what a later run may end.

Record (run_dir/server-<id>.json): id, campaign, host, boot (the kernel's boot id), owner and owner_start, port,
stop_commands, sockets; the reaper adds itself, pid and start of the server, and shared_memory. Times are clock ticks
since boot, so that a reused process id is never mistaken. Nobody is ever found by port or by name.
"""

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path

from longctx.errors import ServerError
from longctx.processes import reaper
from longctx.processes.identity import boot_id
from longctx.processes.launch import Launch, ProcessOwner
from longctx.processes.leftovers import GRACE_S, REAPER_PATIENCE_S, end_marked, recorded_memory


def new_owner(campaign: str, run_dir: Path) -> ProcessOwner:
    """Return a fresh owner id for one server start."""
    return ProcessOwner(id=uuid.uuid4().hex[:12], campaign=campaign, run_dir=run_dir)


class SupervisedProcess:
    """A program that runs under the reaper: alive, how it ended, and how to end it. Made by `keep`."""

    def __init__(self, launch: Launch, owner: ProcessOwner, port: int, log_path: Path) -> None:
        self.record_path = owner.run_dir / f"server-{owner.id}.json"
        self.pid: int | None = None
        self.exit_code: int | None = None
        self.failure: str | None = None  # why the program could not even be run
        self.log_error: tuple[int, str] | None = None
        self._stop_commands, self._sockets = launch.stop_commands, launch.sockets
        self._owner_id = owner.id
        self._ended = threading.Event()
        self._settled = threading.Event()
        self._claim(owner, port)
        spec = {
            "command": launch.command,
            "log_path": str(log_path),
            "record_path": str(self.record_path),
            "stop_commands": launch.stop_commands,
            "grace_s": GRACE_S,
            "owner_pid": os.getpid(),
            "holds_stdin": launch.holds_stdin,
            "sockets": launch.sockets,
        }
        self._reaper = subprocess.Popen(
            [sys.executable, "-I", "-S", reaper.__file__, json.dumps(spec)],
            env=launch.env | {reaper.MARKER: owner.id},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._settled.wait(REAPER_PATIENCE_S)

    def alive(self) -> bool:
        """Return whether the program and its reaper both run."""
        return self._settled.is_set() and not self._ended.is_set()

    def processes(self) -> set[int]:
        """Return the process ids of the program and everything below it."""
        return set(reaper.descendants(self._reaper.pid))

    def settle(self, patience_s: float = 2.0) -> None:
        """Wait a little, after the program's end, for the last of its output and its children."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._reaper.wait(patience_s)

    def stop(self) -> list[int]:
        """End the program and everything below it; return the process ids that resisted SIGKILL (normally none)."""
        self._close_pipe()
        try:
            self._reaper.wait(GRACE_S + REAPER_PATIENCE_S + 60.0 * len(self._stop_commands))
        except subprocess.TimeoutExpired:
            self._reaper.kill()
            self._reaper.wait()
        self._listener.join(5.0)
        if self._reaper.stdout:
            self._reaper.stdout.close()
        self._ended.set()
        # normally nothing is left to do: this is for a reaper that was itself killed
        memory = recorded_memory(self.record_path, reaper.marked(self._owner_id))
        left = end_marked(self._owner_id, self._stop_commands if self.record_path.exists() else [])
        reaper.free_shared_memory(memory)
        reaper.remove_sockets(self._sockets)
        if not left:
            self.record_path.unlink(missing_ok=True)
        return left

    def _close_pipe(self) -> None:
        if self._reaper.stdin and not self._reaper.stdin.closed:
            self._reaper.stdin.close()

    def _claim(self, owner: ProcessOwner, port: int) -> None:
        """Write the record, and after it, so that a later run knows of it, make the folder for the sockets."""
        record = {
            "id": owner.id,
            "campaign": owner.campaign,
            "host": platform.node(),
            "boot": boot_id(),
            "port": port,
            "owner": os.getpid(),
            "owner_start": reaper.start_ticks(os.getpid()),
            "reaper": None,
            "pid": None,
            "start": None,
            "stop_commands": self._stop_commands,
            "sockets": self._sockets,
        }
        try:
            owner.run_dir.mkdir(parents=True, exist_ok=True)
            self.record_path.write_text(json.dumps(record))
            if self._sockets:
                os.mkdir(self._sockets, 0o700)
        except OSError as error:
            with contextlib.suppress(OSError):
                self.record_path.unlink()
            where = error.filename or self.record_path
            raise ServerError(f"{where}: {error.strerror}; no server is started", "server_start") from error

    def _listen(self) -> None:
        assert self._reaper.stdout is not None
        for line in self._reaper.stdout:
            event = json.loads(line)
            match event["event"]:
                case "started":
                    self.pid = event["pid"]
                case "failed":
                    self.failure = event["detail"]
                    self._ended.set()
                case "exited":
                    self.exit_code = event["code"]
                    self._ended.set()
                case "log_error":
                    self.log_error = (event["errno"], event["detail"])
            self._settled.set()
        self._ended.set()
        self._settled.set()


def keep(launch: Launch, owner: ProcessOwner, port: int, log_path: Path) -> SupervisedProcess:
    """Start `launch` under the reaper; ServerError(reason='server_start') where its program cannot be run."""
    kept = SupervisedProcess(launch, owner, port, log_path)
    if kept.failure:
        kept.stop()
        raise ServerError(f"the server's program cannot be run: {kept.failure}", "server_start")
    return kept


def describe_exit(code: int | None) -> str:
    """Return how a program ended, for a sentence that begins with its name."""
    if code is None:
        return "ended together with its reaper, so that nobody knows how"
    if code >= 0:
        return f"exited with code {code}"
    name = signal.Signals(-code).name
    return f"was killed by {name}" + (" (often for want of memory)" if name == "SIGKILL" else "")
