"""Container engines: the installed one, its images, and the meaning of its errors."""

import hashlib
import json
import re
import resource
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from longctx.errors import ServerError

ENGINES = ("podman", "docker", "apptainer")
_INSPECT_TIMEOUT_S = 60.0
_ENGINE_WORDS = re.compile(
    r"Error: |Error response|docker: |FATAL: |ERROR \(catatonit|\[FATAL tini"
    r"|Cannot connect to|(Got )?permission denied while"
)
_AFTERWORDS = re.compile(r"docker run --help|error waiting for container")
# What an engine prints when it refuses to run a container, and what to do; {0} is the pattern's first group.
_MEANINGS = (
    (r"Cannot connect to the Docker daemon", "docker's daemon does not run; start it or use podman"),
    (r"permission denied while trying", "permission denied on docker's socket; join the docker group or use podman"),
    (r"error setting rlimit", "the kernel refuses the container's limits; lower container.ulimits"),
    (r"error mounting \"([^\"]+)\"", "the mount of {0} was refused; see container.mounts"),
    (r"statfs ([^:]+): no such file", "the mount source {0} does not exist; see container.mounts"),
    (r"bind source path does not exist: (\S+)", "the mount source {0} does not exist; see container.mounts"),
    (r"mount source (\S+) doesn't exist", "the mount source {0} does not exist; see container.mounts"),
    (r"unresolvable CDI devices (\S+)", "{0} is not known here; generate it with `nvidia-ctk cdi generate`"),
    (r"could not select device driver", "docker has no NVIDIA container toolkit; install it"),
    (r"(?:stat|gathering device information for custom device \") ?(/dev/[^\s:\"]+)", "the device {0} does not exist"),
    (r"exec(?:utable file)?:? \"([^\"]+)\": .*not found", "{0} is not in the image; see container.python"),
    (r"failed to exec pid1|FATAL tini .*exec .* failed", "container.python is not in the image"),
    (r"image not known|No such image|manifest unknown", "the image does not exist"),
    (r"OCI permission denied|permission denied", "permission denied; see container.devices, mounts and extra_args"),
)


@dataclass(frozen=True, slots=True)
class Image:
    """A local image. digest: 'sha256:…' of its manifest (docker's own build: of the config; apptainer: of the file).

    python_path: the PYTHONPATH that its containers start with, '' where it sets none or that is not known (apptainer).
    """

    name: str
    id: str
    digest: str | None
    labels: dict[str, str]
    python_path: str = ""


def find_engine(wanted: str | None) -> str:
    """Return the engine's name; ServerError where it, or any of the three, is not installed."""
    for engine in [wanted] if wanted else ENGINES:
        if shutil.which(engine):
            return engine
    if wanted:
        raise start_error(f"the container engine {wanted} is not installed; install it or change container.engine")
    raise start_error("no container engine is installed; install podman, docker or apptainer, or use launcher: local")


def find_image(engine: str, name: str) -> Image:
    """Return the facts of a local image; ServerError where it does not exist or the engine cannot say."""
    if engine == "apptainer":
        return _find_sif(name)
    result = run([engine, "image", "inspect", name])
    message = result.stderr.strip()
    if result.returncode and re.search(r"image not known|No such image", message):
        remedy = f"run `snakemake --force image` or `{engine} pull {name}`"
        raise start_error(f"the image {name} does not exist here; {remedy}")
    if result.returncode:
        raise start_error(f"{engine} cannot inspect the image {name}: {explain(message.splitlines()) or message}")
    facts = json.loads(result.stdout)[0]
    image_id = facts["Id"] if ":" in facts["Id"] else f"sha256:{facts['Id']}"
    # The manifest's digest as podman says it, as docker knows it from a registry, or the image's id.
    from_registry = [text.split("@", 1)[1] for text in facts.get("RepoDigests") or [] if "@" in text]
    digest = facts.get("Digest") or (from_registry or [image_id])[0]
    config = facts.get("Config") or {}
    variables = dict(text.partition("=")[::2] for text in config.get("Env") or [])
    labels = config.get("Labels") or facts.get("Labels") or {}
    return Image(name, image_id, str(digest), dict(labels), variables.get("PYTHONPATH", ""))


def own_limits(engine: str) -> list[str]:
    """Return limits for podman, whose defaults some kernels refuse: our hard limits, up to podman's."""
    if engine != "podman":
        return []
    files, processes = (resource.getrlimit(limit)[1] for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
    wanted = {"nofile": (files, 1 << 20), "nproc": (processes, 1 << 15)}  # podman gives itself no more than these
    kept = {name: most if hard == resource.RLIM_INFINITY else min(hard, most) for name, (hard, most) in wanted.items()}
    return [f"{name}={value}:{value}" for name, value in kept.items()]


def has_init(engine: str) -> bool:
    """Return whether the engine can run its own init as process 1, without which a starting Python ignores SIGTERM."""
    homes = ("/usr/libexec/podman/catatonit", "/usr/lib/podman/catatonit")
    if engine == "podman":
        return shutil.which("catatonit") is not None or any(Path(home).exists() for home in homes)
    return shutil.which("docker-init") is not None


def explain(lines: Sequence[str]) -> str | None:
    """Return one sentence for the engine's own error at a log's end, or None where the last words are the server's."""
    words = [line.strip() for line in lines if line.strip() and not _AFTERWORDS.search(line)]
    if not words or not _ENGINE_WORDS.match(words[-1]):
        return None
    for pattern, meaning in _MEANINGS:
        if match := re.search(pattern, words[-1]):
            return meaning.format(*match.groups())
    return words[-1]


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a short engine command and return its result, whatever its exit code."""
    try:
        return subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=_INSPECT_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise start_error(f"`{' '.join(command[:3])}` did not answer within {_INSPECT_TIMEOUT_S:.0f} s") from error


def _find_sif(name: str) -> Image:
    """An apptainer image is a .sif file (hashed) or a sandbox folder; a remote one would be fetched at every start."""
    path = Path(name).expanduser()
    if path.is_dir():
        return Image(name, str(path.resolve()), None, {})
    if not path.is_file():
        raise start_error(f"the image {name} does not exist; write container.image as a .sif file (`apptainer pull`)")
    with path.open("rb") as file:
        digest = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    return Image(name, digest, digest, {})


def start_error(message: str) -> ServerError:
    """Return the error of a container that cannot be started."""
    return ServerError(message, reason="server_start")
