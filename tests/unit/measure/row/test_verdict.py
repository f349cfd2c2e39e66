"""What a request may claim: every doubt and mark on its own, and which values each of them leaves null."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from longctx.measure.checkpoints import Attempt
from longctx.measure.client.request import Answer
from longctx.measure.client.ttft_itl import Chunk
from longctx.measure.row import reasons
from longctx.measure.row.verdict import CacheExpectation, Observation, Verdict, measured_values, reach_verdict
from longctx.serve.metrics import Window
from longctx.storage import schemas
from longctx.storage.schemas import Status

TOKENS, NEW, ITL_S, PREFILL_S = 4096, 11, 0.1, 2.0
CHUNKS = tuple(Chunk(PREFILL_S + 0.05 + k * ITL_S, 1, k + 1) for k in range(NEW))
ANSWER = Answer(
    "ok", datetime(2026, 11, 29, tzinfo=UTC), chunks=CHUNKS, prompt_tokens=TOKENS, completion_tokens=NEW,
    cached_tokens=0, finish_reason="length", ttft_s=CHUNKS[0].elapsed_s, e2e_s=CHUNKS[-1].elapsed_s, wall_jump_s=0.0,
)  # fmt: skip
WINDOW = Window(
    prefill_s=PREFILL_S, queue_s=0.01, decode_s=(NEW - 1) * ITL_S, itl_sum_s=(NEW - 1) * ITL_S, requests=1,
    prompt_tokens=TOKENS, generation_tokens=NEW, cached_tokens=0,
)  # fmt: skip
COLD, RESIDENT, FILLED, CLAIMED, ANY = CacheExpectation
HEADLINE = ("ttft_s", "prefill_s", "queue_s", "overhead_s", "decode_tok_s")


def observed(answer: dict[str, Any] | None = None, window: dict[str, Any] | None = None, **changes: Any) -> Observation:
    """Return a clean cold request with changes; `checkpoint_tokens` is how far an earlier attempt had come."""
    answer = answer or {}
    asked = {"prompt_tokens": TOKENS, "new_tokens": answer.get("completion_tokens", NEW)}
    fields = {"cache": COLD, "jit_lines": [], "caching": False} | asked | changes
    reached = fields.pop("checkpoint_tokens", None)
    if reached is not None:
        fields["earlier"] = (Attempt([{"elapsed_s": 1.0, "tokens_done": reached}]),)
    sent = replace(ANSWER, prompt_tokens=fields["prompt_tokens"])
    return Observation(answer=replace(sent, **answer), window=replace(WINDOW, **(window or {})), **fields)


def judged(*args: Any, **changes: Any) -> tuple[Verdict, dict[str, Any]]:
    observation = observed(*args, **changes)
    verdict = reach_verdict(observation)
    return verdict, measured_values(observation, verdict)


def test_a_clean_request_is_ok_and_has_every_value() -> None:
    verdict, values = judged()
    assert verdict == Verdict(Status.OK)
    assert values["ttft_s"] == pytest.approx(2.05)
    assert values["prefill_s"] == PREFILL_S
    assert values["queue_s"] == 0.01
    assert values["overhead_s"] == pytest.approx(2.05 - 2.0 - 0.01)
    assert values["decode_tok_s"] == pytest.approx(10.0)
    assert values["decode_client_tok_s"] == pytest.approx(10.0)
    assert values["decode_source"] == "server"
    assert values["itl_p50_s"] == pytest.approx(ITL_S)


@pytest.mark.parametrize("reason", sorted(reasons.FAILED))
def test_a_failed_request_has_no_values(reason: str) -> None:
    verdict, values = judged({"status": "failed", "reason": reason, "detail": "why"}, jit_lines=["JIT"])
    assert verdict == Verdict(Status.FAILED, (reason,), "why")
    assert values == {}


DOUBTS: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("jit", {}, {}, {"jit_lines": ["Triton kernel JIT compilation during inference: _fwd_kernel"]}),
    ("other_requests", {}, {"requests": 2}, {}),
    ("other_requests", {}, {"generation_tokens": NEW + 1}, {}),
    ("other_requests", {}, {"running_besides": 1}, {}),
    ("cached", {"cached_tokens": 16}, {}, {}),
    ("cached", {"cached_tokens": None}, {"cached_tokens": 16}, {}),
    ("cached", {}, {"cached_tokens": 16}, {}),
    ("cached", {}, {"external_hit_tokens": 16}, {}),
    ("cached", {"cached_tokens": None}, {"cached_tokens": None, "external_hit_tokens": 16}, {"caching": False}),
    ("not_cached", {"cached_tokens": 0}, {}, {"cache": RESIDENT}),
    ("not_cached", {"cached_tokens": None}, {"cached_tokens": None}, {"cache": RESIDENT}),
    ("clock_disagreement", {"ttft_s": 4.0}, {}, {}),
    ("clock_disagreement", {"ttft_s": 1.0}, {}, {}),
    ("clock_disagreement", {}, {"itl_sum_s": 3.0}, {}),
]


@pytest.mark.parametrize(("reason", "answer", "window", "changes"), DOUBTS)
def test_a_doubt_nulls_every_value_and_says_why(
    reason: str, answer: dict[str, Any], window: dict[str, Any], changes: dict[str, Any]
) -> None:
    verdict, values = judged(answer, window, **changes)
    assert (verdict.status, verdict.reasons) == ("doubtful", (reason,))
    assert verdict.detail
    assert set(HEADLINE) <= set(values)
    assert set(values.values()) == {None}


MARKS: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("cold_unproven", {"cached_tokens": None}, {"cached_tokens": None}, {"caching": None}),
    ("cold_unproven", {"cached_tokens": None}, {"cached_tokens": None}, {"caching": True}),
    ("clock_jump", {"wall_jump_s": 3600.0}, {}, {}),
    ("clock_jump", {"wall_jump_s": -2.5}, {}, {}),
    ("client_starved", {"starved_s": 1.0}, {}, {}),
    ("contract_differs", {}, {}, {"violated": ("kv_cache_dtype",)}),
    ("contract_unproven", {}, {}, {"unverified": ("kv_cache_dtype",)}),
    ("no_external_hits", {}, {}, {"checkpoint_tokens": 512}),
]


@pytest.mark.parametrize(("reason", "answer", "window", "changes"), MARKS)
def test_a_mark_leaves_every_value(
    reason: str, answer: dict[str, Any], window: dict[str, Any], changes: dict[str, Any]
) -> None:
    verdict, values = judged(answer, window, **changes)
    assert (verdict.status, verdict.reasons) == ("ok", (reason,))
    assert verdict.detail
    assert all(values[name] is not None for name in HEADLINE)


CONTRADICTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("no_usage", {"prompt_tokens": None}, "token counts"),
    ("no_usage", {"completion_tokens": None}, "token counts"),
    ("length_mismatch", {"prompt_tokens": TOKENS + 1}, "4097 prompt tokens, sent: 4096"),
    ("length_mismatch", {"prompt_tokens": TOKENS - 1}, "4095 prompt tokens, sent: 4096"),
    ("short_output", {"completion_tokens": 5, "finish_reason": "stop"}, "5 of 11 tokens; finish_reason stop"),
    ("short_output", {"completion_tokens": 0}, "0 of 11 tokens"),
    ("count_mismatch", {"completion_tokens": NEW + 1}, "counted 12 new tokens, asked: 11"),
    ("count_mismatch", {"chunks": CHUNKS[:-1]}, "carried 10 new tokens, the usage says 11"),
    ("truncated_stream", {"chunks": ()}, "counted 11 new tokens but sent none"),
]


@pytest.mark.parametrize(("reason", "answer", "detail"), CONTRADICTIONS)
def test_a_stream_that_is_not_the_answer_asked_for_has_failed(reason: str, answer: dict[str, Any], detail: str) -> None:
    verdict, values = judged(answer, new_tokens=NEW)
    assert (verdict.status, verdict.reasons, values) == ("failed", (reason,), {})
    assert detail in str(verdict.detail)


def test_chunks_of_unknown_size_contradict_no_count() -> None:
    assert judged({"chunks": (Chunk(2.05, None, None), Chunk(3.05, None, None))})[0].status == "ok"


def test_an_unsteady_warm_up_marks_what_counts_and_nothing_else() -> None:
    assert judged(steady=False)[0] == Verdict(Status.OK, ("not_steady",))
    assert judged({"wall_jump_s": 60.0}, steady=False)[0].reasons == ("clock_jump", "not_steady")
    assert judged({"cached_tokens": 16}, steady=False)[0].reasons == ("cached",)
    assert judged(steady=False, cache=ANY)[0] == Verdict(Status.OK)


def test_a_warm_up_may_find_anything_in_the_cache() -> None:
    for cached in (0, 16, None):
        counts = {"cached_tokens": cached}
        assert judged(counts, counts, cache=ANY, caching=None)[0] == Verdict(Status.OK)


def test_doubts_come_before_marks() -> None:
    verdict, _ = judged({"wall_jump_s": 60.0, "cached_tokens": 16})
    assert verdict.reasons == ("cached", "clock_jump")
    assert verdict.status == "doubtful"
    assert verdict.detail is not None
    assert verdict.detail.startswith("16 of 4096 tokens came from the cache; the wall clock moved +60.0 s")


def test_a_small_step_of_the_wall_clock_is_none() -> None:
    assert judged({"wall_jump_s": 1.9})[0].reasons == ()
    assert judged({"wall_jump_s": None})[0].reasons == ()


LOST = [
    ({"void": "no server metrics"}, ("prefill_s", "queue_s", "decode_s", "itl_sum_s", "requests", "cached_tokens")),
    ({"void": "why"}, ("prefill_s", "queue_s", "decode_s", "itl_sum_s")),
    ({}, ("prefill_s", "decode_s", "itl_sum_s")),
]


@pytest.mark.parametrize(("window", "lost"), LOST)
def test_without_metrics_decode_is_the_clients_and_prefill_is_null(window: dict[str, Any], lost: tuple[str]) -> None:
    verdict, values = judged({}, dict.fromkeys(lost) | window)
    assert (verdict.status, verdict.reasons) == ("ok", ("no_metrics",))
    why = window.get("void", "no server metrics of this kind")
    assert verdict.detail == f"{why}: prefill is null and decode is the client's slope over token counts"
    assert values["prefill_s"] is None
    assert values["decode_tok_s"] == pytest.approx(10.0)
    assert values["decode_source"] == "client"
    assert "overhead_s" not in values


def test_a_server_that_counts_no_requests_still_has_its_own_decode() -> None:
    verdict, values = judged({}, {"requests": None})
    assert verdict == Verdict(Status.OK)
    assert values["decode_source"] == "server"


def test_a_caching_server_that_says_nothing_is_no_proof_unless_it_does_not_cache() -> None:
    silent = {"cached_tokens": None}
    assert judged(silent, silent, caching=False)[0].reasons == ()


def test_waiting_in_the_queue_is_no_disagreement() -> None:
    assert judged({"ttft_s": 12.05}, {"queue_s": 10.0})[0] == Verdict(Status.OK)
    assert judged({"ttft_s": 12.05}, {"queue_s": 0.0})[0].reasons == ("clock_disagreement",)


def test_a_server_a_little_slower_than_the_client_saw_is_no_disagreement() -> None:
    assert judged({}, {"prefill_s": 2.3})[0].reasons == ()
    assert judged({}, {"prefill_s": 2.4})[0].reasons == ("clock_disagreement",)


def test_a_decode_too_short_to_compare_is_no_disagreement() -> None:
    def reasons_of(client_s: float) -> tuple[str, ...]:
        two = (Chunk(2.05, 1, 1), Chunk(2.05 + client_s, 1, 2))
        return judged({"chunks": two, "completion_tokens": 2}, {"itl_sum_s": 0.01, "generation_tokens": 2})[0].reasons

    assert reasons_of(0.05) == ()
    assert reasons_of(0.07) == ("clock_disagreement",)


def test_a_client_counts_as_starved_from_a_share_of_ttft_and_from_20_ms_on() -> None:
    assert judged({"starved_s": 0.3})[0].reasons == ()
    assert judged({"starved_s": 0.31})[0].reasons == ("client_starved",)
    short = {"ttft_s": 0.05}, {"prefill_s": 0.04, "queue_s": 0.0}
    assert judged(short[0] | {"starved_s": 0.019}, short[1])[0].reasons == ()
    assert judged(short[0] | {"starved_s": 0.021}, short[1])[0].reasons == ("client_starved",)


def test_metrics_that_lack_a_part_give_the_rest() -> None:
    verdict, values = judged({}, {"prefill_s": None, "queue_s": None})
    assert (verdict.reasons, verdict.detail) == (("no_metrics",), "no server metrics of this kind: prefill is null")
    assert (values["prefill_s"], values["decode_source"]) == (None, "server")
    assert judged({}, {"prefill_s": None}, cache=FILLED)[0].reasons == ()
    one = judged(
        {"completion_tokens": 1, "chunks": CHUNKS[:1]}, {"itl_sum_s": None, "decode_s": None, "generation_tokens": 1}
    )
    assert one[0].reasons == ()


def test_a_server_that_counts_no_time_for_its_tokens_leaves_the_clients_slope() -> None:
    verdict, values = judged({}, {"itl_sum_s": 0.0, "decode_s": None})
    assert verdict.detail == "no server metrics of this kind: decode is the client's slope over token counts"
    assert (values["decode_tok_s"], values["decode_source"]) == (pytest.approx(10.0), "client")


NO_METRICS = dict.fromkeys(("prefill_s", "queue_s", "decode_s", "itl_sum_s", "requests", "generation_tokens"))


@pytest.mark.parametrize("tokens", [NEW, None])
def test_an_answer_in_one_chunk_has_a_late_first_token(tokens: int | None) -> None:
    """A proxy that collects the stream: what looks like TTFT holds the decode, and no server clock tells."""
    whole = {"chunks": (Chunk(3.05, tokens, tokens),), "ttft_s": 3.05}
    verdict, values = judged(whole, NO_METRICS)
    assert verdict.reasons == ("no_metrics", "first_token_late")
    assert str(verdict.detail).endswith("the first chunk carried 11 tokens: TTFT is late by an unknown time")
    assert values["decode_tok_s"] is None
    assert judged(whole)[0].reasons == ("clock_disagreement", "first_token_late")
    assert "late by 1.000 s" in str(judged(whole)[0].detail)
    assert judged(whole, cache=FILLED)[0].reasons == ()


def test_a_first_chunk_that_is_late_by_little_is_not_marked() -> None:
    few = (Chunk(2.05, 3, 3), *(Chunk(2.05 + at * ITL_S, 1, 3 + at) for at in range(1, NEW - 2)))
    assert judged({"chunks": few})[0].reasons == ()
    assert judged({"chunks": few}, clock_tolerance=0.05)[0].reasons == ("first_token_late",)


def test_chunks_of_unknown_size_are_not_compared_with_the_servers_decode() -> None:
    """Four tokens in each of three chunks: from the first chunk to the last it is nine tokens' time, not eleven."""
    chunks = tuple(Chunk(PREFILL_S + 0.05 + at * 0.4, None, None) for at in range(3))
    verdict, values = judged({"chunks": chunks, "text_events": 3})
    assert (verdict.status, verdict.reasons) == (Status.OK, ("first_token_late",))
    assert "carried up to 9 tokens: TTFT is late by up to 0.800 s" in str(verdict.detail)
    assert (values["decode_tok_s"], values["decode_client_tok_s"]) == (pytest.approx(10.0), None)


