"""The closed list of reasons why a measurement is failed, doubtful or marked.

A failed row has no measured values at all. A doubtful row has null for its headline values: it counts in no statistic,
and its raw record stays in the trace and in `server_counters`. A marked row is sound; the mark names what isn't proven.
"""

from collections.abc import Mapping
from typing import Any

FAILED = {
    "length_mismatch": "the server counted another prompt length than the label says",
    "error_event": "the server answered with an error",
    "truncated_stream": "the stream ended before the server said it was done",
    "short_output": "decode stopped before max_new_tokens",
    "count_mismatch": "the counts of new tokens contradict each other or what was asked",
    "no_usage": "the server sent no token counts, so nothing can be proven",
    "server_died": "the server process ended",
    "server_start": "the server did not become ready",
    "not_ours": "another server answered on the port",
    "kv_too_small": "the KV cache cannot hold prompt, new tokens and headroom",
    "over_max_length": "the prompt is longer than the server accepts",
    "does_not_fit": "the plan shows that this length cannot fit",
    "request_too_large": "the server refused the size of the request body",
    "timeout": "nothing moved for the configured stall time",
    "contract": "the server runs with other settings than were asked for",
    "invalid_prompt": "the prompt failed validation",
    "disk_full": "the checkpoint or result disk is full",
    "connection": "the connection was refused or broke",
    "unsupported": "this server cannot do what the mode needs",
}

DOUBTFUL = {
    "cached": "part of a cold prompt came from the prefix cache",
    "jit": "kernels were compiled or graphs captured inside the measured window",
    "clock_disagreement": "client and server clocks differ by more than the tolerance",
    "not_cached": "a query behind a resident prefix found no prefix in the cache",
    "not_claimed": "the server skipped another part of the prompt than it was asked to",
    "sample_untimed": "the server's metrics do not give the time of a sample",
    "other_requests": "other requests ran on the server during the measurement",
}

MARKED = {
    "not_steady": "warm-up requests never became steady",
    "no_metrics": "the server's metrics do not give prefill (null), or decode (the client's slope, or null)",
    "cold_unproven": "the server cannot prove that the prompt was not cached",
    "contract_differs": "settings differ from what was asked for, which the configuration lets pass with a warning",
    "contract_unproven": "the server does not say which settings it runs with",
    "resumed": "prefill continued from a checkpoint, so TTFT is not a cold TTFT",
    "compiled": "kernels were compiled in a prefill that is resumed, or too long for it to count; decode is null",
    "client_starved": "the client waited for a processor before the first token: TTFT is a bound, and in no mean",
    "first_token_late": "the first chunk carried, or may carry, several tokens: TTFT is a bound, and in no mean",
    "first_token_unseen": "the stream does not show which event carried the first token; TTFT is null",
    "clock_jump": "the wall clock jumped during the request; all times are of a clock that does not",
    "no_external_hits": "a checkpoint existed but nothing was taken back from it",
}

# Marks of a TTFT that is late by a share that counts: the value is a bound.
LATE = frozenset({"client_starved", "first_token_late"})
# The share of the client's decode time by which a late first token may shorten it.
DECODE_SHARE = 0.15

REASONS = FAILED | DOUBTFUL | MARKED


def bounds(row: Mapping[str, Any]) -> set[str]:
    """Return the columns of a row that hold a bound: they stay in the row and are in no mean, fit or comparison.

    A late TTFT is one, and with it the overhead. The client's decode rate is one too, where waiting before the first
    token may have shortened the time it is taken over.
    """
    marks = LATE.intersection(row.get("reasons") or ())
    columns = {"ttft_s", "overhead_s"} if marks else set()
    rate_tok_s, tokens = row.get("decode_tok_s"), (row.get("completion_tokens") or 0) - 1
    if "client_starved" in marks and row.get("decode_source") == "client" and rate_tok_s and tokens > 0:
        decode_s = tokens / rate_tok_s
        columns |= {"decode_tok_s"} if (row.get("starved_s") or 0.0) > DECODE_SHARE * decode_s else set()
    return columns
