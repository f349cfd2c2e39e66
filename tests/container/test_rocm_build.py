"""envs/rocm.Containerfile, step by step, on a stand-in for its base and for AITER's repository: no GPU, no registry."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from enginehere import IMAGE, ROOT, RUN, Engine, python_mounts
from longctx.serve.launchers import images

pytestmark = [pytest.mark.container, pytest.mark.timeout(900)]
BASE = f"localhost/longctx-rocm-base:{RUN}"
LABEL = f"longctx.test={RUN}"
MADE = f"localhost/longctx-rocm:{RUN}"
KERNEL = "gfx950/mla/mla_a8w8_qh16_qseqlen1_gqaratio16_ps.co"
PYTHON = Path(sys.base_prefix) / "bin" / "python3"
# The base's own AITER has another kernel of the same name.
BASE_FILE = f"""
FROM {IMAGE}
LABEL {LABEL}
RUN --mount=type=secret,id=pip,target=/etc/pip.conf {PYTHON} -m venv /opt/base \\
    && /opt/base/bin/pip install --quiet setuptools wheel \\
    && git -c safe.directory=* clone --quiet --branch v0.1.18 file:///stand-in/aiter /tmp/old \\
    && SETUPTOOLS_SCM_PRETEND_VERSION=0.1.18 /opt/base/bin/pip install --quiet --no-build-isolation --no-deps /tmp/old
ENV PATH=/opt/base/bin:/usr/bin
"""
# As AITER's: its version comes from git, which a shallow checkout may not give, and its build imports a package that
# its requirements lack. They pin a release of flydsl that no index has.
SETUP = """
import os
from setuptools import setup
version = os.environ["SETUPTOOLS_SCM_PRETEND_VERSION"]
if version != "0.1.18":
    import pybind11
setup(name="amd-aiter", version=version, install_requires=["flydsl==0.0.dev1"],
      packages=["aiter_meta"], package_data={"aiter_meta": ["hsa/*/*/*.co"]})
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A git repository with two release tags, whose decode kernels differ."""
    root = tmp_path_factory.mktemp("stand-in") / "aiter"
    kernel = root / "aiter_meta" / "hsa" / KERNEL
    kernel.parent.mkdir(parents=True)
    (root / "aiter_meta" / "__init__.py").touch()
    (root / "requirements.txt").write_text("flydsl==0.0.dev1\npsutil\n")
    git(root, "init", "--quiet")
    for version in ("0.1.18", "0.1.19.post2"):
        kernel.write_text(f"decode kernel of {version}")
        (root / "setup.py").write_text(SETUP)
        git(root, "add", ".")
        git(root, "commit", "--quiet", "--message", version)
        git(root, "tag", f"v{version}")
    return root


def git(root: Path, *arguments: str) -> str:
    who = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "init.defaultBranch=main"]
    return subprocess.run(
        ["git", *who, *arguments], cwd=root, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture(scope="module")
def borrowed(repository: Path) -> list[str]:
    """Flags that show a build this host's programs and the repository."""
    mounts = [*python_mounts(PYTHON), f"{repository.parent}:/stand-in:ro"]
    return [text for mount in mounts for text in ("--volume", mount)]


@pytest.fixture(scope="module")
def base(podman: Engine, borrowed: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("base")
    (folder / "Containerfile").write_text(BASE_FILE)
    with images.pip_configuration("podman") as pip:
        made = podman.call("build", "--network", "host", *borrowed, *pip, "--tag", BASE, str(folder))
    assert made.returncode == 0, made.stderr
    yield BASE
    podman.call("rmi", "--force", MADE, BASE)
    podman.call("image", "prune", "--force", "--filter", f"label={LABEL}")  # its layers, which have no name


def build(podman: Engine, borrowed: list[str], checksum: str | None, *more: str) -> subprocess.CompletedProcess[str]:
    given = {"BASE": BASE, "AITER_REPO": "file:///stand-in/aiter", "AITER_BUILD_REQUIRES": "pybind11 wheel"}
    given |= {} if checksum is None else {f"DECODE_KERNEL_{'MD5' if len(checksum) == 32 else 'SHA256'}": checksum}
    arguments = [text for key, value in given.items() for text in ("--build-arg", f"{key}={value}")]
    file = str(ROOT / "envs" / "rocm.Containerfile")
    with images.pip_configuration("podman") as pip:
        flags = ["--network", "host", *borrowed, *pip, *arguments, *more, "--tag", MADE]
        return podman.call("build", *flags, "--file", file, str(ROOT / "envs"))


def sha256(version: str) -> str:
    return hashlib.sha256(f"decode kernel of {version}".encode()).hexdigest()


def test_the_release_replaces_the_images_own_aiter_and_its_commit_is_recorded(
    podman: Engine, borrowed: list[str], base: str, repository: Path
) -> None:
    made = build(podman, borrowed, sha256("0.1.19.post2"))
    assert made.returncode == 0, made.stderr
    assert "flydsl is taken as it is released" in made.stdout + made.stderr
    show = "cat /opt/longctx/aiter.json; pip list --format=freeze"
    said = podman.start("--rm", *borrowed, MADE, "sh", "-c", show).stdout
    recorded, *packages = said.splitlines()
    assert json.loads(recorded)["commit"] == git(repository, "rev-parse", "v0.1.19.post2")
    assert "amd-aiter==0.1.19.post2" in packages
    labels = podman.call("image", "inspect", "--format", "{{json .Config.Labels}}", MADE).stdout
    assert json.loads(labels)[images.AITER_LABEL] == "v0.1.19.post2"
    again = build(podman, borrowed, sha256("another"))
    assert again.returncode != 0
    built = again.stdout[again.stdout.index("git clone") :]
    assert "Using cache" in built[: built.index("verify_kernel.sh")], "another checksum costs no second hour"


@pytest.mark.parametrize(
    ("checksum", "more", "words"),
    [
        (None, [], "not c1b06569a97f6a4af37e6426caa2074b: a wrong decode kernel"),
        ("0" * 63, [], "neither DECODE_KERNEL_SHA256 nor DECODE_KERNEL_MD5 is a checksum"),
        ("0" * 32, [], "a wrong decode kernel"),
        (hashlib.md5(b"decode kernel of 0.1.19.post2").hexdigest(), [], None),
        (sha256("0.1.18"), [], "a wrong decode kernel"),
        (sha256("0.1.19.post2"), ["--build-arg", "AITER_COMMIT=" + "0" * 40], "v0.1.19.post2 is commit"),
        (sha256("0.1.18"), ["--build-arg", "AITER_TAG=v0.1.18"], None),
        (sha256("0.1.19.post2"), ["--build-arg", "DECODE_KERNEL=gfx950/mla/none.co"], "0 files below"),
    ],
)
def test_a_wrong_kernel_fails_the_build(
    podman: Engine, borrowed: list[str], base: str, checksum: str | None, more: list[str], words: str | None
) -> None:
    made = build(podman, borrowed, checksum, *more)
    if words is None:
        assert made.returncode == 0, made.stderr
    else:
        assert made.returncode != 0
        assert words in made.stderr + made.stdout