def test_shipping_a_long_prompt_is_no_disagreement() -> None:
    shipped = {"ttft_s": PREFILL_S + 10.0}
    assert judged(shipped)[0].status == "doubtful"
    assert judged(shipped, prompt_tokens=8 << 20)[0].status == "ok"


def test_coalesced_chunks_are_not_compared_with_the_servers_decode() -> None:
    two = (Chunk(2.05, 5, 5), Chunk(2.06, 6, 11))
    verdict, values = judged({"chunks": two})
    assert verdict.status == "ok"
    assert values["decode_tok_s"] == pytest.approx(10.0)
    assert values["itl_p50_s"] is None


def test_one_token_has_no_decode_and_nothing_infinite() -> None:
    verdict, values = judged(
        {"chunks": CHUNKS[:1], "completion_tokens": 1}, {"itl_sum_s": 0.0, "decode_s": 0.0, "generation_tokens": 1}
    )
    assert verdict == Verdict(Status.OK)
    assert values["decode_tok_s"] is None
    assert values["decode_source"] is None
    assert values["ttft_s"] is not None


def test_a_resumed_prefill_is_no_cold_one() -> None:
    verdict, values = judged({"cached_tokens": 3072, "ttft_s": 5.0}, checkpoint_tokens=3100, caching=True)
    assert (verdict.status, verdict.reasons) == ("ok", ("resumed",))
    assert "ttft_s" not in values
    assert "prefill_s" not in values
    assert "overhead_s" not in values
    assert values["resumed_ttft_s"] == 5.0
    assert values["resumed_from"] == 3072
    assert values["resumed_prefill_s"] == PREFILL_S
    assert values["decode_tok_s"] == pytest.approx(10.0)


