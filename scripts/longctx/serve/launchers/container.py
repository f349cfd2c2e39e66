"""Launcher `container`: the same server in a podman, docker or apptainer container.

podman and docker: a foreground `run` whose output is the server's log. The container has its owner's name and labels.
It belongs to the engine: a cluster that ends all processes of a job does not end it. So a guard in the container ends
it when its standard input closes, which happens when our side ends.
apptainer has neither a daemon nor names: the container is a child process like a local server.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from longctx.campaign.config import ContainerConfig
from longctx.campaign.recipe import Recipe
from longctx.errors import ServerError
from longctx.model.hub import hub_folders, hub_token
from longctx.processes import container_init
from longctx.processes.launch import Launch, Ownership
from longctx.processes.process_identity import MARKER
from longctx.redaction import SECRET_NAME
from longctx.resources import VLLM_PLUGINS
from longctx.serve import command_line
from longctx.serve.launchers import kv_connectors
from longctx.serve.launchers.engines import find_engine, find_image, has_init, own_limits, start_error

STOP_GRACE_S = container_init.GRACE_S
GUARD = "/opt/longctx/guard.py"  # where the container sees it


def prepare(recipe: Recipe, options: ContainerConfig, owner: Ownership, host: str, port: int) -> Launch:
    """Return how to run `recipe` in a container; ServerError('server_start') where engine, image or a mount is missing.

    ServerError('disk_full') where the host's shared memory has no room for what a connector stages in it.
    """
    if not options.image:
        raise start_error("container.image is missing; name the image that has vLLM")
    engine = find_engine(options.engine)
    image = find_image(engine, options.image)
    recipe, mounts = _mounts(recipe, options)
    _check(engine, options, mounts)
    if options.ipc == "host" and (sentence := kv_connectors.no_room(recipe.kv_transfer_config)):
        raise ServerError(sentence, "disk_full")
    values = command_line.environment(recipe, image.python_path) | {MARKER: owner.id}  # known as ours on the host too
    passed = dict.fromkeys(filter(os.environ.get, options.pass_env), "")
    values |= command_line.loopback(recipe, values | passed)
    secrets = _secrets(options.pass_env, values)
    plain = {name: value for name, value in values.items() if name not in secrets}
    facts = {"launcher": "container", "image": image.name, "image_digest": image.digest}
    published = None if options.network == "host" else f"{host}:{port}:{port}"
    arguments = command_line.command(recipe, "0.0.0.0" if published else host, port)
    server = [options.python, "-m", command_line.MODULE, *arguments]
    if engine == "apptainer":
        home = (owner.run_dir / "home").absolute()
        home.mkdir(parents=True, exist_ok=True)
        command = [*apptainer_args(options, mounts, home), image.name, *server]
        env = os.environ | {f"APPTAINERENV_{name}": value for name, value in (plain | secrets).items()}
        probe = [*apptainer_args(options, [], home), image.name, options.python]
        return Launch(command, dict(env), facts=facts, probe=probe, server_env=plain | secrets)
    mounts.append(f"{container_init.__file__}:{GUARD}:ro")
    variables = [*(f"{name}={value}" for name, value in plain.items()), *sorted(secrets)]
    command = [*run_args(engine, options, owner, mounts, variables, published), image.name, GUARD, *server]
    ends = [[engine, "stop", "-t", str(STOP_GRACE_S), owner.name], [engine, "rm", "-f", owner.name]]
    probe = [engine, "exec", owner.name, options.python]
    return Launch(command, os.environ | secrets, ends, probe, facts, plain | secrets, holds_stdin=True)


def run_args(
    engine: str, options: ContainerConfig, owner: Ownership, mounts: list[str], env: list[str], published: str | None
) -> list[str]:
    """Return `podman run …` or `docker run …` up to the image.

    env: NAME=value, or NAME alone for a secret that the engine takes from its own environment.
    mounts: source:target[:ro]. published: address:port:port, or None on the host's network.
    """
    flags: dict[str, list[str | None]] = {
        "--name": [owner.name],
        "--label": [f"longctx.campaign={owner.campaign}", f"longctx.owner={owner.id}"],
        "--log-driver": ["none"],  # the log goes to our file only
        "--pull": ["never"],
        "--network": [options.network],
        "--publish": [published],
        "--ipc": [options.ipc],
        "--shm-size": [None if options.ipc == "host" else options.shm_size],  # podman refuses both together
        "--ulimit": [*(options.ulimits or own_limits(engine))],
        "--device": [device for device in options.devices if device != "all"],
        "--volume": [*mounts],
        "--env": [*env],
        "--entrypoint": [options.python],
    }
    if "all" in options.devices:
        flags |= {"--gpus": ["all"]} if engine == "docker" else {"--device": [*flags["--device"], "nvidia.com/gpu=all"]}
    runtime = ["--runtime", options.runtime] if options.runtime else []
    head = [engine, *runtime, "run", "--rm"] if engine == "podman" else [engine, "run", "--rm", *runtime]
    pairs = [text for flag, values in flags.items() for value in values if value for text in (flag, value)]
    return [*head, "--interactive", *(["--init"] if has_init(engine) else []), *pairs, *options.extra_args]


def apptainer_args(options: ContainerConfig, mounts: list[str], home: Path) -> list[str]:
    """Return `apptainer exec …` up to the image.

    Variables travel as APPTAINERENV_…: secrets must not be seen here, and --env splits values at commas.
    """
    gpus = ["--nv"] if "all" in options.devices else []
    gpus += ["--rocm"] if "/dev/kfd" in options.devices else []
    binds = [text for mount in mounts for text in ("--bind", mount)]
    # A PID namespace: whatever the server started ends with it. A home of its own: the host's would bring its Python
    # packages along, and without one vLLM and Triton could write their caches nowhere, as the image is read-only.
    own = ["--cleanenv", "--no-eval", "--pid", "--home", str(home)]
    return ["apptainer", "exec", *own, *gpus, *binds, *options.extra_args]


def _secrets(names: tuple[str, ...], values: Mapping[str, str]) -> dict[str, str]:
    """Return what is passed by name only: `pass_env` where set here, and recipe variables that look like secrets."""
    secrets = {name: os.environ[name] for name in names if os.environ.get(name)}
    if "HF_TOKEN" in names and (token := hub_token()):
        secrets["HF_TOKEN"] = token
    return secrets | {name: value for name, value in values.items() if name in names or SECRET_NAME.search(name)}


def _mounts(recipe: Recipe, options: ContainerConfig) -> tuple[Recipe, list[str]]:
    """Return the recipe with absolute folders, and the mounts: its folders at their own paths, then the user's."""
    mounts, own = [], [_parse_mount(text) for text in options.mounts]
    if Path(recipe.model).is_dir():
        recipe = replace(recipe, model=str(Path(recipe.model).resolve()))
        mounts += _with_links(Path(recipe.model))
    else:
        recipe, mounts = _hub_mounts(recipe, targets=[mount.split(":")[1] for mount in own])
    if recipe.kv_transfer_config:
        absolute, roots = _absolute_roots(recipe.kv_transfer_config)
        recipe = replace(recipe, kv_transfer_config=absolute)
        mounts += [f"{root}:{root}" for root in roots]
    if command_line.needs_plugins(recipe):
        mounts.append(f"{VLLM_PLUGINS}:{VLLM_PLUGINS}:ro")
    return recipe, list({mount.split(":")[1]: mount for mount in mounts + own}.values())


