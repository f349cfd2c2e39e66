"""Server counters: old and new names, several engines, absent values, restarts; recorded and hand-made texts."""

import math
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakeserver import FakeServer
from hypothesis import given
from hypothesis import strategies as st
from longctx.serve import metrics
from longctx.serve.metrics import Window, difference, parse, scrape, server_decode_tok_s, settle
from patching import replace_in

DATA = Path(__file__).parents[2] / "data" / "metrics"
ANOTHER = "the server's counters began anew, or another server's were read"


def read(name: str) -> metrics.Snapshot:
    snapshot = parse((DATA / f"{name}.txt").read_text())
    assert snapshot is not None
    return snapshot


def by_hand(name: str, metric: str) -> float:
    """An oracle that shares no code: the sum of a metric's lines."""
    lines = (DATA / f"{name}.txt").read_text().splitlines()
    return math.fsum(float(line.split()[-1]) for line in lines if line.split("{")[0].split(" ")[0] == metric)


def test_a_recorded_request_of_1024_and_16_tokens() -> None:
    before, after = read("vllm-0.32.0-cpu-before"), read("vllm-0.32.0-cpu-after-1024-16")
    window = difference(before, after)
    assert (window.requests, window.prompt_tokens, window.generation_tokens) == (1, 1024, 16)
    assert (window.cached_tokens, window.external_hit_tokens, window.preemptions) == (0, 0, 0)
    for field, metric in {
        "prefill_s": "vllm:request_prefill_time_seconds_sum",
        "queue_s": "vllm:request_queue_time_seconds_sum",
        "decode_s": "vllm:request_decode_time_seconds_sum",
        "itl_sum_s": "vllm:inter_token_latency_seconds_sum",
        "ttft_s": "vllm:time_to_first_token_seconds_sum",
    }.items():
        names = ("vllm-0.32.0-cpu-before", "vllm-0.32.0-cpu-after-1024-16")
        assert getattr(window, field) == pytest.approx(by_hand(names[1], metric) - by_hand(names[0], metric))
    assert server_decode_tok_s(window, 16) == pytest.approx(15 / window.itl_sum_s)
    assert window.itl_sum_s == pytest.approx(window.decode_s)
    assert (after.kv_capacity_tokens, after.running, after.kv_usage) == (4194304, 0, 0.0)
    assert after.engines[0]["cache_dtype"] == "fp8_e4m3"


def test_a_recorded_prefill_shows_its_progress_only_in_the_kv_cache() -> None:
    before, during = read("vllm-0.32.0-cpu-after-1024-16"), read("vllm-0.32.0-cpu-during-64Ki")
    assert during.running == 1
    assert 0 < during.kv_usage * during.kv_capacity_tokens < 65536 + 128
    assert during.activity() != before.activity()


def test_two_engines_of_an_old_vllm() -> None:
    old = read("handmade-vllm-0.6")
    assert old.counters["prompt_tokens"] == 4024
    assert old.counters["generation_tokens"] == 56
    assert old.counters["itl_sum_s"] == 2.0
    assert old.counters["requests"] == 3
    assert (old.kv_usage, old.running, old.kv_capacity_tokens) == (0.25, 1, None)
    assert not {"prefill_s", "queue_s", "decode_s", "cached_tokens", "external_hit_tokens"} & set(old.counters)


def test_absent_is_none_and_never_zero() -> None:
    old = read("handmade-vllm-0.6")
    window = difference(old, old)
    assert (window.prompt_tokens, window.itl_sum_s) == (0, 0.0)
    assert window.prefill_s is None
    assert window.queue_s is None
    assert window.cached_tokens is None
    assert window.external_hit_tokens is None
    assert server_decode_tok_s(window, 16) is None


def test_vllm_of_the_published_recipe() -> None:
    snapshot = read("handmade-vllm-0.25.1")
    assert snapshot.sources["itl_sum_s"] == "vllm:inter_token_latency_seconds_sum"
    assert snapshot.counters["itl_sum_s"] == 0.6733828
    assert (snapshot.kv_usage, snapshot.running) == (0.107, 0)
    assert snapshot.kv_capacity_tokens is None, "blocks times block size is not tokens for a hybrid model"
    assert snapshot.counters["external_hit_tokens"] == 524288


def test_names_of_different_versions_do_not_mix() -> None:
    """A server replaced by one of another version between two readings gives nothing for the renamed counter."""
    window = difference(read("handmade-vllm-0.6"), read("handmade-vllm-0.25.1"))
    assert window == Window(void=ANOTHER)


