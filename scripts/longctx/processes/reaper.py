"""The reaper: runs one server as its child and ends all of it when its owner is gone, however the owner died.

A program of its own (standard library only, started by file name): it lives in a session of its own, so that a signal
to the owner's process group does not reach it; it is the subreaper of everything below it, so that no grandchild
escapes by a double fork or a session of its own. It copies the server's output to the log, secret values masked, and
removes the shared memory and the sockets that a server leaves behind.

    python -I -S reaper.py SPEC      SPEC is JSON: the ownership record, record_path, command, log_path, grace_s,
                                 holds_stdin, secret_variables (whose values are masked, longest first), secret_shapes
                                 ([pattern, what stays] of what else is masked), mask

Its standard input is a pipe that only the owner holds: end of file means stop. Its standard output carries one JSON
object a line: {pid} of the started server, {failure} to start it, its {exit_code}, {log_error}. It ends when all
is over.
"""

import contextlib
import ctypes
import json
import os
import re
import select
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SHARED_MEMORY = "/dev/shm/"
LOOK_S = 5.0


def start_ticks(pid: int) -> int | None:
    """Return when a live process started, in clock ticks since boot; None for a dead one or a zombie."""
    entry = _stat(pid)
    return None if entry is None or entry[1] == "Z" else entry[2]


def send(pid: int, start: int, signum: int) -> None:
    """Signal a process if it is still the one that started at `start`; a reused pid is left alone."""
    with contextlib.suppress(OSError), open(os.pidfd_open(pid), "rb", buffering=0) as handle:
        if start_ticks(pid) == start:
            signal.pidfd_send_signal(handle.fileno(), signum)


def end_processes(find: Callable[[], dict[int, int]], signum: int, patience_s: float) -> None:
    """Signal each process that `find` returns ({pid: start_ticks}), until there is none or the patience ends."""
    deadline, sent = time.monotonic() + patience_s, set[tuple[int, int]]()
    while (left := find()) and time.monotonic() < deadline:
        for process in left.items() - sent:
            send(*process, signum)
        sent |= left.items()
        time.sleep(0.05)


def shared_memory(pids: Iterable[int]) -> dict[str, list[int]]:
    """Return {path: [device, inode]} of the shared-memory files that these processes map.

    Paths that mean another file here are left out: those of a container with a /dev/shm of its own, and deleted ones.
    """
    files = {}
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", "rb") as file:
            for line in file:
                fields = line.split(maxsplit=5)
                if len(fields) == 6 and fields[5].startswith(SHARED_MEMORY.encode()):
                    major, minor = (int(part, 16) for part in fields[3].split(b":"))
                    path = os.fsdecode(fields[5].rstrip(b"\n"))
                    if _identity(path) == (identity := [os.makedev(major, minor), int(fields[4])]):
                        files[path] = identity
    return files


def free_shared_memory(files: dict[str, list[int]]) -> None:
    """Remove those of `files` (as `shared_memory` returns them) that are still the same and that no process maps."""
    if files:
        used = shared_memory(all_processes())
        for path in files.keys() - used.keys():
            if _identity(path) == files[path]:
                with contextlib.suppress(OSError):
                    os.unlink(path)


def remove_sockets(folder: str | None) -> None:
    """Remove a folder made for a server's sockets; where it holds anything else, it stays with that."""
    if folder:
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                path = os.path.join(folder, name)
                if stat.S_ISSOCK(os.lstat(path).st_mode):
                    os.unlink(path)
            os.rmdir(folder)


def run_stop_commands(commands: list[list[str]]) -> None:
    """Run each stop command, even if the one before failed."""
    for command in commands:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            null = subprocess.DEVNULL
            subprocess.run(command, timeout=60.0, stdin=null, stdout=null, stderr=null, check=False)


def amend_record(path: str, **fields: Any) -> None:
    """Set fields of the ownership record, if there still is one."""
    temporary = f"{path}.{os.getpid()}.tmp"
    with contextlib.suppress(OSError, ValueError):
        with open(path, encoding="utf-8") as file, open(temporary, "w", encoding="utf-8") as amended:
            json.dump(json.load(file) | fields, amended)
        os.replace(temporary, path)


def _identity(path: str) -> list[int] | None:
    with contextlib.suppress(OSError):
        status = os.stat(path)
        return [status.st_dev, status.st_ino]
    return None


