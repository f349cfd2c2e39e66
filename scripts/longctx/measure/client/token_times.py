"""When which tokens of a stream arrived, as far as its events prove it: pure functions of events."""

from collections.abc import Sequence
from dataclasses import dataclass

from longctx.measure.client.ttft_itl import Chunk


@dataclass(frozen=True, slots=True)
class Event:
    """A stream event with a choice.

    shows_token: whether it has text or token ids, so at least one token. only_role: it opens a chat message and says
    nothing else. ids: the number of its token ids, count: the completion tokens so far by its usage; None where it has
    none.
    """

    elapsed_s: float
    shows_token: bool
    only_role: bool = False
    ids: int | None = None
    count: int | None = None


def chunks(events: Sequence[Event], made: int | None) -> tuple[Chunk, ...]:
    """Return the events that carried tokens; those of one read of the socket become one chunk.

    made: completion tokens by the last usage. How many tokens came with which event is known from the usage of each
    event, from the ids in each, or where as many events show a token as tokens were made. Else counts are unknown: an
    event without text may be a token whose text is held back, a greeting, or a sign of life.
    """
    shown = [event for event in events if event.shows_token]
    known = _by_usage(events, shown, made) or _by_ids(events, shown)
    if not known and shown and len(shown) == made:
        known = [(event.elapsed_s, 1) for event in shown]
    if known:
        return _merge(known)
    return tuple(Chunk(event.elapsed_s, None, None) for event in shown or events)


def _by_usage(events: Sequence[Event], shown: Sequence[Event], made: int | None) -> list[tuple[float, int]]:
    """Return (elapsed_s, new tokens) by the usage of each event; [] where it is missing or contradicts the texts."""
    if not all(event.count for event in shown):
        return []
    grown, total = [], 0
    for number, event in enumerate(events):
        if number == 0 and event.only_role:
            continue  # no token, even where a count is in it already
        new = (event.count or 0) - total
        # Text behind the last token, that was held back, is no contradiction.
        if new <= 0 and event.shows_token and (event is shown[0] or event is not shown[-1]):
            return []
        if new > 0:
            grown.append((event.elapsed_s, new))
            total += new
    return grown if shown or total == made else []


def _by_ids(events: Sequence[Event], shown: Sequence[Event]) -> list[tuple[float, int]]:
    """Return (elapsed_s, new tokens) by the token ids of each event; [] where one that shows a token has none."""
    if not all(event.ids for event in shown):
        return []
    return [(event.elapsed_s, event.ids) for event in events if event.ids]


def _merge(tokens_at: Sequence[tuple[float, int]]) -> tuple[Chunk, ...]:
    merged: list[Chunk] = []
    total = 0
    for elapsed_s, tokens in tokens_at:
        total += tokens
        if merged and merged[-1].elapsed_s == elapsed_s:
            tokens += merged.pop().tokens or 0
        merged.append(Chunk(elapsed_s, tokens, total))
    return tuple(merged)
