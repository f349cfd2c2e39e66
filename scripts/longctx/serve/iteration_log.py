"""What vLLM logs of each iteration of its engine where it was asked to: campaign.recipe.LOG_ITERATIONS."""

import re
from collections.abc import Iterable

from longctx.serve.server_facts import jit_lines

# vLLM 0.25.1 logs it in the engine, 0.32 in the API server; the words are the same.
_ITERATION = re.compile(r"Iteration\(\d+\): \d+ context requests, (\d+) context tokens, .* elapsed time: ([\d.]+) ms")


def prefill_iterations(lines: Iterable[str]) -> list[tuple[int, float, bool]]:
    """Return (prompt tokens, s, whether something was compiled meanwhile) of each iteration that prefilled."""
    found, compiled = [], False
    for line in lines:
        compiled |= bool(jit_lines([line]))
        if match := _ITERATION.search(line):
            if tokens := int(match[1]):
                found.append((tokens, round(float(match[2]) / 1000, 5), compiled))
            compiled = False
    return found
