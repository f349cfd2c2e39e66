"""What a local server gets of its environment."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from longctx.campaign.config import ServeConfig
from longctx.campaign.recipe import Recipe
from longctx.processes.launch import Ownership
from longctx.resources import VLLM_PLUGINS
from longctx.serve.launchers import local

RECIPE = Recipe(model="owner/name", served_name="m", max_model_len=1040)
LOOPBACK = {
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "TP_SOCKET_IFNAME": "lo",
}


@pytest.fixture(autouse=True)
def _shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LOOPBACK:
        monkeypatch.delenv(name, raising=False)


def environment(tmp_path: Path, recipe: Recipe = RECIPE) -> dict[str, str]:
    owner = Ownership(id="1a2b", campaign="c", run_dir=tmp_path)
    env = local.prepare(recipe, ServeConfig(python=sys.executable), owner, "127.0.0.1", 8001).env
    return {name: env[name] for name in LOOPBACK if name in env}


def test_a_servers_own_sockets_stay_on_loopback(tmp_path: Path) -> None:
    assert environment(tmp_path) == LOOPBACK


def test_what_the_user_set_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth1")
    recipe = replace(RECIPE, env={"VLLM_HOST_IP": "10.0.0.1"})
    expected = LOOPBACK | {"NCCL_SOCKET_IFNAME": "eth1", "VLLM_HOST_IP": "10.0.0.1"}
    assert environment(tmp_path, recipe) == expected


@pytest.mark.parametrize(
    "arguments",
    [
        ("--nnodes", "2", "--node-rank", "0", "--master-addr", "node0"),
        ("--nnodes=2",),
        ("-n", "2"),
        ("--distributed-executor-backend", "ray"),
        ("--distributed-executor-backend=ray",),
        ("--data_parallel_address", "node0"),
        ("--data-parallel-hybrid-lb",),
        ("-dpa", "node0"),
    ],
)
def test_a_server_over_several_nodes_needs_the_network(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert environment(tmp_path, replace(RECIPE, extra_args=arguments)) == {}


@pytest.mark.parametrize("arguments", [("--distributed-executor-backend", "mp"), ("--seed", "1"), ("-dp", "2")])
def test_other_arguments_leave_it_on_loopback(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert environment(tmp_path, replace(RECIPE, extra_args=arguments)) == LOOPBACK


@pytest.mark.parametrize("inherited", ["", "/mine"])
def test_a_connector_of_ours_is_found_before_the_users_own_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inherited: str
) -> None:
    monkeypatch.setattr(local.kv_connectors, "lacking", lambda python, config: None)
    monkeypatch.setenv("PYTHONPATH", inherited)
    owner = Ownership(id="1a2b", campaign="c", run_dir=tmp_path)
    ours = {"kv_connector": "ClaimedPrefixConnector", "kv_connector_module_path": "claimed_prefix"}
    found = []
    for recipe in (RECIPE, replace(RECIPE, kv_transfer_config=ours)):
        made = local.prepare(recipe, ServeConfig(python=sys.executable), owner, "127.0.0.1", 8001)
        found.append(made.env["PYTHONPATH"])
    assert found == [inherited, os.pathsep.join(filter(None, [str(VLLM_PLUGINS), inherited]))]
