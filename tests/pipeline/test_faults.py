"""Whatever a server does wrong ends as a failed, doubtful or marked row with the right reason, never as a number.

One campaign carries most faults: its pass n of 256 tokens is turned n by the fault of that number, one server for all.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from busy import told
from fakeserver import FakeServer
from longctx.redaction import MASK
from longctx.storage import parquet, token_file
from pipeline import Finished, Pipeline, copy, running, until

TOKENS = 16
SECRETS = {"HF_TOKEN": "hf_aTokenThatNobodyMaySee", "OPENAI_API_KEY": "sk-aKeyThatNobodyMaySee0123"}


@dataclass(frozen=True)
class Fault:
    """What the server does to the measured requests of one pass (`turns`: one per attempt), and what must follow."""

    name: str
    turns: tuple[dict[str, Any], ...]
    status: str
    reasons: tuple[str, ...] = ()
    detail: str = ""
    values: dict[str, Any] = field(default_factory=dict)


COUNTS = {"prompt_tokens": 256, "completion_tokens": TOKENS}
FAULTS = (
    Fault("sound", ({},), "ok", values=COUNTS),
    Fault("usage after the finish chunk", ({"usage": "late"},), "ok", values=COUNTS),
    Fault("cached", ({"cached": 240}, {"cached": 224}), "doubtful", ("cached",),
          "224 of 256 tokens came from the cache"),
    Fault("cached once", ({"cached": 240}, {}), "ok", values={"cached_tokens": 0}),
    Fault("error event", ({"error_after": 5, "error_message": f"no memory {SECRETS['HF_TOKEN']}"},), "failed",
          ("error_event",), "no memory [redacted]"),
    Fault("closed", ({"close_after": 5},), "failed", ("truncated_stream",), "after 5 events"),
    Fault("no usage", ({"usage": "never"},), "failed", ("no_usage",), "without prompt and completion token counts"),
    Fault("1 token more", ({"prompt_tokens_off": 1},), "failed", ("length_mismatch",),
          "the server counted 257 prompt tokens, sent: 256"),
    Fault("short output", ({"stop_after": 5},), "failed", ("short_output",), "5 of 16 tokens; finish_reason stop"),
    Fault("coalesced", ({"coalesce": 4, "itl_s": 0.025},), "ok",
          values={"coalesced": True, "chunks": 4, "itl_p50_s": None, "itl_max_s": None}),
    Fault("compiled once", ({"jit_line": True}, {}), "ok", values={"jit_events": 0}),
    Fault("compiled always", ({"jit_line": True}, {"jit_line": True}), "doubtful", ("jit",),
          "compiled inside the measured window: WARNING [jit_monitor.py:103] Triton kernel JIT compilation"),
    Fault("died", ({"ttft_s": 3600, "die_after_s": 0.2},), "failed", ("server_died",),
          "the server was killed by SIGKILL"),
)  # fmt: skip
PASSES = {fault.name: f"256/pass{number}" for number, fault in enumerate(FAULTS, 1)}
HEADLINES = ("ttft_s", "prefill_s", "overhead_s", "decode_tok_s", "decode_client_tok_s")


def turns() -> dict[str, dict[str, Any]]:
    return {str(n): turn for n, turn in enumerate(turn for fault in FAULTS for turn in fault.turns)}


@pytest.fixture(scope="module")
def ran(prepared_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pipeline, Finished]]:
    """The campaign of all faults, run with secrets in the environment; of 512 tokens every request is refused."""
    pipeline = copy(prepared_folder, tmp_path_factory.mktemp("faults") / "work")
    pipeline.configure(
        passes=len(FAULTS),
        max_new_tokens=TOKENS,
        serve={"scope": "campaign"},
    )
    refused = {"by_max_tokens": {str(TOKENS): {"http_status": 400, "http_message": "no such request"}}}
    spoilt = {"itl_s": 0.02, "by_max_tokens": {str(TOKENS): {"by_turn": turns()}}}
    pipeline.faults(
        by_length={"256": spoilt, "512": refused},
        by_request={"0": {"jit_line": True, "first_slow_s": 1.0}},
        say=f"the token is {SECRETS['HF_TOKEN']} and the key {SECRETS['OPENAI_API_KEY']}",
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SECRETS.items():
            patch.setenv(name, value)
        with running(pipeline) as snakemake:
            lines: set[str] = set()
            until(lambda: lines.update(pipeline.processes().values()) or snakemake.poll() is not None)
            done = pipeline.finish(snakemake)
    (pipeline.folder / "command_lines.txt").write_text("\n".join(lines))
    yield pipeline, done
    pipeline.nothing_left()


@pytest.fixture
def faulty(ran: tuple[Pipeline, Finished]) -> Pipeline:
    return ran[0]


def rows_of(pipeline: Pipeline, point: str) -> list[dict[str, Any]]:
    """Every attempt's row of a point's measured requests."""
    rows = [record.data for record in pipeline.journal(point) if record.kind == "row"]
    return [row for row in rows if row["role"] != "warmup"]


def finite(row: dict[str, Any]) -> bool:
    return all(math.isfinite(value) for value in row.values() if isinstance(value, float))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_ends_as_its_row_says(faulty: Pipeline, fault: Fault) -> None:
    rows = rows_of(faulty, PASSES[fault.name])
    row = rows[-1]
    assert len(rows) == len(fault.turns)
    assert (row["status"], tuple(told(row))) == (fault.status, fault.reasons), row["detail"]
    assert fault.detail in (row["detail"] or "")
    assert finite(row)
    assert {name: row[name] for name in fault.values} == fault.values
    assert (row["temperature"], row["ignore_eos"], row["max_new_tokens"]) == (0.0, True, TOKENS)
    for name in HEADLINES:
        assert (row.get(name) is not None) == (fault.status == "ok"), name


def test_a_doubtful_attempt_is_kept_and_repeated_with_another_prompt(faulty: Pipeline) -> None:
    for name, reason in (("cached once", "cached"), ("compiled once", "jit")):
        first, second = rows_of(faulty, PASSES[name])
        assert (first["status"], told(first), second["status"]) == ("doubtful", [reason], "ok")
        assert all(first[headline] is None for headline in HEADLINES)
    sent = [line["sha256"] for line in requests(faulty) if line["count"] == 256]
    assert len(set(sent)) == len(sent) == len(turns())


def requests(pipeline: Pipeline) -> list[dict[str, Any]]:
    lines = (pipeline.folder / "requests.jsonl").read_text().splitlines()
    return [request for line in lines if (request := json.loads(line))["max_tokens"] == TOKENS]


def test_rates_come_from_token_counts_and_never_from_chunks(faulty: Pipeline) -> None:
    (row,) = rows_of(faulty, PASSES["coalesced"])
    assert row["decode_tok_s"] == pytest.approx(1 / 0.025)
    samples = next(
        record.data
        for record in faulty.journal(PASSES["coalesced"])
        if record.kind == "trace" and record.data["role"] == "cold"
    )["samples"]
    assert [sample["tokens"] for sample in samples] == [4, 4, 4, 4]
    assert row["decode_client_tok_s"] == pytest.approx(12 / (samples[-1]["elapsed_s"] - samples[0]["elapsed_s"]))


def test_what_was_asked_is_what_was_sent(faulty: Pipeline) -> None:
    assert {(line["temperature"], line["ignore_eos"]) for line in requests(faulty)} == {(0.0, True)}


def test_a_slow_first_request_is_a_warm_up_and_stays_in_the_data(faulty: Pipeline) -> None:
    records = faulty.journal(PASSES["sound"])
    first = next(record.data for record in records if record.kind == "row")
    assert (first["role"], first["status"], told(first)) == ("warmup", "doubtful", ["jit"])
    assert first["jit_events"] == 1
    assert any("JIT compilation" in line for line in first["log_lines"])
    trace = next(record.data for record in records if record.kind == "trace")
    assert trace["samples"][0]["elapsed_s"] > 1.0
    assert rows_of(faulty, PASSES["sound"])[0]["jit_events"] == 0


def test_a_server_that_dies_is_known_at_once_and_the_rest_goes_on(faulty: Pipeline) -> None:
    (row,) = rows_of(faulty, PASSES["died"])
    assert row["detail"].startswith("the server was killed by SIGKILL")
    started = [record for record in faulty.journal("512/pass1") if record.kind == "server"]
    assert len(started) == 2, "another server took over"
    assert len({line["pid"] for line in requests(faulty)}) == 2


def test_all_requests_refused_is_no_number_anywhere(ran: tuple[Pipeline, Finished]) -> None:
    faulty, done = ran
    assert done.code != 0
    assert "Traceback" not in done.output
    for number in range(1, len(FAULTS) + 1):
        (row,) = rows_of(faulty, f"512/pass{number}")
        assert (row["status"], row["reason"], row["detail"]) == ("failed", "error_event", "HTTP 400: no such request")
    some, none = sorted(faulty.summary(), key=lambda row: row["length"])
    assert (none["n"], none["n_failed"], told(none)) == (0, len(FAULTS), ["error_event"])
    measured = [name for name in none if name.startswith(("ttft_s", "prefill_s", "decode_tok_s", "overhead_s"))]
    assert {none[name] for name in measured if not name.endswith("_n")} == {None}
    statuses = [fault.status for fault in FAULTS]
    assert (some["n"], some["n_failed"]) == (statuses.count("ok"), statuses.count("failed"))
    assert some["n_doubtful"] == 2
    assert finite(some)
    for name in ("report.md", "report.html"):
        report = (faulty.results / name).read_text()
        assert "no such request" in report
        assert all(reason in report for fault in FAULTS for reason in fault.reasons)


def test_secrets_are_in_no_file_no_output_and_on_no_command_line(ran: tuple[Pipeline, Finished]) -> None:
    faulty, done = ran
    log = next(faulty.results.rglob("*.server.log")).read_text()
    assert f"the token is {MASK} and the key {MASK}" in log, "the server did print them"
    assert "fakeserver.py" in (faulty.folder / "command_lines.txt").read_text()
    texts = [done.output.encode(), *(path.read_bytes() for path in faulty.folder.rglob("*") if readable(path))]
    for secret in SECRETS.values():
        assert not any(secret.encode() in text for text in texts)
    compressed = list(faulty.results.glob("*.parquet"))
    assert {path.stem for path in compressed} >= {"plan", "summary"}
    assert not any(secret in str(parquet.read_rows(path)) for secret in SECRETS.values() for path in compressed)


def readable(path: Path) -> bool:
    """The plan alone tells the stand-in what to print."""
    return path.is_file() and path.name != "plan.json"


def measure(pipeline: Pipeline, *points: str) -> "subprocess.CompletedProcess[str]":
    """Run the measuring program without Snakemake."""
    script = str(pipeline.folder / "scripts" / "measure.py")
    return pipeline.tool(sys.executable, script, *measure_options(*points))


def measure_options(*points: str) -> list[str]:
    """The command line of scripts/measure.py for these points, without a plan."""
    lengths = dict.fromkeys(point.split("/")[0] for point in points)
    prompts, validations = (
        [f"results/{table}/{length}.parquet" for length in lengths] for table in ("prompts", "validation")
    )
    files = ["--config-file", "config.yaml", "--log", "measure.log"]
    return [*files, "--prompts", *prompts, "--validations", *validations, "--points", *points]


ON_THIS_PORT = """
import runpy, sys
sys.path.insert(0, "scripts")
from longctx.serve import lifecycle
port = int(sys.argv[1])
lifecycle.choose_port = lambda: port
sys.argv = ["measure.py", *sys.argv[2:]]
runpy.run_path("scripts/measure.py", run_name="__main__")
"""


@pytest.mark.parametrize("model", ["another", "default"])
def test_a_server_of_others_on_our_port_is_named_and_left_alone(prepared: Pipeline, model: str) -> None:
    """A port that was free when it was chosen; even a server of the same model name is not ours."""
    with FakeServer(model=model) as theirs:
        port = theirs.url.rpartition(":")[2]
        done = prepared.tool(sys.executable, "-c", ON_THIS_PORT, port, *measure_options("256/pass1"))
        assert done.returncode == 1, done.stdout + done.stderr
        (row,) = rows_of(prepared, "256/pass1")
        assert (row["status"], row["reason"]) == ("failed", "not_ours")
        assert f"port {port} is " in row["detail"]
        assert f"process {os.getpid()} " in row["detail"]
        assert theirs.requests == []
        assert httpx.get(f"{theirs.url}/health", trust_env=False).is_success


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 2])
def test_few_output_tokens(prepared: Pipeline, tokens: int) -> None:
    prepared.configure(max_new_tokens=tokens)
    prepared.faults(itl_s=0.02)
    done = measure(prepared, "256/pass1")
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = rows_of(prepared, "256/pass1")
    assert (row["status"], row["completion_tokens"]) == ("ok", tokens)
    assert row["ttft_s"] > 0
    assert finite(row)
    if tokens == 1:
        assert [row[name] for name in ("decode_tok_s", "decode_client_tok_s", "decode_source")] == [None] * 3
    else:
        assert row["decode_tok_s"] == pytest.approx(1 / 0.02)
    assert "inf" not in done.stderr.lower().split()
    assert finite({key: value for row in prepared.rows("256/pass1") for key, value in row.items()})


@pytest.mark.slow
def test_a_server_s_first_prompt_is_computed_and_not_tiny(prepared: Pipeline) -> None:
    """vLLM 0.32 dies by SIGILL on processors with AMX where the first computed tokens are under a dozen."""
    prepared.configure(lengths=[16], modes=["prefill", "decode_only"])
    prepared.summarise()
    servers: dict[int, list[dict[str, Any]]] = {}
    for line in (prepared.folder / "requests.jsonl").read_text().splitlines():
        servers.setdefault(json.loads(line)["pid"], []).append(json.loads(line))
    assert len(servers) == 2
    for first, *others in servers.values():
        assert (first["count"], first["cached"]) == (16 + 64 - 8, 0)
        assert others[-1]["count"] == 16
    filled, prefilled = ([line["cached"] for line in lines[1:]] for lines in sorted(servers.values(), key=is_prefill))
    assert set(prefilled) == {0}
    assert min(filled) == 15, "all but the last token"


def is_prefill(lines: list[dict[str, Any]]) -> bool:
    return lines[-1]["cached"] == 0


def test_a_broken_contract_fails_its_point_or_only_warns(prepared: Pipeline) -> None:
    prepared.faults(kv_dtype="bfloat16")
    refused = measure(prepared, "256/pass1")
    assert refused.returncode == 1
    (row,) = rows_of(prepared, "256/pass1")
    assert (row["status"], row["reason"]) == ("failed", "contract")
    assert "kv_cache_dtype" in row["detail"]
    assert prepared.requests() == [], "before it costs hours"
    prepared.configure(serve={"contract": "warn"})
    assert measure(prepared, "256/pass1").returncode == 0
    row = rows_of(prepared, "256/pass1")[-1]
    assert (row["status"], told(row)) == ("ok", ["contract_differs"])
    (server,) = [row for row in prepared.rows("256/pass1", "servers") if row["status"] == "ok"]
    (broken,) = [entry for entry in json.loads(server["contract"]) if entry["ok"] is False]
    assert (broken["setting"], broken["asked"], broken["actual"]) == ("kv_cache_dtype", "fp8_e4m3", "bfloat16")
    prepared.configure(lengths=[256])
    assert prepared.run("report_now").code == 0
    assert "1 setting differs from what was asked for" in (prepared.results / "report.md").read_text()


@pytest.mark.slow
def test_a_vllm_without_the_connector_is_named_first_and_the_rest_is_measured(
    prepared: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = prepared.folder / "site" / "vllm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    prepared.configure(lengths=[256], modes=["prefill", "decode_only"])
    done = prepared.run("results/summary.parquet")
    assert done.code != 0
    sentence = "mode decode_only cannot be measured: vLLM of unknown version of "
    assert sentence in done.said[0]
    assert done.output.index(sentence) < done.output.index("256/pass1 cold 0: ok"), "before anything starts"
    (row,) = rows_of(prepared, "256/decode_only-pass1")
    assert (row["status"], row["reason"], row.get("ttft_s")) == ("failed", "unsupported", None)
    assert "has no DecodeBenchConnector" in row["detail"]
    assert prepared.measured("256/pass1") == [("cold", 0, "ok")]
    assert not list(prepared.results.rglob("decode_only*.server.log"))


def test_a_bad_prompt_refuses_its_length_and_says_what_is_wrong(prepared: Pipeline) -> None:
    path = prepared.results / "prompts" / "256.parquet"
    ids, metadata = token_file.read_span(path, 0, 256), token_file.read_metadata(path)
    with token_file.TokenFileWriter(path) as writer:
        writer.metadata = dict(metadata)
        writer.write(np.append(ids[:-1], np.uint32(3_000_000)))
    done = prepared.run("results/summary.parquet")
    assert done.code != 0
    (row,) = rows_of(prepared, "256/pass1")
    assert (row["status"], row["reason"], row.get("ttft_s")) == ("failed", "invalid_prompt", None)
    assert "outside the vocabulary" in row["detail"]
    assert row["detail"] in done.output
    assert prepared.measured("512/pass1") == [("cold", 0, "ok")]
    assert {length for length, _ in prepared.requests()} == {512}
