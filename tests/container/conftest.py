"""Fixtures of the container tests; they skip, saying why, where podman is missing or cannot run a container."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from podmanhere import IMAGE, LIMITS, ROOT, podman, python_mounts, thin_root


@pytest.fixture(scope="session")
def thin_image() -> Iterator[str]:
    """The thin image, made for this session; skips with the reason where podman is missing or cannot run it."""
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed (envs/debian-container.txt)")
    made = subprocess.run(["podman", "import", "-", IMAGE], input=thin_root(), capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"podman cannot import an image: {made.stderr.decode().strip()}")
    tried = podman("run", "--rm", "--network=host", *LIMITS, "--volume", "/usr:/usr:ro", IMAGE, "true")
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