JIT = "Triton kernel JIT compilation during inference: _zero_kv_blocks_kernel"
DECODE = ("decode_tok_s", "decode_client_tok_s", "decode_source", "itl_p50_s", "itl_max_s")


def test_a_resumed_prefill_is_not_begun_anew_for_a_compiled_kernel() -> None:
    """Seen on one H200: the kernel that clears blocks compiled once more in a continued 512Ki prefill."""
    verdict, values = judged({"cached_tokens": 3072}, checkpoint_tokens=3100, caching=True, jit_lines=[JIT])
    assert (verdict.status, verdict.reasons) == ("ok", ("compiled", "resumed"))
    assert verdict.detail is not None
    assert JIT in verdict.detail
    assert values["resumed_prefill_s"] == PREFILL_S
    assert "prefill_s" not in values
    assert [values[name] for name in DECODE] == [None] * len(DECODE)
    assert judged({"cached_tokens": 0}, checkpoint_tokens=3100, jit_lines=[JIT])[0].status == "doubtful"


def test_a_prefill_of_hours_is_not_begun_anew_for_a_compiled_kernel() -> None:
    """11.2 hours of 64Mi: four events of 30 s are 0.3 % of it, as much as runs differ."""
    hours = {
        "ttft_s": 40171.67,
        "chunks": tuple(replace(chunk, elapsed_s=40171.67 + chunk.elapsed_s) for chunk in CHUNKS),
    }
    window = {"prefill_s": 40170.0}
    verdict, values = judged(hours, window, jit_lines=[JIT] * 4)
    assert (verdict.status, verdict.reasons) == ("ok", ("compiled",))
    assert (values["ttft_s"], values["prefill_s"]) == (40171.67, 40170.0)
    assert [values[name] for name in DECODE] == [None] * len(DECODE)
    verdict, values = judged(hours, window, jit_lines=[JIT] * 5)
    assert (verdict.status, verdict.reasons) == ("doubtful", ("jit",))
    assert values["ttft_s"] is None
    assert judged(hours, window, jit_lines=[JIT], cache=FILLED)[0].status == "doubtful", "it is soon repeated"


