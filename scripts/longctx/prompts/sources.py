"""The corpus: source files ordered by how much they tell, cleaned and marked."""

import hashlib
import os
import re
import shutil
import stat
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import yaml

from longctx.errors import PromptError
from longctx.prompts import pinned_packages

# The default corpus: the Python files of pinned packages, the same bytes on every machine and Python.
PACKAGES = "packages"
# The standard library of the Python at hand: another corpus with each Python, patch releases included.
STDLIB = "stdlib"
PIECE_CHARS = 16_384
MAX_FILE_BYTES = 4 << 20
MAX_MEAN_LINE_CHARS = 400
SUFFIXES = frozenset({
    ".py", ".pyx", ".pxd", ".pyi", ".md", ".rst", ".txt", ".c", ".cc", ".cpp", ".h", ".hpp", ".f", ".f90", ".rs",
    ".go", ".java", ".jl", ".r", ".js", ".jsx", ".ts", ".tsx", ".css", ".less", ".toml", ".cfg", ".ini", ".yaml",
    ".yml", ".sh",
})  # fmt: skip
SKIPPED_FOLDERS = frozenset({
    "__pycache__", "node_modules", "site-packages", "dist-packages", "build", "dist", "vendor", "vendored", "_vendor",
    "third_party",
})  # fmt: skip
SKIPPED_NAMES = re.compile(
    r"package-lock\.json|npm-shrinkwrap\.json|pnpm-lock\.yaml|(conda|environment)[-.\w]*lock[-.\w]*\.ya?ml|.*\.lock|"
    r".*[.-]min\.(js|css)|.*_pb2(_grpc)?\.pyi?|_version\.py|versioneer\.py|.*requirements.*\.txt",
    re.IGNORECASE,
)
_GENERATED = re.compile(
    r"@generated|do not (edit|modify)|automatically generated|auto-?generated|generated (by|from|with) ", re.IGNORECASE
)
_TEST = re.compile(r"tests?|testing|_tests?")
_SIDE = frozenset({"examples", "example", "benchmarks", "asv_bench", "scripts", "tools", "ci"})
# A line end between two non-space characters: no pre-tokenizer joins across it, so texts may be split there.
_SPLIT = re.compile(r"(?<=\S)\n(?=[\w\[@#])")


@dataclass(frozen=True, slots=True)
class CorpusSpec:
    """`path`: 'packages', 'stdlib' or a folder.

    A folder with files of its own is one repository, otherwise each subfolder is. `repositories` picks and orders the
    subfolders; empty takes all, by name.
    """

    path: str = PACKAGES
    repositories: tuple[str, ...] = ()

    @classmethod
    def load(cls, path: str, manifest: Path | str | None) -> "CorpusSpec":
        """Return the corpus of a folder, or of the repositories that a manifest picks and orders in it."""
        return cls(path, tuple(entry["name"] for entry in read_manifest(manifest)) if manifest else ())


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One text file: its repository's name, its path inside it, and where it lies."""

    repository: str
    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class Corpus:
    """The files in stream order; `sha256` covers their names and contents.

    left_out: files whose names are not UTF-8, made printable: no prompt can name them.
    """

    files: tuple[SourceFile, ...]
    sha256: str
    left_out: tuple[str, ...] = ()

    @property
    def repositories(self) -> list[str]:
        return list(dict.fromkeys(file.repository for file in self.files))


def _repositories(spec: CorpusSpec) -> list[tuple[str, Path]]:
    if spec.path == PACKAGES:
        return [(package.name, package.folder()) for package in pinned_packages.read()]
    if spec.path == STDLIB:
        return [(f"python{sysconfig.get_python_version()}", Path(sysconfig.get_paths()["stdlib"]))]
    root = Path(spec.path).expanduser()
    if not root.is_dir():
        raise PromptError(f"corpus: the folder {spec.path} does not exist; see scripts/corpus.py fetch")
    folders = [entry for entry in sorted(root.iterdir()) if entry.is_dir() and not entry.name.startswith(".")]
    if spec.repositories:
        if missing := sorted(set(spec.repositories) - {folder.name for folder in folders}):
            raise PromptError(f"corpus: {spec.path} lacks {', '.join(missing)}; see scripts/corpus.py fetch")
        return [(name, root / name) for name in spec.repositories]
    if any(entry.is_file() and entry.suffix in SUFFIXES for entry in root.iterdir()):
        return [(root.resolve().name, root)]
    return [(folder.name, folder) for folder in folders]


def _candidates(root: Path) -> Iterator[PurePosixPath]:
    for folder, subfolders, names in os.walk(root):
        visible = [name for name in subfolders if not name.startswith(".") and not name.endswith(".egg-info")]
        subfolders[:] = [name for name in visible if name not in SKIPPED_FOLDERS]
        for name in names:
            suffix = os.path.splitext(name)[1].lower()
            if (suffix in SUFFIXES or name.upper() == "README") and not SKIPPED_NAMES.fullmatch(name):
                yield PurePosixPath(os.path.relpath(os.path.join(folder, name), root))


