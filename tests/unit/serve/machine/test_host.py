"""Hosts, and environments without secrets."""

import json
import os
from collections.abc import Callable

import pytest
from longctx.serve.machine import host, vendor_tools
from longctx.storage.schemas import HOST_FACTS

Show = Callable[..., None]


def test_host_facts_of_a_gpu_host(two_gpus: Show) -> None:
    facts = host.host_facts()
    assert set(facts) == set(HOST_FACTS)
    assert (facts["gpu"], facts["gpu_count"], facts["gpu_driver"]) == ("NVIDIA H200", 2, "580.95.05")
    assert facts["cuda_or_rocm"] == "CUDA 13.0"
    assert facts["cpu_count"] == os.cpu_count()


def test_a_server_counts_the_gpus_that_it_computes_on(two_gpus: Show) -> None:
    assert host.host_facts({}, ranks=1)["gpu_count"] == 1
    assert host.host_facts({}, ranks=2)["gpu_count"] == 2
    assert host.host_facts({}, ranks=16)["gpu_count"] == 16, "over several nodes"
    assert host.host_facts({"CUDA_VISIBLE_DEVICES": "GPU-8a1f"}, ranks=1)["gpu_count"] == 1


def test_host_facts_without_a_gpu(show_gpus: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendor_tools.shutil, "which", lambda name: None)
    facts = host.host_facts()
    assert (facts["gpu"], facts["gpu_count"], facts["gpu_driver"], facts["cuda_or_rocm"]) == (None, 0, None, None)


def test_the_cpu_s_name() -> None:
    assert host.cpu_name("processor\t: 0\nmodel name\t: AMD EPYC 9575F 64-Core\n") == "AMD EPYC 9575F 64-Core"
    assert host.cpu_name("nothing of that kind") != ""


def test_the_environment_record_has_no_secret() -> None:
    env = {
        "VLLM_USE_X": "1",
        "HF_TOKEN": "hf_abcdefgh",
        "VLLM_API_KEY": "sk-12345678",
        "HF_HOME": "/cache",
        "EDITOR": "vi",
        "CUDA_EXTRA": "token=hf_abcdefgh",
        "OMP_NUM_THREADS": "2",
        "HF_SHORT_TOKEN": "abc",
    }
    assert json.loads(host.environment_json(env)) == {
        "CUDA_EXTRA": "token=[secret]",
        "HF_HOME": "/cache",
        "HF_SHORT_TOKEN": "[secret]",
        "HF_TOKEN": "[secret]",
        "OMP_NUM_THREADS": "2",
        "VLLM_API_KEY": "[secret]",
        "VLLM_USE_X": "1",
    }
