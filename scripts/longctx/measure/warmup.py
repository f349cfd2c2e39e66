"""Warm-up with a proof: the kernels of a long prefill run once, then small requests until their times are steady.

The first request pays for JIT (24 to 101 s were seen on a GPU), and short prompts reach neither a full prefill chunk,
nor the kernels of a second one, nor those of several KV blocks, which a filled cache has too. So the first prompt has
one chunk and a bit more, and small requests follow until two in a row agree. Each has a row of role 'warmup'.
"""

from collections.abc import Callable

from longctx.storage.rows import MeasurementRow, Status

SMALL_TOKENS, SMALL_NEW_TOKENS = 256, 8
# The longest prefill chunk that servers use by default; taken where a server does not show its own.
CHUNK_TOKENS = 16384
# Beyond the full chunk: enough for a second, partial one.
SECOND_CHUNK_TOKENS = 64
STEADY_RATIO, STEADY_S = 1.25, 0.05
MINIMUM = 3


def warm_up(
    send: Callable[[int, int], MeasurementRow], maximum: int, chunk_tokens: int | None, longest: int, long_first: bool
) -> bool:
    """Warm a server up; return whether it became steady: after a failed request it is not.

    send(index, count) sends a prompt of so many tokens, unlike every measured one from the first token on, and returns
    its row. maximum: of small requests. chunk_tokens: the server's prefill chunk, None where unknown. longest: of the
    prompts. long_first: whether to send the prompt of one chunk and more.
    """
    chunk = (chunk_tokens or CHUNK_TOKENS) + SECOND_CHUNK_TOKENS
    prompts = [(maximum, chunk)] if long_first else []
    previous_s: float | None = None
    for index, count in prompts + [(index, SMALL_TOKENS) for index in range(maximum)]:
        row = send(index, min(count, longest))
        if row.status == Status.FAILED:
            return False
        elapsed_s = None if row.jit_events else row.e2e_s
        if agrees(previous_s, elapsed_s) and index + 1 >= MINIMUM:
            return True
        previous_s = elapsed_s
    return False


def agrees(first_s: float | None, second_s: float | None) -> bool:
    """Return whether two times of the same small request are alike: within a quarter, or 50 ms."""
    if first_s is None or second_s is None:
        return False
    low, high = sorted((first_s, second_s))
    return high <= low * STEADY_RATIO or high - low <= STEADY_S
