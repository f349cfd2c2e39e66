"""A thin image that borrows this host's programs, read-only: real podman in seconds, without a registry or a build."""

import io
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from longctx.server.engines import own_limits

ROOT = Path(__file__).parents[2]
IMAGE = "localhost/longctx-thin:test"
FOLDERS = ("etc", "opt", "proc", "root", "run", "sys", "tmp", "usr", "var", "dev")
# Where Debian-like hosts keep what the dynamic loader needs.
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
PASSWD = b"root:x:0:0:root:/root:/bin/sh\n"


def podman(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["podman", *arguments], capture_output=True, text=True, timeout=120, check=False)


def containers(owner_label: str = "longctx.owner") -> list[str]:
    """The names of all containers that carry the label, running or not."""
    return podman("ps", "--all", "--filter", f"label={owner_label}", "--format", "{{.Names}}").stdout.split()


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


@pytest.fixture(scope="session")
def thin_image() -> Iterator[str]:
    """The thin image, made for this session; skips with the reason where podman is missing or cannot run it."""
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed (envs/debian-container.txt)")
    made = subprocess.run(["podman", "import", "-", IMAGE], input=thin_root(), capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"podman cannot import an image: {made.stderr.decode().strip()}")
    limits = [text for limit in own_limits("podman") for text in ("--ulimit", limit)]
    tried = podman("run", "--rm", "--network=host", *limits, "--volume", "/usr:/usr:ro", IMAGE, "true")
    if tried.returncode != 0:
        pytest.skip(f"podman cannot run a container here: {tried.stderr.strip()}")
    yield IMAGE
    podman("rmi", "--force", IMAGE)


@pytest.fixture
def stand_in(thin_image: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Options of launcher `container` under which vLLM's stand-in (tests/fakeserver.py) runs."""
    base = Path(sys.base_prefix) / "bin" / "python3"

    def options(**more: Any) -> dict[str, Any]:
        mounts = [*python_mounts(base), f"{ROOT / 'tests'}:{ROOT / 'tests'}:ro", *more.pop("mounts", [])]
        python = str(ROOT / "tests" / "bin" / "fake-vllm-python")
        return {"engine": "podman", "image": thin_image, "python": python, "mounts": mounts, "pass_env": []} | more

    monkeypatch.delenv("HF_HOME", raising=False)
    return options
