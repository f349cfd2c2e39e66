"""The image of launcher `container`: built once from a Containerfile, or pulled; and what is recorded of it."""

import ast
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from longctx.errors import LongctxError, ServerError
from longctx.serve.launchers.engines import Image, find_engine, find_image, own_limits, run
from longctx.storage.provenance import stable_hash

BUILD_LABEL = "longctx.build"
AITER_LABEL, AITER_FILE = "longctx.aiter_tag", "/opt/longctx/aiter.json"
# pip's own settings that a build needs too; the first two may hold credentials.
_PIP_KEYS = ("index-url", "extra-index-url", "find-links", "cert", "constraint", "trusted-host", "proxy", "timeout")


def ensure(engine: str | None, name: str, containerfile: Path | None, build_args: Mapping[str, str]) -> dict[str, Any]:
    """Build the image unless one of the same build hash exists, or pull it where there is no Containerfile.

    Returns what R/image.json holds: engine, name, id, digest, containerfile, build_hash, built (now), aiter (or None).
    """
    engine = find_engine(engine)
    wanted = build_hash(containerfile, build_args) if containerfile else None
    there = _existing(engine, name)
    missing = there is None or (wanted is not None and there.labels.get(BUILD_LABEL) != wanted)
    if missing and containerfile and wanted:
        _build(engine, name, containerfile, build_args, wanted)
    elif missing:
        _call([engine, "pull", name], f"the image {name} cannot be pulled")
    image = find_image(engine, name)
    record: dict[str, Any] = {"engine": engine, "name": image.name, "id": image.id, "digest": image.digest}
    record |= {"containerfile": str(containerfile) if containerfile else None, "build_hash": wanted}
    return record | {"built": missing, "aiter": _aiter(engine, image)}


def build_hash(containerfile: Path, build_args: Mapping[str, str]) -> str:
    """Return the identity of a build: the Containerfile, the files beside it that it names, and the build arguments."""
    try:
        text = containerfile.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise LongctxError(f"container.containerfile: {containerfile}: {error.strerror}") from error
    beside = (path for path in containerfile.parent.iterdir() if path.is_file() and path.name in text)
    files = {path.name: path.read_bytes().hex() for path in beside}
    return stable_hash({"containerfile": text, "build_args": dict(build_args), "files": files})


def pip_settings(listing: str) -> dict[str, str]:
    """Return the settings of `pip config list` that a build needs; later lines win, the environment over all files."""
    lines = [line.partition("=") for line in listing.splitlines() if "=" in line]
    lines.sort(key=lambda line: line[0].startswith(":env:"))
    values = {key.rpartition(".")[2]: value for key, _, value in lines}
    kept = {name: ast.literal_eval(value) for name, value in values.items() if name in _PIP_KEYS}
    return {name: str(value).replace("\n", " ").strip() for name, value in kept.items()}


def local_paths(settings: Mapping[str, str]) -> list[str]:
    """Return the folders and files of this host that pip settings name: wheels, file:// indexes, certificates."""
    words = [word.removeprefix("file://") for value in settings.values() for word in value.split()]
    # An index is served from the folder above 'simple', to which its links point.
    paths = {str(Path(word).parent) if Path(word).name == "simple" else word for word in words if word.startswith("/")}
    return sorted(path for path in paths if Path(path).exists())


def _existing(engine: str, name: str) -> Image | None:
    try:
        return find_image(engine, name)
    except ServerError as error:
        if "does not exist" in str(error):
            return None
        raise


def _build(engine: str, name: str, containerfile: Path, build_args: Mapping[str, str], label: str) -> None:
    if engine == "apptainer":
        raise LongctxError("apptainer builds no Containerfile; build with podman or docker, then `apptainer build`")
    with pip_configuration(engine) as pip_flags:
        arguments = [text for key, value in build_args.items() for text in ("--build-arg", f"{key}={value}")]
        command = [engine, "build", "--network", "host", *pip_flags, *arguments]
        command += ["--label", f"{BUILD_LABEL}={label}", "--tag", name, "--file", str(containerfile)]
        _call([*command, str(containerfile.parent)], f"the image {name} cannot be built from {containerfile}")


@contextmanager
def pip_configuration(engine: str) -> Iterator[list[str]]:
    """Yield the flags that lend this host's pip configuration to a build without leaving it in the image."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    settings = pip_settings(
        subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False).stdout
    )
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".conf") as file:
        file.write("\n".join(["[global]", *(f"{key} = {value}" for key, value in settings.items()), ""]))
        file.flush()
        # docker mounts no folder of the host into a build
        paths = local_paths(settings) if engine == "podman" else []
        yield ["--secret", f"id=pip,src={file.name}", *(t for p in paths for t in ("--volume", f"{p}:{p}:ro"))]


def _call(command: list[str], failure: str) -> None:
    """Run a long engine command, its output to our standard error; LongctxError with `failure` if it fails."""
    env = os.environ | {"DOCKER_BUILDKIT": "1"}  # RUN --mount needs it; the default since docker 23
    if subprocess.run(command, stdout=sys.stderr, env=env, check=False).returncode != 0:
        raise LongctxError(f"{failure}: see the lines of {command[0]} above")


def _aiter(engine: str, image: Image) -> dict[str, str] | None:
    """Return the AITER repository, tag and resolved commit that the ROCm build wrote into the image."""
    if engine == "apptainer" or AITER_LABEL not in image.labels:
        return None
    limits = [text for limit in own_limits(engine) for text in ("--ulimit", limit)]
    answer = run([engine, "run", "--rm", *limits, "--network", "none", "--entrypoint", "cat", image.name, AITER_FILE])
    try:
        commit: dict[str, str] = json.loads(answer.stdout)
    except ValueError as error:
        raise LongctxError(f"the image {image.name} has no readable {AITER_FILE}: {answer.stderr.strip()}") from error
    return commit