def test_a_counter_is_never_measured_against_another_metric_of_the_same_meaning() -> None:
    before = parse("vllm:time_per_output_token_seconds_sum 1\nvllm:prompt_tokens_total 5\n")
    after = parse("vllm:inter_token_latency_seconds_sum 3\nvllm:prompt_tokens_total 9\n")
    window = difference(before, after)
    assert (window.itl_sum_s, window.prompt_tokens) == (None, 4)


def test_of_two_metrics_with_one_meaning_the_newer_name_counts() -> None:
    both = parse("vllm:time_per_output_token_seconds_sum 7\nvllm:inter_token_latency_seconds_sum 3\n")
    assert both is not None
    assert both.sources["itl_sum_s"] == "vllm:inter_token_latency_seconds_sum"
    assert both.counters["itl_sum_s"] == 3


@pytest.mark.parametrize("name", sorted(metrics.COUNTERS))
def test_a_counter_that_went_backwards_is_a_restart(name: str) -> None:
    metric = metrics.COUNTERS[name][0]
    other = "vllm:num_preemptions_total" if name != "preemptions" else "vllm:prompt_tokens_total"
    before, after = parse(f"{metric} 10\n{other} 5\n"), parse(f"{metric} 9\n{other} 6\n")
    assert difference(before, after) == Window(void=ANOTHER)


def test_a_restart_that_overtook_the_old_counters() -> None:
    before = parse("process_start_time_seconds 1\nvllm:generation_tokens_total 5\n")
    after = parse("process_start_time_seconds 2\nvllm:generation_tokens_total 50\n")
    assert difference(before, after) == Window(void=ANOTHER)


@pytest.mark.parametrize("text", ["", "<html>404</html>", "vllm:prompt_tokens_total{oops 1\n", "up 1\n"])
def test_texts_that_say_nothing(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-3"])
def test_values_that_are_no_numbers(value: str) -> None:
    snapshot = parse(f"vllm:prompt_tokens_total {value}\nvllm:generation_tokens_total 1\n")
    assert snapshot is not None
    assert "prompt_tokens" not in snapshot.counters


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1"])
def test_a_sum_with_a_part_that_is_no_number_is_unknown(value: str) -> None:
    """Else an engine that falls silent and comes back would look like all its work done in one request."""

    def reading(second: str, made: int) -> metrics.Snapshot | None:
        names = ("prompt_tokens_total", "kv_cache_usage_perc")
        lines = [f'vllm:{name}{{engine="{i}"}} {text}' for name in names for i, text in enumerate(("1", second))]
        return parse("\n".join([*lines, f"vllm:generation_tokens_total {made}", ""]))

    before, after = reading(value, 1), reading("1e6", 17)
    window = difference(before, after)
    assert (window.prompt_tokens, window.generation_tokens, before.kv_usage) == (None, 16, None)


@pytest.mark.parametrize(
    ("text", "tokens", "holds"),
    [
        ("vllm:request_success_total {0}\nvllm:generation_tokens_total {1}\n", (1, 16), True),
        ("vllm:request_success_total {0}\nvllm:generation_tokens_total {1}\n", (0, 16), False),
        ("vllm:request_success_total {0}\nvllm:generation_tokens_total {1}\n", (1, 15), False),
        ("vllm:request_success_total {0}\n", (1, 0), True),
        ("vllm:generation_tokens_total {1}\n", (0, 0), False),
    ],
)
def test_counters_that_never_showed_the_request_give_nothing(text: str, tokens: tuple[int, int], holds: bool) -> None:
    """A balancer may send the request to one replica and the look at its counters to another."""
    more = "vllm:request_prefill_time_seconds_sum 5\n"
    window = difference(parse(more + text.format(0, 0)), parse(more + text.format(*tokens)))
    found = metrics.attribute_to_request(window, 16)
    assert (found.prefill_s, found.void is None) == ((0.0, True) if holds else (None, False))
    assert found.record == window.record
    assert found.record is not None


def test_missing_readings() -> None:
    some = read("handmade-vllm-0.6")
    assert difference(None, some) == Window(void="no server metrics")
    assert difference(some, None) == Window(void="the server's metrics stopped during the request")


engine_values = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=5)


@given(engine_values)
def test_growth_is_the_sum_over_engines(values: list[tuple[int, int]]) -> None:
    def text(column: int) -> str:
        lines = [f'vllm:prompt_tokens_total{{engine="{i}"}} {sum(pair[: column + 1])}' for i, pair in enumerate(values)]
        return "\n".join(lines) + "\n"

    assert difference(parse(text(0)), parse(text(1))).prompt_tokens == sum(growth for _, growth in values)


