"""The hardware's limits of a run, from its summary."""

from collections.abc import Iterable, Mapping
from typing import Any

from longctx.plan.published import Limit


def limits_from_summary(rows: Iterable[Mapping[str, Any]]) -> dict[int, Limit]:
    """Return the limits that tables.SUMMARY rows carry, by prompt length (tokens)."""
    found: dict[int, Limit] = {}
    for row in rows:
        before = found.get(int(row["length"]), Limit(None, None))
        limit = Limit(row.get("ttft_bound_s") or before.ttft_s, row.get("decode_bound_tok_s") or before.decode_tok_s)
        if limit != Limit(None, None):
            found[int(row["length"])] = limit
    return found
