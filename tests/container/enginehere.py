"""What the container tests share: an engine, and a thin image that borrows this host's programs read-only."""

import io
import os
import shutil
import subprocess
import tarfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longctx.serve.launchers.engines import own_limits

ROOT = Path(__file__).parents[2]
# Of this test run alone: another one on this machine has its own images and containers.
RUN = uuid.uuid4().hex[:8]
CAMPAIGN = f"test-{RUN}"
IMAGE = f"localhost/longctx-thin:{RUN}"
FOLDERS = (
    "etc",
    "opt",
    "proc",
    "root",
    "run",
    "sys",
    "tmp",
    "usr",
    "var",
    "dev",
    "sbin",
)  # docker puts its init in /sbin
# Where Debian-like hosts keep what the dynamic loader needs.
LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64"}
PASSWD = b"root:x:0:0:root:/root:/bin/sh\n"


@dataclass(frozen=True, slots=True)
class Engine:
    """podman, or docker with its daemon up."""

    name: str

    def call(self, *arguments: str, data: bytes | None = None) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([self.name, *arguments], input=data, capture_output=True, timeout=300, check=False)
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    def containers(self) -> list[str]:
        """The names of all containers of this test run's campaign, running or not."""
        label = f"label=longctx.campaign={CAMPAIGN}"
        return self.call("ps", "--all", "--filter", label, "--format", "{{.Names}}").stdout.split()

    def start(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a container of the thin image with this host's programs; `arguments` end with IMAGE and a command."""
        limits = [text for limit in own_limits(self.name) for text in ("--ulimit", limit)]
        return self.call("run", "--network=host", *limits, "--volume", "/usr:/usr:ro", *arguments)

    def end(self, name: str) -> None:
        self.call("kill", name)
        self.call("rm", "--force", name)


def wait_until(true: Callable[[], Any], what: str, limit_s: float = 300.0) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@contextmanager
def docker_daemon(folder: Path) -> Iterator[str | None]:
    """Yield None with a docker daemon at hand, one of our own where none runs, or else why there is none."""
    if shutil.which("docker") is None:
        yield "docker is not installed"
    elif Engine("docker").call("version").returncode == 0:
        yield None
    elif shutil.which("dockerd") is None or os.geteuid() != 0:
        yield "no docker daemon answers"
    else:
        with _own_daemon(folder) as why_not:
            yield why_not


@contextmanager
def _own_daemon(folder: Path) -> Iterator[str | None]:
    socket = f"unix://{folder}/docker.sock"
    flags = ["--iptables=false", "--bridge=none", "--pidfile", folder / "pid", "--host", socket]
    homes = ["--data-root", folder / "data", "--exec-root", folder / "exec"]
    with open(folder / "log", "w") as log:
        daemon = subprocess.Popen(["dockerd", *flags, *homes], stdout=log, stderr=log, start_new_session=True)
    os.environ["DOCKER_HOST"] = socket
    try:
        deadline = time.monotonic() + 120.0
        while (answers := Engine("docker").call("version").returncode) and time.monotonic() < deadline:
            time.sleep(0.2)
        yield f"docker's daemon does not start: {(folder / 'log').read_text()[-300:]}" if answers else None
    finally:
        del os.environ["DOCKER_HOST"]
        daemon.terminate()
        daemon.wait(60)
        # It leaves its network namespace mounted, and pytest would fail at removing the folder, three runs later.
        unmount_below(folder)


def unmount_below(folder: Path) -> None:
    """Unmount whatever is mounted below `folder`, the innermost first."""
    mounted = [line.split()[1].replace("\\040", " ") for line in Path("/proc/mounts").read_text().splitlines()]
    for target in sorted((path for path in mounted if Path(path).is_relative_to(folder)), reverse=True):
        subprocess.run(["umount", target], check=False)


def thin_root() -> bytes:
    """A tar of empty folders, links into /usr, and a user."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        for name in FOLDERS:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(folder)
        for name, target in LINKS.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
        passwd = tarfile.TarInfo("etc/passwd")
        passwd.size = len(PASSWD)
        tar.addfile(passwd, io.BytesIO(PASSWD))
    return sink.getvalue()


def python_mounts(python: Path) -> list[str]:
    """Mounts that make a virtual environment's Python of this host run in the thin image."""
    asked = subprocess.run(
        [python, "-c", "import sys; print(sys.prefix, sys.base_prefix)"], capture_output=True, text=True, check=True
    )
    folders = {"/usr", *asked.stdout.split()} - {"/usr/local"}
    return [f"{folder}:{folder}:ro" for folder in sorted(folders)]
