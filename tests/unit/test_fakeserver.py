"""The stand-in itself: what the other tests trust it for."""

import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fakeserver
import httpx
import numpy as np
import pytest
from fakeclient import ask, fake_program
from fakeserver import FakeServer
from longctx.serve.metrics import scrape

WRAPPER = Path(fakeserver.__file__).parent / "bin" / "fake-vllm-python"


def test_the_plan_is_read_anew_for_each_request(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text("{}")
    with FakeServer() as server:
        server.state.plan_source = str(plan)
        assert ask(server.url).status == "ok"
        plan.write_text(json.dumps({"http_status": 500}))
        assert ask(server.url).status == "failed"
        plan.write_text("")
        assert ask(server.url).status == "ok"


def test_faults_of_one_request_or_length() -> None:
    plan: dict[str, Any] = {"by_request": {"1": {"http_status": 500}}, "by_length": {"7": {"stop_after": 2}}}
    with FakeServer(plan) as server:
        assert [ask(server.url).status for _ in range(3)] == ["ok", "failed", "ok"]
        assert ask(server.url, np.arange(7, dtype=np.uint32)).completion_tokens == 2


def test_tokens_never_come_together() -> None:
    """A client that is slow to read gets the next token when it has read the last."""
    with FakeServer({"itl_s": 0.0}) as server:
        answer = ask(server.url, on_token=lambda _: time.sleep(0.02))
    assert [chunk.tokens for chunk in answer.chunks] == [1] * 16


def test_requests_can_be_counted_across_servers(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    ids = np.arange(9, dtype=np.uint32)
    for _ in range(2):
        with FakeServer({"requests_log": str(log)}) as server:
            ask(server.url, ids, max_new_tokens=3)
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(r["count"], r["max_tokens"], r["ignore_eos"]) for r in records] == [(9, 3, True)] * 2
    assert records[0]["sha256"] == hashlib.sha256(ids.astype("<u4").tobytes()).hexdigest()


@pytest.mark.parametrize(
    ("caching", "again", "cached"),
    [(True, np.arange(1024), 1008), (True, np.r_[np.arange(512), np.arange(99)], 512), (False, np.arange(1024), 0),
     (True, np.r_[7, np.arange(1023)], 0)],
)  # fmt: skip
def test_prefix_caching(caching: bool, again: np.ndarray, cached: int) -> None:
    with FakeServer(prefix_caching=caching) as server:
        ask(server.url, np.arange(1024, dtype=np.uint32))
        answer = ask(server.url, again.astype(np.uint32))
        assert answer.cached_tokens == cached
        assert scrape(server.url).counters["cached_tokens"] == cached
        assert (server.truth[1]["prefill_s"] < server.truth[0]["prefill_s"]) is (cached > 0)


def test_a_prefill_comes_back_from_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiers = {"secondary_tiers": [{"type": "fs", "root_dir": str(tmp_path)}]}
    connector = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": tiers}
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    with FakeServer({"ttft_s": 0.3}, connector=connector) as server:
        ask(server.url)
    with FakeServer({}, connector=connector) as server:
        assert ask(server.url).cached_tokens > 0
        assert scrape(server.url).counters["external_hit_tokens"] > 0
    monkeypatch.delenv("PYTHONHASHSEED")
    with FakeServer({}, connector=connector) as server:
        assert ask(server.url).cached_tokens == 0


def test_filled_kv_cache() -> None:
    with FakeServer(connector={"kv_connector": "DecodeBenchConnector"}) as server:
        assert ask(server.url).cached_tokens == 1023
        assert scrape(server.url).counters["external_hit_tokens"] == 1023


def test_endpoints() -> None:
    with FakeServer({"version": "0.25.1"}, max_model_len=2048) as server:
        assert httpx.get(server.url + "/health", trust_env=False).status_code == 200
        assert httpx.get(server.url + "/version", trust_env=False).json() == {"version": "0.25.1"}
        model = httpx.get(server.url + "/v1/models", trust_env=False).json()["data"][0]
        assert (model["id"], model["max_model_len"]) == ("fake", 2048)
        assert httpx.get(server.url + "/other", trust_env=False).status_code == 404


@pytest.mark.process
def test_as_vllm_on_the_command_line() -> None:
    with fake_program({"model_id": "mine"}) as (url, _):
        assert httpx.get(url + "/v1/models", trust_env=False).json()["data"][0]["id"] == "mine"
        assert ask(url).status == "ok"


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "plan", "line"),
    [(["--max-model-len", "4096"], {"capacity": 1024}, "estimated maximum model length is 1024"),
     ([], {"exit_after_s": 0, "exit_lines": "torch.OutOfMemoryError: no"}, "torch.OutOfMemoryError: no")],
)  # fmt: skip
def test_a_start_that_fails(arguments: list[str], plan: dict[str, Any], line: str) -> None:
    done = subprocess.run(
        [WRAPPER, "-m", "vllm.entrypoints.openai.api_server", *arguments, "--unknown", "x"],
        env={"FAKE_PLAN": json.dumps(plan), "FAKE_PYTHON": sys.executable, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert line in done.stdout


@pytest.mark.process
def test_the_wrapper_is_a_python_otherwise() -> None:
    environment = {"FAKE_PYTHON": sys.executable, "PATH": "/usr/bin:/bin"}
    done = subprocess.run([WRAPPER, "-c", "print(6*7)"], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "42\n"
