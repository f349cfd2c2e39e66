"""Server processes under a reaper: started, watched and ended, each with an ownership record on disk.

Record (run_dir/server-<id>.json): id, campaign, host, boot (the kernel's boot id), owner and owner_start, port,
stop_commands, sockets; the reaper adds itself, pid and start of the server, and shared_memory. Times are clock ticks
since boot, so that a reused process id is recognised. No process is ever found by port or by name.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self

from longctx.errors import ServerError
from longctx.processes import reaper
from longctx.processes.launch import Launch, Ownership
from longctx.processes.leftovers import GRACE_S, REAPER_PATIENCE_S, end_unreaped
from longctx.processes.process_identity import MARKER, this_process
from longctx.redaction import MASK, SHAPES, secret_variables


class SupervisedProcess:
    """A program that runs under the reaper. Made by `start`, which waits until it runs."""

    def __init__(self, record: dict[str, Any], record_path: Path, process: "subprocess.Popen[bytes]") -> None:
        self.pid: int | None = None
        self.exit_code: int | None = None
        self.failure: str | None = None  # why the program could not even be run
        self.log_error: str | None = None
        self._record, self._record_path, self._reaper = record, record_path, process
        self._ended, self._settled = threading.Event(), threading.Event()
        self._listener = threading.Thread(target=self._listen, daemon=True)

    @classmethod
    def start(cls, launch: Launch, ownership: Ownership, port: int, log_path: Path) -> Self:
        """Start the program and return once it runs; ServerError(reason='server_start') where it cannot be run."""
        record_path = ownership.run_dir / f"server-{ownership.id}.json"
        record = _write_record(record_path, launch, ownership, port)
        spec = record | {"record_path": str(record_path), "command": launch.command, "log_path": str(log_path)}
        spec |= {"grace_s": GRACE_S, "holds_stdin": launch.holds_stdin, "mask": MASK}
        # their names: a command line is no place for values
        spec |= {"secret_variables": secret_variables(launch.env), "secret_shapes": SHAPES}
        command = [sys.executable, "-I", "-S", reaper.__file__, json.dumps(spec)]
        env, pipe, null = launch.env | {MARKER: ownership.id}, subprocess.PIPE, subprocess.DEVNULL
        process = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=null, start_new_session=True)
        started = cls(record, record_path, process)
        started._listener.start()
        started._settled.wait(REAPER_PATIENCE_S)
        if started.failure:
            started.stop()
            raise ServerError(f"the server's program cannot be run: {started.failure}", "server_start")
        return started

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
        if self._reaper.stdin:
            self._reaper.stdin.close()
        try:
            self._reaper.wait(GRACE_S + REAPER_PATIENCE_S + 60.0 * len(self._record["stop_commands"]))
        except subprocess.TimeoutExpired:
            self._reaper.kill()
            self._reaper.wait()
        self._listener.join(5.0)
        if self._reaper.stdout:
            self._reaper.stdout.close()
        self._ended.set()
        # normally nothing is left to do: this is for a reaper that was itself killed
        return end_unreaped(self._record_path, self._record)

    def describe_exit(self) -> str:
        """Return how the program ended, for a sentence that begins with its name."""
        if self.exit_code is None:
            return "ended together with its reaper, so that nobody knows how"
        if self.exit_code >= 0:
            return f"exited with code {self.exit_code}"
        name = signal.Signals(-self.exit_code).name
        return f"was killed by {name}" + (" (often for want of memory)" if name == "SIGKILL" else "")

    def _listen(self) -> None:
        assert self._reaper.stdout is not None
        for line in self._reaper.stdout:
            event = json.loads(line)
            self.pid = event.get("pid", self.pid)
            self.failure = event.get("failure", self.failure)
            self.log_error = event.get("log_error", self.log_error)
            if "exit_code" in event:
                self.exit_code = event["exit_code"]
                self._ended.set()
            self._settled.set()
        self._ended.set()
        self._settled.set()


def _write_record(path: Path, launch: Launch, ownership: Ownership, port: int) -> dict[str, Any]:
    """Write the record, then make the folder for the sockets, so that a later run can find and remove it."""
    me = this_process()
    record = {"id": ownership.id, "campaign": ownership.campaign, "host": me["host"], "boot": me["boot"], "port": port}
    record |= {"owner": me["pid"], "owner_start": me["start"], "reaper": None, "pid": None, "start": None}
    record |= {"stop_commands": launch.stop_commands, "sockets": launch.sockets}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record), encoding="utf-8")
        if launch.sockets:
            os.mkdir(launch.sockets, 0o700)
    except OSError as error:
        with contextlib.suppress(OSError):
            path.unlink()
        message = f"{error.filename or path}: {error.strerror}; no server is started"
        raise ServerError(message, "server_start") from error
    return record
