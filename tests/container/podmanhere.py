"""What the container tests share: podman, and a thin image that borrows this host's programs read-only."""

import io
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from longctx.server.engines import own_limits

ROOT = Path(__file__).parents[2]
IMAGE = "localhost/longctx-thin:test"
FOLDERS = ("etc", "opt", "proc", "root", "run", "sys", "tmp", "usr", "var", "dev")
# Where Debian-like hosts keep what the dynamic loader needs.
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
PASSWD = b"root:x:0:0:root:/root:/bin/sh\n"
LIMITS = [text for limit in own_limits("podman") for text in ("--ulimit", limit)]


def podman(*arguments: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["podman", *arguments], capture_output=True, text=True, timeout=timeout_s, check=False)


def containers(owner_label: str = "longctx.owner") -> list[str]:
    """The names of all containers that carry the label, running or not."""
    return podman("ps", "--all", "--filter", f"label={owner_label}", "--format", "{{.Names}}").stdout.split()


def wait_until(true: Callable[[], Any], what: str, limit_s: float = 40.0) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


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