def test_reading_a_checkpoint_is_no_clock_disagreement() -> None:
    slow = {"cached_tokens": 3072, "ttft_s": 60.0}
    assert judged(slow, checkpoint_tokens=3100)[0].reasons == ("resumed",)
    assert "clock_disagreement" in judged(slow)[0].reasons


def test_an_attempt_without_progress_may_have_left_a_checkpoint() -> None:
    assert judged({"cached_tokens": 64}, checkpoint_tokens=0)[0].reasons == ("resumed",)
    assert judged({"cached_tokens": 0}, checkpoint_tokens=0)[0].reasons == ()


def test_a_cold_prompt_cached_without_a_checkpoint_is_doubtful() -> None:
    assert judged({"cached_tokens": 64}, checkpoint_tokens=None)[0].reasons == ("cached",)


def test_nothing_taken_back_is_a_cold_prefill_that_says_so() -> None:
    verdict, values = judged(checkpoint_tokens=3100, caching=True)
    assert verdict.reasons == ("no_external_hits",)
    assert "3100 tokens" in str(verdict.detail)
    assert values["ttft_s"] == pytest.approx(2.05)


def test_a_query_behind_a_prefix_is_cached_and_sound() -> None:
    verdict, values = judged({"cached_tokens": 4032}, cache=RESIDENT, caching=True)
    assert verdict == Verdict(Status.OK)
    assert values["ttft_s"] == pytest.approx(2.05)