def signal_rank(path: PurePosixPath) -> int:
    """Return 0 for a repository's most telling files (README) to 6 for its tests."""
    folders = path.parts[:-1]
    if any(_TEST.fullmatch(part) for part in folders) or re.match(r"test_|conftest\.", path.name):
        return 6
    if path.name.upper().startswith("README"):
        return 0 if not folders else 2
    if path.suffix in (".md", ".rst") and not folders:
        return 1
    if folders and folders[0] in ("doc", "docs"):
        return 2
    if folders and folders[0] in _SIDE:
        return 5
    depth = len(folders) - (folders[:1] in (("src",), ("lib",)))
    return 3 if path.suffix in (".py", ".pyx") and depth <= 1 else 4


def _read_bytes(path: Path) -> bytes | None:
    try:
        status = path.lstat()
        return path.read_bytes() if stat.S_ISREG(status.st_mode) and status.st_size <= MAX_FILE_BYTES else None
    except OSError:
        return None


def _is_utf8(name: bytes) -> bool:
    try:
        return bool(name.decode())
    except UnicodeDecodeError:
        return False


def read_text(path: Path) -> str | None:
    """Return a file's text with '\\n' line ends; None: not UTF-8, binary, empty, too big, generated, or minified."""
    try:
        text = (_read_bytes(path) or b"").decode("utf-8")
    except UnicodeDecodeError:
        return None
    text = text.removeprefix("\ufeff").rstrip().replace("\r\n", "\n").replace("\r", "\n")
    if not text or "\0" in text or "\ufffd" in text:
        return None
    minified = len(text) / (text.count("\n") + 1) > MAX_MEAN_LINE_CHARS
    generated = _GENERATED.search("\n".join(text[:2000].split("\n")[:5]))
    return None if minified or generated else text


def scan(spec: CorpusSpec) -> Corpus:
    """Choose and order the files of a corpus by their names.

    PromptError where none of them has text, and where pinned packages have other files than the pinned ones.
    """
    files: list[SourceFile] = []
    left_out: list[str] = []
    digest = hashlib.sha256()
    for repository, root in _repositories(spec):
        names = pinned_packages.same_everywhere(_candidates(root)) if spec.path == PACKAGES else _candidates(root)
        for name in sorted(names, key=lambda path: (signal_rank(path), len(path.parts), str(path))):
            # By its bytes: the same name in every locale.
            label = os.fsencode(f"{repository}/{name}")
            if not _is_utf8(label):
                left_out.append(label.decode(errors="backslashreplace"))
            elif (data := _read_bytes(root / name)) is not None:
                shown_repository, _, shown_name = label.decode().partition("/")
                files.append(SourceFile(shown_repository, shown_name, root / name))
                digest.update(f"{shown_repository}\n{shown_name}\n{len(data)}\n".encode())
                digest.update(data)
    if spec.path == PACKAGES:
        pinned_packages.check(digest.hexdigest())
    if not any(read_text(file.path) for file in files):
        raise PromptError(f"corpus: no source files with text in {spec.path}; it takes files like .py, .md, .c, .toml")
    return Corpus(tuple(files), digest.hexdigest(), tuple(left_out))


def split_text(text: str) -> Iterator[str]:
    """Split a text into pieces of at least PIECE_CHARS where no token spans the cut."""
    start = 0
    while match := _SPLIT.search(text, start + PIECE_CHARS):
        yield text[start : match.end()]
        start = match.end()
    yield text[start:]


def repository_texts(corpus: Corpus, repository: str, cycle: int) -> Iterator[str]:
    """Yield one repository's marked texts; from the second cycle on the markers contain the cycle."""
    again = "" if cycle == 1 else f" CYCLE {cycle}"
    yield f"[REPO {repository}{again}]\n"
    for file in corpus.files:
        if file.repository == repository and (text := read_text(file.path)) is not None:
            yield from split_text(f"[FILE {repository}/{file.name}{again}]\n{text}\n")


def read_manifest(path: Path | str) -> list[dict[str, str]]:
    """Return the repositories of a manifest: name, url, ref (a tag) each; PromptError names the problem."""
    try:
        entries = yaml.safe_load(Path(path).read_text(encoding="utf-8"))["repositories"]
        wanted = [{key: str(entry[key]) for key in ("name", "url", "ref")} for entry in entries]
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError) as error:
        raise PromptError(f"{path}: not a manifest of repositories with name, url and ref ({error})") from error
    for entry in wanted:
        if not re.fullmatch(r"\w[\w.-]*", entry["name"]) or not entry["url"].startswith("https://"):
            raise PromptError(f"{path}: {entry['name']}: needs a plain name and an https url")
    return wanted


def fetch(manifest: Path | str, folder: Path | str, progress: Callable[[str], None] = print) -> None:
    """Clone each repository of a manifest at its ref, without history, into folder/<name>; present ones are kept."""
    for entry in read_manifest(manifest):
        target = Path(folder) / entry["name"]
        if target.exists():
            progress(f"{entry['name']}: already there")
            continue
        progress(f"{entry['name']}: cloning {entry['ref']}")
        part = target.with_name(f".{entry['name']}.part")
        clone = ["git", "-c", "advice.detachedHead=false", "clone", "-q", "--depth", "1", "--branch"]
        command = [*clone, entry["ref"], "--", entry["url"], str(part)]
        shutil.rmtree(part, ignore_errors=True)
        Path(folder).mkdir(parents=True, exist_ok=True)
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["git failed"])[-1]
            raise PromptError(f"corpus: {entry['name']} at {entry['ref']} cannot be cloned: {last}")
        part.rename(target)
