"""What a prefill costs by its length, and how long it still takes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls  # here, since the first fit falls into a measured prefill

RATE_WINDOW_S = 10.0
FIT_POINTS = 4
FIT_SHARE = 0.01  # of the prompt must be done before a fit means anything
JUMP = 10.0  # a step this much faster than the three after it came from a cache, not from the model


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds to prefill n tokens: linear_s·n + quadratic_s·n²."""

    linear_s: float
    quadratic_s: float

    def at(self, tokens: float) -> float:
        """Return the seconds for `tokens`."""
        return self.linear_s * tokens + self.quadratic_s * tokens * tokens


def fit_cost(points: Sequence[tuple[float, int]]) -> Cost | None:
    """Return the cost model through (seconds, tokens) points: least squares over differences from the first.

    Neither coefficient is negative. None with fewer than FIT_POINTS points or without growth.
    """
    if len(points) < FIT_POINTS:
        return None
    seconds, tokens = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    y, scale = seconds[1:] - seconds[0], float(tokens.max())
    x = np.stack([tokens[1:] - tokens[0], (tokens[1:] ** 2 - tokens[0] ** 2) / scale], axis=1)
    linear_s, quadratic_s = nnls(x, y)[0]
    cost = Cost(float(linear_s), float(quadratic_s) / scale)
    return cost if cost.at(scale) > 0 else None


def eta_s(points: Sequence[tuple[float, int]], total: int, now_s: float, prior: Cost | None = None) -> float | None:
    """Return the seconds left until `total` tokens are done.

    points: (seconds, tokens) at which each new token count was first seen, oldest first. `prior` is the cost
    model of shorter prompts: its shape is kept and its scale taken from the points. Without it the model is fitted
    to the points. None while too little has been seen.
    """
    if not points:
        return prior.at(total) if prior else None
    last_s, done = points[-1]
    recent = points[_after_jump(points) :]
    if prior is None:
        cost = fit_cost(recent) if done >= FIT_SHARE * total else None
    else:
        worked_s = last_s - recent[0][0]
        expected_s = prior.at(done) - prior.at(recent[0][1])
        scale = worked_s / expected_s if worked_s > 0 and expected_s > 0 else 1.0
        cost = Cost(prior.linear_s * scale, prior.quadratic_s * scale)
    if cost is None:
        return None
    return max(0.0, cost.at(total) - cost.at(done) - max(0.0, now_s - last_s))


def _after_jump(points: Sequence[tuple[float, int]]) -> int:
    """Return the index of the first computed point after the last jump; a slow hiccup among fast steps is none."""
    if len(points) < 5:
        return 0
    steps = np.diff(np.array(points, dtype=float), axis=0)
    rates = steps[:, 1] / np.maximum(steps[:, 0], 1e-9)
    following = np.median(np.lib.stride_tricks.sliding_window_view(rates[1:], 3), axis=1)
    jumps = np.flatnonzero(rates[: len(following)] > JUMP * following)
    return int(jumps[-1]) + 2 if len(jumps) else 0
