"""Fixtures of the container tests; they skip, saying why, where an engine is missing or cannot run a container."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from enginehere import IMAGE, ROOT, Engine, docker_daemon, python_mounts, thin_root


@pytest.fixture(scope="session")
def podman() -> Iterator[Engine]:
    """A podman that has the thin image."""
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed (envs/debian-container.txt)")
    yield from _with_image(Engine("podman"))


@pytest.fixture(scope="session")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A docker that has the thin image; its daemon is started where it is installed and does not run."""
    with docker_daemon(tmp_path_factory.mktemp("docker")) as why_not:
        if why_not:
            pytest.skip(why_not)
        yield from _with_image(Engine("docker"))


@pytest.fixture(scope="session", params=["podman", "docker"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return request.getfixturevalue(request.param)


def _with_image(engine: Engine) -> Iterator[Engine]:
    made = engine.call("import", "-", IMAGE, data=thin_root())
    if made.returncode != 0:
        pytest.skip(f"{engine.name} cannot import an image: {made.stderr.strip()}")
    tried = engine.start("--rm", IMAGE, "true")
    if tried.returncode != 0:
        pytest.skip(f"{engine.name} cannot run a container here: {tried.stderr.strip()}")
    yield engine
    engine.call("rmi", "--force", IMAGE)


@pytest.fixture
def stand_in(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Options of launcher `container` under which vLLM's stand-in (tests/fakeserver.py) runs."""
    base = Path(sys.base_prefix) / "bin" / "python3"

    def options(**more: Any) -> dict[str, Any]:
        mounts = [*python_mounts(base), f"{ROOT / 'tests'}:{ROOT / 'tests'}:ro", *more.pop("mounts", [])]
        python = str(ROOT / "tests" / "bin" / "fake-vllm-python")
        return {"engine": engine.name, "image": IMAGE, "python": python, "mounts": mounts, "pass_env": []} | more

    monkeypatch.delenv("HF_HOME", raising=False)
    return options
