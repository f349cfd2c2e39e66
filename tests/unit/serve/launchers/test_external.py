"""A server that somebody else runs: asked for what it tells, believed no further, and left running."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest
from longctx.campaign.config import ExternalConfig
from longctx.campaign.recipe import Recipe
from longctx.errors import ConfigError, ServerError
from longctx.serve import lifecycle
from longctx.serve.lifecycle import serve
from longctx.storage.schemas import SERVER_FACTS

pytestmark = pytest.mark.process

TINY = str(Path(__file__).parents[3] / "tinyserver.py")
RECIPE = Recipe(model="m", served_name="theirs", max_model_len=1 << 20, kv_cache_dtype="fp8", attention_backend="X")


class Theirs:
    def __init__(self) -> None:
        self.port = lifecycle.choose_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, words: str = "", names: tuple[str, ...] = ("theirs",)) -> None:
        command = [sys.executable, TINY, "--port", str(self.port), "--model", "m", "--served-model-name", *names]
        self.process = subprocess.Popen(command, env=os.environ | {"TINY": words}, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 300
        while True:
            try:
                httpx.get(f"{self.url}/health", trust_env=False)
            except httpx.ConnectError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            else:
                return


@pytest.fixture
def theirs() -> Iterator[Theirs]:
    server = Theirs()
    yield server
    if server.process:
        server.process.kill()
        server.process.wait()


def options(tmp_path: Path) -> dict[str, object]:
    return {"run_dir": tmp_path / "run", "log_path": tmp_path / "log", "campaign": "c", "start_timeout_s": 5}


def test_what_it_tells_is_taken_and_the_rest_is_unproven(tmp_path: Path, theirs: Theirs) -> None:
    theirs.start()
    with serve(RECIPE, ExternalConfig(url=f"{theirs.url}/v1"), **options(tmp_path)) as server:
        assert (server.url, server.model, server.process, server.log) == (theirs.url, "theirs", None, None)
        assert set(server.facts) == set(SERVER_FACTS)
        assert server.facts["max_model_len"] == 4096
        assert server.facts["launcher"] == "external"
        assert server.facts["attention_backend"] is None
        assert server.facts["startup_s"] is None
        assert server.capacity_tokens() == 4096
        assert server.host_facts["cpu_count"] == os.cpu_count()
        assert {entry["setting"]: entry["ok"] for entry in server.contract} == {
            "model": True,
            "tensor_parallel_size": None,
            "pipeline_parallel_size": None,
            "data_parallel_size": None,
            "decode_context_parallel_size": None,
            "kv_cache_dtype": None,
            "attention_backend": None,
            "max_num_seqs": None,
            "prefix_caching": None,
        }
        assert {entry["setting"] for entry in server.contract if entry["asked"] is not None} == {
            "model",
            "kv_cache_dtype",
            "attention_backend",
        }, "what is left at its default is not asked of a server that somebody else runs"
        assert server.alive()
        assert server.log_between(0, server.log_offset()) == []
    assert theirs.process is not None
    assert theirs.process.poll() is None, "an external server is never stopped"
    assert not (tmp_path / "run").exists()


def test_without_metrics(tmp_path: Path, theirs: Theirs) -> None:
    theirs.start("no_metrics")
    with serve(RECIPE, ExternalConfig(url=theirs.url), **options(tmp_path)) as server:
        assert server.capacity_tokens() is None


def test_its_end_is_noticed(tmp_path: Path, theirs: Theirs) -> None:
    theirs.start()
    with serve(RECIPE, ExternalConfig(url=theirs.url), **options(tmp_path)) as server:
        assert theirs.process is not None
        theirs.process.kill()
        theirs.process.wait()
        assert not server.alive()
        assert "no longer answers" in server.death_reason()


def test_the_only_model_is_taken_and_one_of_several_must_be_named(tmp_path: Path, theirs: Theirs) -> None:
    theirs.start(names=("one",))
    with serve(RECIPE, ExternalConfig(url=theirs.url), **options(tmp_path)) as server:
        assert server.model == "one"
    assert theirs.process is not None
    theirs.process.kill()
    theirs.process.wait()
    theirs.start(names=("one", "two"))
    with pytest.raises(ServerError, match="serves one, two; name one of them"):
        serve(RECIPE, ExternalConfig(url=theirs.url), **options(tmp_path)).__enter__()
    with serve(RECIPE, ExternalConfig(url=theirs.url, model="two"), **options(tmp_path)) as server:
        assert server.model == "two"
    with pytest.raises(ServerError, match=r"external.model: .* serves one, two, not three") as error:
        serve(RECIPE, ExternalConfig(url=theirs.url, model="three"), **options(tmp_path)).__enter__()
    assert error.value.reason == "unsupported"


def test_a_url_where_nobody_answers(tmp_path: Path, theirs: Theirs) -> None:
    with pytest.raises(ServerError, match=f"external.url: no server answers at {theirs.url}") as error:
        serve(RECIPE, ExternalConfig(url=theirs.url), **options(tmp_path)).__enter__()
    assert error.value.reason == "connection"


def test_the_key_comes_from_the_environment_and_shows_nowhere(
    tmp_path: Path, theirs: Theirs, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs.start()
    launcher = ExternalConfig(url=theirs.url, api_key_env="THEIR_KEY")
    monkeypatch.delenv("THEIR_KEY", raising=False)
    with pytest.raises(ConfigError, match="environment variable THEIR_KEY is not set"):
        serve(RECIPE, launcher, **options(tmp_path)).__enter__()
    monkeypatch.setenv("THEIR_KEY", "sk-very-secret\n")
    with serve(RECIPE, launcher, **options(tmp_path)) as server:
        assert server.api_key == "sk-very-secret"
        assert "sk-very-secret" not in repr(server)


class Elsewhere(BaseHTTPRequestHandler):
    """Sends everybody to the encrypted address."""

    def do_GET(self) -> None:
        self.send_response(308)
        self.send_header("Location", f"https://llm.example{self.path}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_a_redirect_names_the_address_to_write(tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), Elsewhere) as redirecting:
        Thread(target=redirecting.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        url = f"http://127.0.0.1:{redirecting.server_port}"
        said = f"external.url: {url} redirects to https://llm.example; write that address"
        launcher = ExternalConfig(url=url)
        with pytest.raises(ServerError) as caught, serve(RECIPE, launcher, **options(tmp_path)):
            pass
        redirecting.shutdown()
    assert (str(caught.value), caught.value.reason) == (said, "connection")


@pytest.mark.parametrize("key", ["kl\u00fcch", "two\nlines", "sk-\x07"])
def test_a_key_that_no_header_can_carry_is_one_sentence(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THEIR_KEY", key)
    with pytest.raises(ConfigError, match="THEIR_KEY has a character that no HTTP header can carry") as raised:
        serve(
            RECIPE, ExternalConfig(url="http://127.0.0.1:9", api_key_env="THEIR_KEY"), **options(tmp_path)
        ).__enter__()
    assert key not in str(raised.value)
