"""The closed list of reasons why a measurement is failed, doubtful or marked.

A failed row has no measured values at all. A doubtful row has null for its headline values: it counts in no statistic,
and its raw record stays in the trace and in `server_counters`. A marked row is sound; the mark names what isn't proven.
"""

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
    "no_metrics": "the server's metrics do not give prefill (null), or decode (the client's slope over token counts)",
    "cold_unproven": "the server cannot prove that the prompt was not cached",
    "contract_differs": "settings differ from what was asked for, which the configuration lets pass with a warning",
    "contract_unproven": "the server does not say which settings it runs with",
    "resumed": "prefill continued from a checkpoint, so TTFT is not a cold TTFT",
    "compiled": "kernels were compiled in a prefill that is resumed, or too long for it to count; decode is null",
    "client_starved": "the client waited for a processor before the first token: TTFT is late by a share that counts",
    "first_token_late": "the first chunk carried, or may carry, several tokens: TTFT is late by a share that counts",
    "first_token_unseen": "the stream does not show which event carried the first token; TTFT is null",
    "clock_jump": "the wall clock jumped during the request; all times are of a clock that does not",
    "no_external_hits": "a checkpoint existed but nothing was taken back from it",
}

REASONS = FAILED | DOUBTFUL | MARKED
