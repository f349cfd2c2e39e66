"""The default corpus: the Python files of packages that envs/pipeline.txt pins.

Their wheels hold the same .py files for every system and Python but for the few that `same_everywhere` leaves out
(compared for Linux on x86-64 with glibc and musl, on ARM, and macOS, Python 3.11 to 3.13).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath

import yaml

from longctx.errors import PromptError
from longctx.resources import RESOURCES

MANIFEST = RESOURCES / "corpus" / "packages.yaml"
REMEDY = "install the pins (pip install -r envs/pipeline.txt), or name another corpus as corpus.source"


@dataclass(frozen=True, slots=True)
class Package:
    """A package of the corpus, with its pinned version."""

    name: str
    version: str

    def folder(self) -> Path:
        """Return where its modules lie; PromptError where it is not installed in this version."""
        try:
            installed = metadata.distribution(self.name)
        except metadata.PackageNotFoundError:
            raise PromptError(f"corpus: the package {self.name} is not installed: {REMEDY}") from None
        if installed.version != self.version:
            raise PromptError(
                f"corpus: {self.name} {installed.version} is installed and the corpus is {self.name} {self.version}'s,"
                f" so prompts would differ: {REMEDY}"
            )
        return Path(str(installed.locate_file(self.name)))


def read() -> list[Package]:
    """Return the packages in the order of the corpus."""
    content = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))
    return [Package(entry["name"], entry["version"]) for entry in content["packages"]]


def same_everywhere(names: Iterable[PurePosixPath]) -> Iterator[PurePosixPath]:
    """Yield the files that every wheel of a package has alike.

    __config__.py says how the wheel was built. numpy.distutils is in the wheels for Python 3.11 alone.
    """
    for name in names:
        if name.suffix == ".py" and name.name != "__config__.py" and "distutils" not in name.parts[:-1]:
            yield name


def check(sha256: str) -> None:
    """Raise PromptError where the corpus, by its hash, is not the pinned one."""
    pinned = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))["sha256"]
    if sha256 != pinned:
        listed = ", ".join(f"{package.name} {package.version}" for package in read())
        raise PromptError(
            f"corpus: the files of {listed} that are installed here are not those of their wheels (sha256 {sha256[:12]}"
            f" instead of {pinned[:12]}), so prompts would differ: {REMEDY}"
        )