def test_a_filled_cache_has_no_prefill_values() -> None:
    verdict, values = judged({"cached_tokens": 4095, "ttft_s": 0.01}, cache=FILLED)
    assert verdict.status == "ok"
    assert not {"ttft_s", "prefill_s", "queue_s", "overhead_s"} & set(values)
    assert values["decode_tok_s"] == pytest.approx(10.0)


def test_every_value_is_a_column_and_every_reason_is_listed() -> None:
    for answer, window, changes in [case[1:] for case in DOUBTS + MARKS]:
        verdict, values = judged(answer, window, **changes)
        assert set(values) <= set(schemas.MEASUREMENTS.names)
        assert set(verdict.reasons) <= set(reasons.REASONS)
    assert not set(reasons.FAILED) & set(reasons.DOUBTFUL)
    assert not set(reasons.MARKED) & set(reasons.FAILED | reasons.DOUBTFUL)


def test_a_filled_cache_has_no_ttft_that_could_be_late() -> None:
    assert judged({"starved_s": 1.0}, cache=FILLED)[0] == Verdict(Status.OK)


def sampled(answer: dict[str, Any] | None = None, window: dict[str, Any] | None = None, **changes: Any) -> Any:
    """A sample that computed the last 1,024 tokens behind 3,072 claimed ones."""
    told = {"cached_tokens": 3072, "chunks": CHUNKS[:1], "completion_tokens": 1, "e2e_s": CHUNKS[0].elapsed_s}
    seen = {"cached_tokens": 0, "external_hit_tokens": 3072, "generation_tokens": 1, "itl_sum_s": 0.0, "decode_s": 0.0}
    asked = {"cache": CLAIMED, "claimed_tokens": 3072, "new_tokens": 1}
    return judged(told | (answer or {}), seen | (window or {}), **asked | changes)


