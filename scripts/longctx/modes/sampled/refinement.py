"""More depths where the cost of a chunk bends: pairs of samples between the lengths of the ladder."""

from collections.abc import Iterable

from longctx.plan.forecasting.chunk_curve import ChunkCurve

# A knot whose absence changes the sum over a prompt's chunks by more than this stands in a bend.
LARGEST_CHANGE = 0.005
MOST_PAIRS = 4  # of a campaign
LEAST_INTERVAL = 4  # chunks between two knots, for one more between them


def next_prompt(curve: ChunkCurve, lengths: Iterable[int]) -> int | None:
    """Return the length in tokens of the prompt whose samples help the sums over `lengths` most; None for enough.

    It is a whole number of chunks. Its samples lie in the middle of the wider interval beside the knot that changes a
    sum most by its absence.
    """
    chunk, depths = curve.chunk_tokens, [knot.depth_tokens for knot in curve.knots]
    if len(depths) < 3:
        return None
    worst_change, wanted = LARGEST_CHANGE, None
    for length in lengths:
        for depth, change in curve.left_out(length) if curve.estimate(length).knots else ():
            at = depths.index(depth)
            first, last = max(
                zip(depths[at - 1 : at + 1], depths[at : at + 2], strict=True), key=lambda ends: ends[1] - ends[0]
            )
            if abs(change) > worst_change and last - first >= LEAST_INTERVAL * chunk:
                worst_change, wanted = abs(change), (first + last) / 2
    # The samples of a prompt start about two chunks before its end.
    return None if wanted is None else (round(wanted / chunk) + 2) * chunk