@pytest.mark.parametrize("plan", [{}, {"metrics": "old"}, {"engines": 3}])
def test_against_the_fake_servers_truth(plan: dict[str, Any]) -> None:
    from fakeclient import ask

    with FakeServer({"itl_s": 0.01, **plan}) as server:
        ask(server.url)
        before = scrape(server.url)
        answer = ask(server.url)
        window = difference(before, settle(server.url, before, completion_tokens=answer.completion_tokens))
        truth = server.truth[1]
    assert window.prefill_s == pytest.approx(truth["prefill_s"])
    assert server_decode_tok_s(window, 16) == pytest.approx(15 / truth["decode_s"])
    assert (window.requests, window.prompt_tokens, window.generation_tokens) == (1, 1024, 16)
    assert window.running_besides == 0
    assert window.record is not None
    assert answer.ttft_s >= window.prefill_s


@pytest.mark.parametrize("running", [(0, 1), (1, 0), (2, 2)])
def test_others_at_either_end_are_seen(running: tuple[int, int]) -> None:
    before, after = (parse(f"vllm:num_requests_running {n}\nvllm:request_success_total {n}\n") for n in running)
    window = difference(before, replace(after, counters=before.counters))
    assert window.running_besides == max(running)


def test_counters_that_lag_behind_the_stream() -> None:
    from fakeclient import ask

    with FakeServer({"metrics_lag": 2}) as server:
        before = scrape(server.url)
        answer = ask(server.url)
        assert difference(before, scrape(server.url)).requests == 0
        window = difference(before, settle(server.url, before, completion_tokens=answer.completion_tokens))
    assert window.generation_tokens == 16


@pytest.mark.parametrize(
    "late", [{"requests": 0}, {"tokens": 15}, {"running": 1}], ids=["the request", "its tokens", "the end"]
)
def test_settling_waits_for_whatever_is_late(monkeypatch: pytest.MonkeyPatch, late: dict[str, int]) -> None:
    def reading(requests: int = 1, tokens: int = 16, running: int = 0) -> metrics.Snapshot | None:
        return parse(
            f"vllm:request_success_total {requests}\nvllm:generation_tokens_total {tokens}\n"
            f"vllm:num_requests_running {running}\n"
        )

    readings = iter([reading(**late), reading(**late), reading()])
    monkeypatch.setattr(metrics, "scrape", lambda *_, **__: next(readings))
    replace_in(monkeypatch, metrics, "time", sleep=lambda _: None)
    after = settle("http://h:1", reading(0, 0), completion_tokens=16)
    assert after == reading()
    assert next(readings, None) is None


def test_settling_ends_although_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    with FakeServer() as server:
        before = scrape(server.url)
        replace_in(monkeypatch, metrics, "time", sleep=waits.append)
        after = settle(server.url, before, completion_tokens=16)
    assert difference(before, after).requests == 0
    assert 5 <= sum(waits) < 6


def test_no_metrics() -> None:
    with FakeServer({"metrics": False}) as server:
        assert scrape(server.url) is None
        assert settle(server.url, None, completion_tokens=1) is None
    assert scrape(server.url) is None, "nobody listens there any more"


def test_an_environment_proxy_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with FakeServer() as server:
        assert scrape(server.url) is not None


def test_a_kept_connection_that_the_server_drops() -> None:
    """The second look goes out on the connection of the first, which nobody answers any more."""
    text = b"vllm:prompt_tokens_total 1\n"
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for last in (False, True):
                connected, _ = listener.accept()
                with connected:
                    connected.recv(65536)
                    connected.sendall(answer)
                    if not last:
                        connected.recv(65536)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert scrape(url) is not None
        assert scrape(url) is not None
        thread.join(10)


@pytest.mark.parametrize(
    "text",
    ["vllm:prompt_tokens_total 1e308\nvllm:prompt_tokens_total{a=\"1\"} 1e308\n",
     "vllm:num_requests_running 1e308\nvllm:num_requests_running{a=\"1\"} 1e308\nvllm:prompt_tokens_total 1\n",
     'vllm:cache_config_info{kv_cache_size_tokens="' + "9" * 5000 + '"} 1\n',
     'vllm:cache_config_info{a="\\', "vllm:prompt_tokens_total{",
     'vllm:prompt_tokens_total{a="b"', "vllm:prompt_tokens_total", "vllm:prompt_tokens_total 1 2 3 4",
     'vllm:prompt_tokens_total{a="\u2028b"} 1\n', "vllm:prompt_tokens_total 0x1p3\n"],
)  # fmt: skip
def test_numbers_and_labels_that_cannot_be_are_left_out(text: str) -> None:
    reading = metrics.parse(text)
    metrics.difference(reading, reading)
    assert reading is None or reading.kv_capacity_tokens is None
