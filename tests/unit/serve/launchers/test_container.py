"""The container launcher's command lines, mounts, secrets and refusals, without any engine."""

import itertools
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from longctx.campaign.config import ContainerConfig
from longctx.campaign.recipe import Recipe
from longctx.errors import ServerError
from longctx.processes.launch import Launch, Ownership
from longctx.resources import VLLM_PLUGINS
from longctx.serve.launchers import container, engines
from longctx.serve.launchers.engines import Image

SECRET = "hf_thisMustNeverBeSeen"
RECIPE = Recipe(model="owner/name", served_name="m", max_model_len=1040, env={"VLLM_CPU_KVCACHE_SPACE": "4"})


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A host with every engine, any image, a home of its own and a token."""
    monkeypatch.setattr(engines.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(container, "find_image", lambda engine, name: Image(name, "sha256:1", "sha256:2", {}))
    monkeypatch.setattr(engines.resource, "getrlimit", lambda limit: (1024, 4096))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_TOKEN", SECRET)


def launch(tmp_path: Path, recipe: Recipe = RECIPE, **options: object) -> Launch:
    owner = Ownership(id="1a2b", campaign="default", run_dir=tmp_path)
    return container.prepare(
        recipe, ContainerConfig(**{"image": "example/vllm:1", **options}), owner, "127.0.0.1", 8001
    )


def values(command: list[str], flag: str) -> list[str]:
    return [value for name, value in itertools.pairwise(command) if name == flag]


def test_podman_names_labels_and_limits_the_container(tmp_path: Path) -> None:
    made = launch(tmp_path, engine="podman", runtime="runc")
    command, image = made.command, made.command.index("example/vllm:1")
    assert command[:7] == ["podman", "--runtime", "runc", "run", "--rm", "--interactive", "--init"]
    assert values(command, "--name") == ["longctx-1a2b"]
    assert values(command, "--label") == ["longctx.campaign=default", "longctx.owner=1a2b"]
    assert values(command, "--ulimit") == ["nofile=4096:4096", "nproc=4096:4096"]
    assert values(command, "--network") == ["host"]
    assert values(command, "--ipc") == ["host"]
    assert values(command, "--entrypoint") == ["python3"]
    assert command[image + 1 : image + 5] == [container.GUARD, "python3", "-m", "vllm.entrypoints.openai.api_server"]
    assert made.holds_stdin, "the guard in the container ends where its input does"
    assert values(command[image:], "--host") == ["127.0.0.1"]
    assert made.stop_commands == [
        ["podman", "stop", "-t", "20", "longctx-1a2b"],
        ["podman", "rm", "-f", "longctx-1a2b"],
    ]
    assert made.probe == ["podman", "exec", "longctx-1a2b", "python3"]
    assert made.facts == {"launcher": "container", "image": "example/vllm:1", "image_digest": "sha256:2"}


def test_the_size_of_shared_memory_is_asked_for_only_where_it_is_the_containers_own(tmp_path: Path) -> None:
    assert values(launch(tmp_path, engine="podman", shm_size="8g", ipc=None).command, "--shm-size") == ["8g"]
    assert "--shm-size" not in launch(tmp_path, engine="podman", shm_size="8g", ipc="host").command


def test_docker_takes_its_runtime_after_run_and_no_limits_of_ours(tmp_path: Path) -> None:
    command = launch(tmp_path, engine="docker", runtime="runc").command
    assert command[:7] == ["docker", "run", "--rm", "--runtime", "runc", "--interactive", "--init"]
    assert "--ulimit" not in command


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ("podman", ["--device", "nvidia.com/gpu=all"]),
        ("docker", ["--gpus", "all"]),
        ("apptainer", ["--nv"]),
    ],
)
def test_all_nvidia_gpus(tmp_path: Path, engine: str, expected: list[str]) -> None:
    command = launch(tmp_path, engine=engine, devices=["all"]).command
    at = command.index(expected[0])
    assert command[at : at + len(expected)] == expected
    assert "all" not in values(command, "--device")


def test_amd_devices_and_extra_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "_check", lambda *_: None)  # this host has no such device
    options = {"devices": ["/dev/kfd", "/dev/dri"], "extra_args": ["--group-add", "video"]}
    command = launch(tmp_path, engine="podman", **options).command
    assert values(command, "--device") == ["/dev/kfd", "/dev/dri"]
    assert command[command.index("example/vllm:1") - 2 :][:2] == ["--group-add", "video"]
    assert "--rocm" in launch(tmp_path, engine="apptainer", **options).command


def test_another_network_publishes_the_port_on_loopback_only(tmp_path: Path) -> None:
    command = launch(tmp_path, engine="podman", network="bridge").command
    assert values(command, "--publish") == ["127.0.0.1:8001:8001"]
    assert values(command, "--host") == ["0.0.0.0"]


def test_apptainer_is_a_plain_child_with_bind_mounts(tmp_path: Path) -> None:
    made = launch(tmp_path, engine="apptainer", mounts=[f"{tmp_path}:/data:ro"])
    assert made.command[:5] == ["apptainer", "exec", "--cleanenv", "--no-eval", "--pid"]
    assert f"{tmp_path}:/data:ro" in values(made.command, "--bind")
    (home,) = values(made.command, "--home")
    assert Path(home).is_dir(), "caches need a place, and not the user's home"
    assert Path(home).is_relative_to(tmp_path)
    assert made.env["APPTAINERENV_VLLM_CPU_KVCACHE_SPACE"] == "4"
    assert "--env" not in made.command, "it would split a value at its commas"
    assert made.stop_commands == []
    assert made.env["APPTAINERENV_HF_TOKEN"] == SECRET


@pytest.mark.parametrize("engine", engines.ENGINES)
def test_secrets_travel_by_name_only(tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "key-" + SECRET)
    recipe = replace(RECIPE, env={"SOME_SECRET": "own-" + SECRET})
    made = launch(tmp_path, recipe, engine=engine, pass_env=["HF_TOKEN", "VLLM_API_KEY", "NOT_SET_HERE"])
    seen = json.dumps([made.command, made.stop_commands, made.probe, made.facts])
    assert SECRET not in seen
    prefix = "APPTAINERENV_" if engine == "apptainer" else ""
    names = {"HF_TOKEN": SECRET, "VLLM_API_KEY": "key-" + SECRET, "SOME_SECRET": "own-" + SECRET}
    assert {name: made.env[prefix + name] for name in names} == names
    if engine != "apptainer":
        assert set(names) <= set(values(made.command, "--env"))
    assert "NOT_SET_HERE" not in made.command


def test_token_from_file_where_the_environment_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    assert "HF_TOKEN" not in launch(tmp_path, engine="podman").command
    (tmp_path / "hf_token").write_text(f"{SECRET}\n")
    made = launch(tmp_path, engine="podman")
    assert "HF_TOKEN" in values(made.command, "--env")
    assert made.env["HF_TOKEN"] == SECRET


def test_a_hub_model_gets_the_hosts_cache(tmp_path: Path) -> None:
    command = launch(tmp_path, engine="podman").command
    cache = tmp_path / ".cache" / "huggingface"
    assert f"{cache}:{cache}" in values(command, "--volume")
    assert {f"HF_HOME={cache}", f"HF_HUB_CACHE={cache}/hub"} <= set(values(command, "--env"))


@pytest.mark.parametrize("name", ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"])
@pytest.mark.parametrize("source", ["shell", "recipe"])
def test_a_cache_elsewhere_is_mounted_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str
) -> None:
    cache, recipe = tmp_path / "data" / "hub", RECIPE
    if source == "shell":
        monkeypatch.setenv(name, str(cache))
    else:
        recipe = replace(RECIPE, env={name: str(cache)})
    command = launch(tmp_path, recipe, engine="podman").command
    assert f"{cache}:{cache}" in values(command, "--volume")
    assert f"HF_HUB_CACHE={cache}" in values(command, "--env")


def test_a_cache_that_others_fill_is_mounted_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "shared"
    cache.mkdir()
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(container.os, "access", lambda path, mode: str(path) != str(cache) or not mode & os.W_OK)
    assert f"{cache}:{cache}:ro" in values(launch(tmp_path, engine="podman").command, "--volume")


def test_a_cache_that_the_user_mounts_is_left_to_him(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    recipe = replace(RECIPE, env={"HF_HOME": "/cache/hf"})
    made = launch(tmp_path, recipe, engine="podman", mounts=[f"{tmp_path}/data:/cache"])
    guard = f"{container.container_init.__file__}:{container.GUARD}:ro"
    assert values(made.command, "--volume") == [f"{tmp_path}/data:/cache", guard]
    assert "HF_HOME=/cache/hf" in values(made.command, "--env")


def test_a_cache_that_cannot_be_made_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "file" / "hub"))
    with pytest.raises(ServerError, match=r"Hugging Face folder .*file/hub cannot be made: Not a directory"):
        launch(tmp_path, engine="podman")


def test_a_recipes_own_folders_keep_their_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("model", "checkpoint"):
        (tmp_path / name).mkdir()
    tiers = {"kv_connector_extra_config": {"secondary_tiers": [{"type": "fs", "root_dir": "checkpoint"}]}}
    recipe = replace(RECIPE, model="model", kv_transfer_config=tiers)
    command = launch(tmp_path, recipe, engine="podman").command
    model, checkpoint = tmp_path / "model", tmp_path / "checkpoint"
    assert values(command, "--volume") == [
        f"{model}:{model}:ro",
        f"{checkpoint}:{checkpoint}",
        f"{container.container_init.__file__}:{container.GUARD}:ro",
    ]
    assert values(command, "--model") == [str(model)]
    assert str(checkpoint) in values(command, "--kv-transfer-config")[0]


def test_a_snapshot_of_the_hugging_face_cache_gets_its_blobs(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "hub" / "snapshots" / "abc", tmp_path / "hub" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "1f").write_text("{}")
    (snapshot / "config.json").symlink_to("../../blobs/1f")
    (snapshot / "gone.json").symlink_to("../../nowhere/2f")
    command = launch(tmp_path, replace(RECIPE, model=str(snapshot)), engine="podman").command
    assert values(command, "--volume")[:2] == [f"{snapshot}:{snapshot}:ro", f"{blobs}:{blobs}:ro"]
    assert not [mount for mount in values(command, "--volume") if "nowhere" in mount]


@pytest.mark.parametrize("engine", ["podman", "docker", "apptainer"])
def test_a_servers_own_sockets_stay_on_loopback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth1")
    recipe = replace(RECIPE, env={"GLOO_SOCKET_IFNAME": "eth0"})
    for names, nccl in (([], "lo"), (["NCCL_SOCKET_IFNAME"], "eth1")):
        env = launch(tmp_path, recipe, engine=engine, pass_env=names).server_env
        assert env is not None
        assert env["VLLM_HOST_IP"] == "127.0.0.1"
        assert (env["GLOO_SOCKET_IFNAME"], env["NCCL_SOCKET_IFNAME"]) == ("eth0", nccl)


def test_a_host_without_a_network_says_so_to_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    made = launch(tmp_path, engine="docker")
    assert "HF_HUB_OFFLINE" in values(made.command, "--env")
    assert made.server_env is not None
    assert made.server_env["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"image": None}, "container.image is missing"),
        ({"mounts": ["/no/such/folder:/data"]}, "mount source /no/such/folder does not exist"),
        ({"mounts": ["/:/proc/1"]}, "mount target /proc/1 is refused"),
        ({"mounts": ["/tmp:data"]}, "mount target data of /tmp is not absolute"),
        ({"mounts": ["/tmp:/a:/b"]}, "is not source:target"),
        ({"devices": ["/dev/no-such-gpu"]}, "device /dev/no-such-gpu does not exist"),
        ({"network": "none"}, "cut the server off"),
        ({"engine": "apptainer", "ulimits": ["nofile=1:1"]}, "apptainer has no such options: container.ulimits"),
    ],
)
def test_one_sentence_for_what_an_engine_would_refuse(tmp_path: Path, options: dict, words: str) -> None:
    with pytest.raises(ServerError, match=words) as caught:
        launch(tmp_path, **{"engine": "podman", **options})
    assert caught.value.reason == "server_start"
    assert "\n" not in str(caught.value)


def test_the_first_engine_found_is_used_and_a_missing_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines.shutil, "which", lambda name: "/x" if name in ("docker", "apptainer") else None)
    assert engines.find_engine(None) == "docker"
    with pytest.raises(ServerError, match="podman is not installed"):
        engines.find_engine("podman")
    monkeypatch.setattr(engines.shutil, "which", lambda name: None)
    with pytest.raises(ServerError, match="no container engine is installed"):
        engines.find_engine(None)


@pytest.mark.parametrize(
    ("own", "variables", "python_path"),
    [("", {}, ""), ("/opt/site", {}, ":/opt/site"), ("/opt/site", {"PYTHONPATH": "/mine"}, ":/mine")],
)
def test_a_connector_of_ours_is_mounted_and_found_before_the_images_own_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, variables: dict[str, str], python_path: str
) -> None:
    image = Image("x", "sha256:1", "sha256:2", {}, own)
    monkeypatch.setattr(container, "find_image", lambda engine, name: image)
    ours = {"kv_connector": "ClaimedPrefixConnector", "kv_connector_module_path": "claimed_prefix"}
    recipe = replace(RECIPE, kv_transfer_config=ours, env=variables)
    made = launch(tmp_path, recipe, engine="podman").command
    assert f"{VLLM_PLUGINS}:{VLLM_PLUGINS}:ro" in values(made, "--volume")
    assert f"PYTHONPATH={VLLM_PLUGINS}{python_path}" in values(made, "--env")
    apptainer = launch(tmp_path, recipe, engine="apptainer")
    assert f"{VLLM_PLUGINS}:{VLLM_PLUGINS}:ro" in values(apptainer.command, "--bind")
    assert apptainer.env["APPTAINERENV_PYTHONPATH"] == f"{VLLM_PLUGINS}{python_path}"
    other = launch(tmp_path, engine="podman").command
    assert not [text for text in other if str(VLLM_PLUGINS) in text], "only where the server needs it"


PODMAN_IMAGE = {
    "Id": "aa11",
    "Digest": "sha256:bb22",
    "RepoDigests": ["localhost/x@sha256:bb22"],
    "Config": {"Labels": {"longctx.build": "cc33"}, "Env": ["PATH=/bin", "PYTHONPATH=/opt/site", "EMPTY"]},
}
DOCKER_PULLED = {"Id": "sha256:aa11", "RepoDigests": ["vllm/vllm-openai@sha256:dd44"], "Config": {"Labels": None}}
DOCKER_BUILT = {"Id": "sha256:aa11", "RepoDigests": [], "Config": {}}


@pytest.mark.process
@pytest.mark.parametrize(
    ("facts", "digest", "labels"),
    [
        (PODMAN_IMAGE, "sha256:bb22", {"longctx.build": "cc33"}),
        (DOCKER_PULLED, "sha256:dd44", {}),
        (DOCKER_BUILT, "sha256:aa11", {}),
    ],
)
def test_image_facts(monkeypatch: pytest.MonkeyPatch, facts: dict, digest: str, labels: dict) -> None:
    answer = subprocess.CompletedProcess([], 0, json.dumps([facts]), "")
    monkeypatch.setattr(engines, "run", lambda command: answer)
    python_path = "/opt/site" if facts is PODMAN_IMAGE else ""
    assert engines.find_image("podman", "x") == Image("x", "sha256:aa11", digest, labels, python_path)


@pytest.mark.process
@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        ("Error: inspecting object: localhost/x: image not known", "the image x does not exist here"),
        ("Error response from daemon: No such image: x", "the image x does not exist here"),
        ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", "docker's daemon does not run"),
        ("Got permission denied while trying to connect to the Docker daemon socket", "join the docker group"),
    ],
)
def test_an_image_that_cannot_be_inspected(monkeypatch: pytest.MonkeyPatch, stderr: str, words: str) -> None:
    monkeypatch.setattr(engines, "run", lambda command: subprocess.CompletedProcess(command, 125, "[]", stderr))
    with pytest.raises(ServerError, match=words):
        engines.find_image("docker", "x")


def test_a_sif_file_is_known_by_its_content(tmp_path: Path) -> None:
    sif = tmp_path / "x.sif"
    sif.write_bytes(b"abc")
    digest = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert engines.find_image("apptainer", str(sif)).digest == digest
    with pytest.raises(ServerError, match=r"does not exist; write container\.image as a \.sif"):
        engines.find_image("apptainer", "docker://vllm/vllm-openai:v0.25.1")


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        ("INFO ready\n", None),
        ("", None),
        ("Error: from the engine\nRuntimeError: but the server spoke last", None),
        ("ERROR (catatonit:6): failed to exec pid1: No such file or directory", "container.python is not in the image"),
        ("docker: invalid reference format.\nSee 'docker run --help'.", "docker: invalid reference format."),
        ('docker: no.\ntime="x" level=error msg="error waiting for container: context canceled"', "docker: no."),
        ("Error: statfs /nope: no such file or directory", "the mount source /nope does not exist"),
        (
            'Error: OCI runtime error: runc: runc create failed: error mounting "/etc/passwd" to rootfs at "/proc/1"',
            "the mount of /etc/passwd was refused",
        ),
        (
            "Error: runc: runc create failed: error setting rlimits: error setting rlimit type 7",
            "lower container.ulimits",
        ),
        (
            "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all",
            "nvidia.com/gpu=all is not known",
        ),
        ("Error: stat /dev/kfd: no such file or directory", "the device /dev/kfd does not exist"),
        (
            'Error: runc: runc create failed: exec: "nope": executable file not found in $PATH: OCI runtime',
            "nope is not in the image",
        ),
        ("Error: runc: runc create failed: open /x: permission denied: OCI permission denied", "permission denied"),
        ("Error: something new", "Error: something new"),
    ],
)
def test_an_engines_own_error_in_one_sentence(log: str, sentence: str | None) -> None:
    said = engines.explain(log.splitlines())
    assert said is None if sentence is None else sentence in (said or "")