def test_a_sample_has_a_time_of_its_own_and_no_ttft() -> None:
    verdict, values = sampled()
    assert verdict == Verdict(Status.OK)
    assert values == {"queue_s": 0.01, "sample_prefill_s": PREFILL_S, "overhead_s": pytest.approx(2.05 - 2.0 - 0.01)}


@pytest.mark.parametrize(
    ("reason", "answer", "window", "changes"),
    [
        ("not_claimed", {"cached_tokens": 3056}, {"external_hit_tokens": 3056}, {}),
        ("not_claimed", {"cached_tokens": 4095}, {"external_hit_tokens": 4095}, {}),
        ("not_claimed", {"cached_tokens": 0}, {"external_hit_tokens": 0}, {}),
        ("not_claimed", {"cached_tokens": None}, {"cached_tokens": None, "external_hit_tokens": None}, {}),
        ("not_claimed", {"cached_tokens": 16}, {"external_hit_tokens": 0}, {"claimed_tokens": 0}),
        ("sample_untimed", {}, {"prefill_s": None}, {}),
        ("sample_untimed", {"ttft_s": 0.1}, {"prefill_s": 0.0}, {}),
        ("jit", {}, {}, {"jit_lines": ["Triton kernel JIT compilation during inference: _fwd_kernel"]}),
        ("other_requests", {}, {"requests": 2}, {}),
    ],
)
def test_a_sample_of_something_else_is_doubtful(
    reason: str, answer: dict[str, Any], window: dict[str, Any], changes: dict[str, Any]
) -> None:
    verdict, values = sampled(answer, window, **changes)
    assert (verdict.status, verdict.reasons) == ("doubtful", (reason,))
    assert set(values.values()) == {None}


def test_a_prompt_that_a_sample_computes_whole_claims_nothing() -> None:
    for cached in (0, None):
        verdict, values = sampled({"cached_tokens": cached}, {"external_hit_tokens": cached}, claimed_tokens=0)
        assert verdict == Verdict(Status.OK)
        assert values["sample_prefill_s"] == PREFILL_S
        assert "ttft_s" not in values