def _hub_mounts(recipe: Recipe, targets: list[str]) -> tuple[Recipe, list[str]]:
    """Return the recipe with this host's Hugging Face folders, and their mounts where no `targets` hold them."""
    home, cache = hub_folders(os.environ | recipe.env)
    recipe = replace(recipe, env=recipe.env | {"HF_HOME": str(home), "HF_HUB_CACHE": str(cache)})
    folders = [home] if cache.is_relative_to(home) else [home, cache]
    mounts = []
    for folder in folders:
        if any(folder.is_relative_to(target) for target in targets):
            continue  # the user mounts something else there
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            remedy = "set HF_HOME or HF_HUB_CACHE to a folder that you may write"
            raise start_error(f"the Hugging Face folder {folder} cannot be made: {error.strerror}; {remedy}") from error
        # A cache that others fill can still be read.
        mounts.append(f"{folder}:{folder}{'' if os.access(folder, os.W_OK) else ':ro'}")
    return recipe, mounts


def _with_links(folder: Path) -> list[str]:
    """Mount a folder and what its links lead to: a snapshot of the Hugging Face cache is links to blobs beside it."""
    ends = [path.resolve() for path in folder.rglob("*") if path.is_symlink()]
    outside = {end if end.is_dir() else end.parent for end in ends if end.exists() and not end.is_relative_to(folder)}
    return [f"{path}:{path}:ro" for path in (folder, *sorted(outside))]


def _parse_mount(text: str) -> str:
    """Read source[:target][:ro|rw]; ~ and $VARIABLES of the source are expanded, a lone source keeps its path."""
    source, *rest = os.path.expandvars(text).split(":")
    mode = rest.pop() if rest and rest[-1] in ("ro", "rw") else "rw"
    path = Path(source).expanduser().absolute()
    if len(rest) > 1 or not source:
        raise start_error(f"container.mounts: {text!r} is not source:target[:ro]")
    return f"{path}:{rest[0] if rest else path}{':ro' if mode == 'ro' else ''}"


def _absolute_roots(config: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a KV transfer configuration whose `root_dir` folders (prefill checkpoints) are absolute, and these."""
    roots: list[str] = []

    def absolute(part: dict[str, Any]) -> dict[str, Any]:
        if "root_dir" in part:
            part["root_dir"] = str(Path(part["root_dir"]).resolve())
            roots.append(part["root_dir"])
        return part

    return json.loads(json.dumps(config), object_hook=absolute), roots


def _check(engine: str, options: ContainerConfig, mounts: list[str]) -> None:
    """Raise ServerError for what the engine would refuse in ten lines, or silently do in another way."""
    for source, target, *read_only in (mount.split(":") for mount in mounts):
        if not os.path.exists(source):
            raise start_error(f"the mount source {source} does not exist; create it or correct container.mounts")
        mode = os.R_OK if read_only else os.R_OK | os.W_OK
        if engine != "docker" and not os.access(source, mode):  # docker's daemon has its own rights
            raise start_error(f"permission denied on the mount source {source}; change its mode or add :ro")
        if not target.startswith("/"):
            raise start_error(f"the mount target {target} of {source} is not absolute; correct container.mounts")
        if re.match(r"/(proc|sys)(/|$)|/$", target):
            raise start_error(f"the mount target {target} is refused by every engine; choose another folder")
    for device in options.devices:
        if device.startswith("/") and not Path(device.split(":")[0]).exists():
            raise start_error(f"the device {device} does not exist on this host; correct container.devices")
    if options.network == "none":
        raise start_error("container.network: none would cut the server off; use host or bridge")
    unused, default = ("shm_size", "ulimits", "runtime", "network"), ContainerConfig()
    changed = [f"container.{name}" for name in unused if getattr(options, name) != getattr(default, name)]
    if engine == "apptainer" and changed:
        raise start_error(f"apptainer has no such options: {', '.join(changed)}; remove them or use podman or docker")
