"""Launcher external through the real Snakemake: somebody else's server is measured, marked and left alone."""

import json
import shutil
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fakenvml
import pytest
from busy import told
from fakeserver import FakeServer, Handler
from longctx.serve.lifecycle import choose_port
from pipeline import NEW_TOKENS, Finished, Pipeline

KEY = "sk-somebody-elses"
Theirs = Callable[..., FakeServer]


@pytest.fixture
def theirs() -> Iterator[Theirs]:
    """Start servers that the pipeline knows nothing of but the address."""
    started: list[FakeServer] = []

    def start(plan: dict[str, Any] | None = None, **state: Any) -> FakeServer:
        started.append(FakeServer(plan, **state).__enter__())
        return started[-1]

    yield start
    for server in started:
        server.__exit__()


def measure(pipeline: Pipeline, url: str, *arguments: str, **options: Any) -> Finished:
    pipeline.configure(launcher="external", external={"url": url, **options})
    return pipeline.run(*(arguments or ("results/summary.parquet",)))


class Gateway(Handler):
    """The server as a company shows it: below a path."""

    def parse_request(self) -> bool:
        known = super().parse_request()
        self.path = self.path.removeprefix("/team/llm") if self.path.startswith("/team/llm/") else "/nothing"
        return known


def encrypt(server: FakeServer, folder: Path) -> Path:
    """Give a server TLS with a certificate that only its own file vouches for; return that file."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: no certificate can be made")
    file = folder / "certificate.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            folder / "key.pem",
            "-out",
            file,
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, folder / "key.pem")
    server._httpd.socket = context.wrap_socket(server._httpd.socket, server_side=True)
    server.url = server.url.replace("http:", "https:") + "/team/llm"
    return file


def sent(server: FakeServer) -> list[int]:
    """Lengths of the measured requests that the server got."""
    return [truth["count"] for truth in server.truth if truth["max_tokens"] == NEW_TOKENS]


def failures(pipeline: Pipeline) -> set[tuple[str, str]]:
    return {
        (record.data["reason"], record.data["detail"])
        for point in ("256/pass1", "512/pass1")
        for record in pipeline.journal(point)
        if record.kind == "row" and record.data["status"] == "failed"
    }


def test_it_is_measured_and_what_it_does_not_tell_is_marked(prepared: Pipeline, theirs: Theirs) -> None:
    server = theirs(max_model_len=4096)
    done = measure(prepared, server.url, "results/report.md")
    assert done.code == 0, done.output
    assert done.jobs["measure_prefill"] == 1, "one job climbs all"
    assert sent(server) == [256, 512]
    for point in ("256/pass1", "512/pass1"):
        (row,) = [row for row in prepared.rows(point) if row["role"] == "cold"]
        assert (row["status"], told(row), row["launcher"]) == ("ok", ["contract_unproven"], "external")
        assert "the server does not tell its " in row["detail"]
        assert row["ttft_s"] > 0
        assert row["prefill_s"] == pytest.approx(server.truth[-1]["prefill_s"], rel=0.1)
        assert row["cached_tokens"] == 0
        (started,) = prepared.rows(point, "servers")
        assert started["command"] == []
        asked = {entry["setting"] for entry in json.loads(started["contract"]) if entry["asked"] is not None}
        assert asked == {"model", "kv_cache_dtype", "load_format", "cudagraph_mode"}, "what the configuration sets"
    report = (prepared.results / "report.md").read_text()
    assert "contract_unproven" in report
    assert "not proven" in report
    assert measure(prepared, server.url, "results/report.md").jobs == {}, "and not again"


def test_without_metrics_and_without_details(prepared: Pipeline, theirs: Theirs) -> None:
    done = measure(prepared, theirs({"metrics": False}, details=False).url)
    assert done.code == 0, done.output
    (row,) = [row for row in prepared.rows("512/pass1") if row["role"] == "cold"]
    assert told(row) == ["no_metrics", "cold_unproven", "contract_unproven"]
    assert row["prefill_s"] is None
    if row["chunks"] > 1:  # a client that was kept waiting reads all tokens at once, and then there is no rate
        assert (row["decode_source"], row["decode_tok_s"] > 0) == ("client", True)
    assert [(row["n"], told(row)) for row in prepared.summary()] == [
        (1, ["cold_unproven", "contract_unproven", "no_metrics"])
    ] * 2


@pytest.mark.slow
def test_cached_tokens_make_a_row_doubtful(prepared: Pipeline, theirs: Theirs) -> None:
    server = theirs({"by_length": {"512": {"cached": 480}}}, prefix_caching=True)
    done = measure(prepared, server.url)
    assert done.code == 0, done.output
    assert [(row["n"], row["n_doubtful"], row["ttft_s_n"] + row["n_late"]) for row in prepared.summary()] == [
        (1, 0, 1),
        (0, 1, 0),
    ]
    assert sent(server) == [256, 512, 512], "tried once more with another prompt"
    assert "480 of 512 tokens came from the cache" in prepared.rows("512/pass1")[-1]["detail"]


@pytest.mark.slow
def test_prefix_caching_alone_is_no_doubt_since_prompts_differ(prepared: Pipeline, theirs: Theirs) -> None:
    prepared.configure(passes=2)
    done = measure(prepared, theirs(prefix_caching=True).url)
    assert done.code == 0, done.output
    assert [(row["n"], told(row), row["cached_tokens_min"]) for row in prepared.summary()] == [
        (2, ["contract_unproven"], 0)
    ] * 2


def test_what_it_cannot_take_is_not_sent(prepared: Pipeline, theirs: Theirs) -> None:
    server = theirs(max_model_len=300)
    done = measure(prepared, server.url)
    assert done.code != 0
    assert sent(server) == [256]
    assert max(truth["count"] for truth in server.truth) <= 300, "warm-ups keep to it as well"
    assert failures(prepared) == {
        ("over_max_length", "the server accepts 300 tokens at most, this point needs 518; nothing was sent")
    }
    assert [(row["length"], row["n"], row["n_failed"]) for row in prepared.summary()] == [(256, 1, 0), (512, 0, 1)]


def test_the_key_goes_to_the_server_and_nowhere_else(
    prepared: Pipeline, theirs: Theirs, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = theirs({"api_key": KEY})
    monkeypatch.setenv("THEIR_KEY", KEY)
    done = measure(prepared, server.url, "results/report.html", api_key_env="THEIR_KEY")
    assert done.code == 0, done.output
    assert sent(server) == [256, 512]
    assert KEY not in done.output
    for path in [*prepared.results.rglob("*"), *(prepared.folder / ".snakemake").rglob("*")]:
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "options", "reason", "sentence"),
    [
        (None, {}, "connection", "external.api_key_env: URL refuses requests without a key (status 401)"),
        ("wrong", {"api_key_env": "THEIR_KEY"}, "connection", "external.api_key_env: URL refuses the key (status 401)"),
        (KEY, {"api_key_env": "THEIR_KEY", "model": "no"}, "unsupported", "external.model: URL serves fake, not no"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    prepared: Pipeline,
    theirs: Theirs,
    monkeypatch: pytest.MonkeyPatch,
    key: str | None,
    options: dict[str, str],
    reason: str,
    sentence: str,
) -> None:
    if key:
        monkeypatch.setenv("THEIR_KEY", key)
    server = theirs({"api_key": KEY})
    done = measure(prepared, server.url, **options)
    assert done.code != 0
    assert failures(prepared) == {(reason, sentence.replace("URL", server.url))}
    assert done.output.count(sentence.replace("URL", server.url)) == 1, "said once for all points"
    assert "Traceback" not in done.output
    assert server.truth == []


@pytest.mark.slow
def test_behind_tls_and_a_path_with_a_proxy_in_the_environment(
    prepared: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeServer()
    server._httpd.RequestHandlerClass = type("Bound", (Gateway,), {"state": server.state})
    authority = encrypt(server, prepared.folder)
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{choose_port()}")
    with server:
        refused = measure(prepared, server.url)
        assert refused.code != 0
        ((reason, detail),) = failures(prepared)
        assert reason == "connection"
        assert detail.startswith(f"external.url: the certificate of {server.url} is not trusted (")
        assert detail.endswith("SSL_CERT_FILE names its authority's file")
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        done = measure(prepared, f"{server.url}/v1")
    assert done.code == 0, done.output
    for point in ("256/pass1", "512/pass1"):
        (row,) = [row for row in prepared.rows(point) if row["role"] == "cold"]
        assert (row["status"], told(row)) == ("ok", ["contract_unproven"]), "metrics are read through TLS as well"
    assert sent(server) == [256, 512]


def test_a_point_that_fails_leaves_the_files_of_the_others(prepared: Pipeline, theirs: Theirs) -> None:
    server = theirs({"by_length": {"256": {"http_status": 500}}})
    done = measure(prepared, server.url)
    assert done.code != 0
    assert prepared.measured("512/pass1") == [("cold", 0, "ok")]
    assert not (prepared.results / "measurements" / "256" / "pass1.parquet").exists()


@pytest.mark.slow
def test_a_key_that_is_not_set(prepared: Pipeline, theirs: Theirs) -> None:
    done = measure(prepared, theirs().url, api_key_env="NO_SUCH_KEY_HERE")
    assert done.code != 0
    assert "error: external.api_key_env: the environment variable NO_SUCH_KEY_HERE is not set" in done.output


@pytest.mark.slow
def test_a_url_where_nobody_answers(prepared: Pipeline) -> None:
    url = f"http://127.0.0.1:{choose_port()}"
    done = measure(prepared, f"{url}/v1/")
    assert done.code != 0
    ((reason, detail),) = failures(prepared)
    assert reason == "connection"
    assert detail.startswith(f"external.url: no server answers at {url} (")


def test_decode_only_is_refused_before_anything(prepared: Pipeline, theirs: Theirs) -> None:
    server = theirs()
    prepared.configure(modes=["decode_only"])
    done = measure(prepared, server.url)
    assert done.code != 0
    assert "decode_only needs a server started with vLLM's DecodeBenchConnector" in done.output
    assert server.truth == []


@pytest.mark.slow
def test_silence_without_metrics_ends_at_its_own_limit(prepared: Pipeline, theirs: Theirs) -> None:
    prepared.configure(lengths=[256], measure={"blind_stall_s": 2})
    server = theirs({"metrics": False, "by_max_tokens": {str(NEW_TOKENS): {"hang": True}}})
    done = measure(prepared, server.url)
    assert done.code != 0
    (row,) = [
        record.data
        for record in prepared.journal("256/pass1")
        if record.data.get("role") == "cold" and record.kind == "row"
    ]
    assert (row["status"], row["reason"], row.get("ttft_s")) == ("failed", "timeout", None)


@pytest.mark.slow
def test_what_this_host_s_gpus_draw_is_not_its_energy(
    prepared: Pipeline, theirs: Theirs, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = {"driver": "580.95", "cuda": 13000, "gpus": [fakenvml.h200()]}
    fakenvml.install(prepared.folder / "nvml", content, monkeypatch.setenv)
    prepared.configure(lengths=[256])
    done = measure(prepared, theirs({"ttft_s": 0.5}).url)
    assert done.code == 0, done.output
    (row,) = [row for row in prepared.rows("256/pass1") if row["role"] == "cold"]
    assert [row[name] for name in ("energy_j", "power_mean_w", "power_gap_s")] == [None] * 3