def _stat(pid: int) -> tuple[int, str, int] | None:
    """Return (parent pid, state, start ticks) of a process; its name may hold spaces and parentheses."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[1]), fields[0].decode(), int(fields[19])


def all_processes() -> dict[int, tuple[int, str, int]]:
    entries = ((int(name), _stat(int(name))) for name in os.listdir("/proc") if name.isdigit())
    return {pid: entry for pid, entry in entries if entry is not None}


def descendants(root: int, table: dict[int, tuple[int, str, int]] | None = None) -> dict[int, int]:
    """Return {pid: start_ticks} of everything below `root`, zombies left out; `table` is what `all_processes` gave."""
    table = all_processes() if table is None else table
    children: dict[int, list[int]] = {}
    for pid, (parent, _, _) in table.items():
        children.setdefault(parent, []).append(pid)
    below, queue = {}, [root]
    while queue:
        for pid in children.get(queue.pop(), []):
            queue.append(pid)
            if table[pid][1] != "Z":
                below[pid] = table[pid][2]
    return below


class SharedMemory:
    """The shared memory of all processes below this one, noted in the ownership record in case this one is killed too.

    A killed vLLM leaves its message queues (hundreds of MiB); vLLM 0.32 leaves the host memory of prefill checkpoints
    (gigabytes) even after SIGTERM.
    """

    def __init__(self, record_path: str) -> None:
        self.record_path = record_path
        self.files: dict[str, list[int]] = {}
        self.next_look = 0.0

    def look(self, now: bool = False) -> None:
        """Note what is mapped, every few seconds or `now`."""
        if now or time.monotonic() >= self.next_look:
            self.next_look = time.monotonic() + LOOK_S
            mapped = shared_memory(descendants(os.getpid()))
            if not mapped.items() <= self.files.items():
                self.files |= mapped
                amend_record(self.record_path, shared_memory=self.files)


Shapes = Sequence[tuple[str, str]]


class LogPump(threading.Thread):
    """Copies the server's output to the log in whole lines, secrets masked; goes on reading where the disk is full."""

    def __init__(self, source: int, log_path: str, secrets: list[str], mask: str, shapes: Shapes = ()) -> None:
        super().__init__(daemon=True)
        self.source = source
        self.shapes = [(re.compile(pattern.encode()), (kept + mask).encode()) for pattern, kept in shapes]
        self.secrets, self.mask = [os.fsencode(value) for value in secrets], mask.encode()
        self.longest = max(map(len, self.secrets), default=1)
        self.log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.failed = False

    def run(self) -> None:
        pending = b""
        while data := os.read(self.source, 1 << 16):
            pending += data
            cut = max(pending.rfind(b"\n"), pending.rfind(b"\r")) + 1
            if not cut and len(pending) > (1 << 16):
                pending = self.masked(pending)
                cut = len(pending) - self.longest
            self.write(pending[:cut])
            pending = pending[cut:]
        self.write(pending)

    def masked(self, data: bytes) -> bytes:
        for value in self.secrets:
            data = data.replace(value, self.mask)
        for shape, masked in self.shapes:
            data = shape.sub(masked, data)
        return data

    def write(self, data: bytes) -> None:
        data = self.masked(data)
        try:
            while data:
                data = data[os.write(self.log, data) :]
        except OSError as error:
            if not self.failed:
                emit(log_error=error.strerror)
            self.failed = True


def emit(**event: Any) -> None:
    """Send an event to the owner, if it still lives."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(event).encode() + b"\n")


def wait_for_end(child: int, owner: int, wake: int, memory: SharedMemory) -> int | None:
    """Return the child's exit code once it exits, or None once the owner closes the pipe, dies or sends SIGTERM."""
    watched = [0, wake]
    with contextlib.suppress(OSError):
        watched.append(os.pidfd_open(owner))
    while (code := collect(child)) is None:
        memory.look()
        ready, _, _ = select.select(watched, [], [], 1.0)
        ended = wake in ready and signal.SIGTERM in os.read(wake, 4096)
        if ended or (0 in ready and not os.read(0, 4096)) or set(ready) - {0, wake}:
            return None
    return code


def collect(child: int) -> int | None:
    """Reap every zombie of ours and return the child's exit code if it was among them (negative: its signal)."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                code = os.waitstatus_to_exitcode(ended[1])
    return code


def end_all(child: int, alive: bool, stop_commands: list[list[str]], grace_s: float) -> list[int]:
    """Stop by command, then TERM the child, then TERM and KILL whatever is left below us; return what resists."""

    def below() -> dict[int, int]:
        collect(child)
        return descendants(os.getpid())

    def child_alone() -> dict[int, int]:
        return {pid: start for pid, start in below().items() if pid == child}

    run_stop_commands(stop_commands)
    end_processes(child_alone, signal.SIGTERM, grace_s)
    end_processes(below, signal.SIGTERM, 3.0)
    end_processes(below, signal.SIGKILL, 20.0)
    if alive:
        run_stop_commands(stop_commands)  # a container that was just being made when they ran first
    return sorted(below())


def prepare_process() -> int:
    """Shield this process from terminal signals, adopt orphans, and return a pipe that wakes on SIGCHLD and SIGTERM."""
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(signum, signal.SIG_IGN)
    wake, wake_end = os.pipe()
    os.set_blocking(wake_end, False)
    signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
    for signum in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(signum, lambda *_: None)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return wake


def child_setup() -> None:
    """In the child: restore the default signals, and ask for SIGTERM if the reaper is killed."""
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(signum, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def main() -> None:
    spec = json.loads(sys.argv[1])
    wake = prepare_process()
    source, sink = os.pipe()
    # Only this process has the write end: the server's input ends with it.
    stdin = os.pipe()[0] if spec["holds_stdin"] else subprocess.DEVNULL
    try:
        secrets = [os.environ[name].strip() for name in spec["secret_variables"]]
        pump = LogPump(source, spec["log_path"], secrets, spec["mask"], spec["secret_shapes"])
        child = subprocess.Popen(
            spec["command"], stdin=stdin, stdout=sink, stderr=sink, start_new_session=True, preexec_fn=child_setup
        ).pid
    except OSError as error:
        emit(failure=f"{error.filename}: {error.strerror}")
        return
    os.close(sink)
    pump.start()
    amend_record(spec["record_path"], pid=child, start=start_ticks(child), reaper=os.getpid())
    emit(pid=child)
    memory = SharedMemory(spec["record_path"])
    code = wait_for_end(child, spec["owner"], wake, memory)
    if code is not None:
        emit(exit_code=code)
    memory.look(now=True)
    left = end_all(child, code is None, spec["stop_commands"], spec["grace_s"])
    pump.join(2.0)
    free_shared_memory(memory.files)
    remove_sockets(spec["sockets"])
    if not left:
        with contextlib.suppress(OSError):
            os.unlink(spec["record_path"])
    # a Popen object that never saw its child end would complain at interpreter exit
    os._exit(0)


if __name__ == "__main__":
    main()
