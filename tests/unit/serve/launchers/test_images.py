"""When an image is built, pulled or kept; what a build borrows from this host; which decode kernel passes."""

import hashlib
import subprocess
from pathlib import Path

import pytest
from longctx.errors import LongctxError, ServerError
from longctx.serve.launchers import images
from longctx.serve.launchers.engines import Image

ENVS = Path(__file__).parents[4] / "envs"
VERIFY = str(ENVS / "verify_kernel.sh")
KERNEL = "gfx950/mla/decode.co"


class Engine:
    """An engine with at most one image; it remembers the commands that it was given."""

    def __init__(self, label: str | None, exists: bool = True) -> None:
        self.exists, self.commands = exists, []
        self.labels = {images.BUILD_LABEL: label} if label else {}

    def find_image(self, engine: str, name: str) -> Image:
        if not self.exists:
            raise ServerError(f"the image {name} does not exist here", "server_start")
        return Image(name, "sha256:1", "sha256:2", self.labels)

    def call(self, command: list[str], failure: str) -> None:
        self.commands.append(command)
        self.exists = True


@pytest.fixture
def containerfile(tmp_path: Path) -> Path:
    (tmp_path / "wheels.txt").write_text("vllm==1\n")
    (tmp_path / "unrelated.txt").write_text("x\n")
    path = tmp_path / "cpu.Containerfile"
    path.write_text("FROM scratch\nCOPY wheels.txt /\n")
    return path


def ensure(monkeypatch: pytest.MonkeyPatch, engine: Engine, path: Path | None) -> dict:
    monkeypatch.setattr(images, "find_engine", lambda wanted: wanted)
    monkeypatch.setattr(images, "find_image", engine.find_image)
    monkeypatch.setattr(images, "_call", engine.call)
    return images.ensure("podman", "x", path, {"BASE": "b"})


def test_an_image_is_built_once(monkeypatch: pytest.MonkeyPatch, containerfile: Path) -> None:
    missing = Engine(None, exists=False)
    record = ensure(monkeypatch, missing, containerfile)
    (command,) = missing.commands
    assert command[:2] == ["podman", "build"]
    assert f"{images.BUILD_LABEL}={record['build_hash']}" in command
    assert "BASE=b" in command
    assert (record["built"], record["digest"]) == (True, "sha256:2")
    kept = Engine(record["build_hash"])
    assert ensure(monkeypatch, kept, containerfile)["built"] is False
    assert kept.commands == []


def test_an_image_of_another_build_is_built_again(monkeypatch: pytest.MonkeyPatch, containerfile: Path) -> None:
    other = Engine("another")
    assert ensure(monkeypatch, other, containerfile)["built"] is True
    assert len(other.commands) == 1


def test_without_a_containerfile_a_missing_image_is_pulled(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Engine(None, exists=False)
    ensure(monkeypatch, missing, None)
    assert missing.commands == [["podman", "pull", "x"]]
    there = Engine(None)
    assert ensure(monkeypatch, there, None)["built"] is False
    assert there.commands == []


def test_a_build_is_known_by_its_file_its_arguments_and_the_files_it_names(containerfile: Path) -> None:
    first = images.build_hash(containerfile, {"A": "1"})
    assert images.build_hash(containerfile, {"A": "2"}) != first
    (containerfile.parent / "unrelated.txt").write_text("y\n")
    assert images.build_hash(containerfile, {"A": "1"}) == first
    (containerfile.parent / "wheels.txt").write_text("vllm==2\n")
    assert images.build_hash(containerfile, {"A": "1"}) != first
    containerfile.write_bytes(b"# caf\xe9\n" + containerfile.read_bytes())
    assert images.build_hash(containerfile, {"A": "1"}) != first
    with pytest.raises(LongctxError, match=r"container\.containerfile: .*No such file"):
        images.build_hash(containerfile.parent / "none", {})


def test_a_build_borrows_pips_settings_and_the_local_folders_in_them(tmp_path: Path) -> None:
    for name in ("wheels", "index/simple"):
        (tmp_path / name).mkdir(parents=True)
    listing = f"""
:env:.find-links='{tmp_path}/wheels'
global.find-links='/no/such/folder'
global.extra-index-url='file://{tmp_path}/index/simple https://example.org/simple'
global.timeout='180'
install.user='true'
"""
    settings = images.pip_settings(listing)
    assert settings["find-links"] == f"{tmp_path}/wheels"
    assert "user" not in settings
    assert images.local_paths(settings) == [f"{tmp_path}/index", f"{tmp_path}/wheels"]


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    path = tmp_path / "aiter_meta" / "hsa" / KERNEL
    path.parent.mkdir(parents=True)
    path.write_bytes(b"machine code")
    return path


def verify(kernel: Path, checksum: str) -> subprocess.CompletedProcess[str]:
    root = str(kernel.parents[4])
    return subprocess.run(["bash", VERIFY, KERNEL, checksum, root], capture_output=True, text=True, check=False)


@pytest.mark.process
def test_the_right_decode_kernel_passes(kernel: Path) -> None:
    for checksum in (hashlib.sha256(b"machine code").hexdigest(), hashlib.md5(b"machine code").hexdigest()):
        done = verify(kernel, checksum)
        assert (done.returncode, done.stdout) == (0, f"{KERNEL} {checksum}\n")


@pytest.mark.process
@pytest.mark.parametrize(
    ("checksum", "words"),
    [
        ("", "no checksum was given"),
        ("0" * 63, "neither a SHA-256 nor an MD5"),
        ("0" * 32, "a wrong decode kernel"),
        ("0" * 64, "a wrong decode kernel"),
    ],
)
def test_a_wrong_or_unknown_checksum_fails(kernel: Path, checksum: str, words: str) -> None:
    done = verify(kernel, checksum)
    assert done.returncode == 1
    assert words in done.stderr


@pytest.mark.process
def test_a_missing_or_doubled_kernel_fails(kernel: Path) -> None:
    checksum = hashlib.sha256(b"machine code").hexdigest()
    second = kernel.parents[4] / "old" / "hsa" / KERNEL
    second.parent.mkdir(parents=True)
    second.write_bytes(b"machine code")
    assert "2 files below" in verify(kernel, checksum).stderr
    second.unlink()
    kernel.unlink()
    assert "0 files below" in verify(kernel, checksum).stderr


@pytest.mark.parametrize("name", ["cpu", "cuda", "rocm"])
def test_every_base_is_a_pinned_build_argument(name: str) -> None:
    lines = (ENVS / f"{name}.Containerfile").read_text().splitlines()
    instructions = [line for line in lines if line and not line.startswith("#")]
    assert instructions[0].startswith("ARG BASE=docker.io/")
    assert not instructions[0].endswith((":latest", "BASE="))
    assert {line.partition(" AS ")[0] for line in instructions if line.startswith("FROM")} == {"FROM ${BASE}"}


def test_a_docker_that_does_not_use_buildkit_by_itself_is_told_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\necho "$DOCKER_BUILDKIT" > {said}\n')
    docker.chmod(0o755)
    monkeypatch.delenv("DOCKER_BUILDKIT", raising=False)
    images._call([str(docker), "build"], "it failed")
    assert said.read_text() == "1\n", "RUN --mount needs it"
