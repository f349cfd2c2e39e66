"""The time of a whole prefill from the times of a few of its chunks.

A server prefills a prompt in chunks of c tokens. The cost of a chunk depends on how many tokens stand before it, its
depth. With a connector that claims a prefix, the server computes only the last tokens of a prompt: a sample. Of two
samples of one prompt, one of a single chunk and one of 1 + m chunks, the difference over m is the mean cost of m
chunks: a knot of the curve at the mean depth of their starts. What every request pays once cancels.

    T(n) = fixed(n) + sum of cost(d) over all chunk starts d = 0, c, 2c, … < n

cost is linear between knots, and beyond the first and the last one it goes on as between the nearest two. fixed(n) is
what a single-chunk sample takes beyond its chunk: scheduling, the ids of n tokens, and with pipeline parallelism the
way of the last chunk through the later stages. A prompt that a sample computed whole was measured: its T is that.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longctx.errors import DataError

Floats = NDArray[np.float64]

# Half an interval is this many standard errors of the repeats: about 95 %.
STANDARD_ERRORS = 2.0
# The relative spread of one sample where none was repeated; two H200 samples of a kind differ by 0.5 %.
ASSUMED_SPREAD = 0.01
# Fewer repeats do not tell their own spread: that of all repeated samples counts.
OWN_SPREAD_N = 3
# The relative deviation to allow for where no real prefill says it: the most of four real prefills on one H200 and of
# two on two (tests/data/sampled_prefill_h200.csv), rounded up.
ASSUMED_DEVIATION = 0.02
# The least deviation to allow for where real prefills say it: they differ as much from run to run.
LEAST_DEVIATION = 0.005


class Sample(NamedTuple):
    """One request: the server took `seconds` for `computed_tokens` behind a prefix of `claimed_tokens`."""

    claimed_tokens: int
    computed_tokens: int
    seconds: float

    @property
    def prompt_tokens(self) -> int:
        return self.claimed_tokens + self.computed_tokens


class Knot(NamedTuple):
    """A mean in s with its standard error, and the tokens before it; `samples` requests gave it."""

    depth_tokens: float
    cost_s: float
    error_s: float
    samples: int


@dataclass(frozen=True, slots=True)
class PrefillEstimate:
    """The server's time for a prompt, in s, and its interval, the root of the sum of the squares of three parts.

    repeats_s: STANDARD_ERRORS of the samples' spread. interpolation_s: the largest change by leaving one knot out.
    deviation_s: the largest deviation from real prefills (LEAST_DEVIATION at least), or ASSUMED_DEVIATION.
    beyond_tokens: how far the prompt reaches beyond the longest sampled one. knots: 0 where samples computed the whole
    prompt.
    """

    seconds: float
    repeats_s: float
    interpolation_s: float
    deviation_s: float
    samples: int
    knots: int
    beyond_tokens: int = 0

    @property
    def half_s(self) -> float:
        """Half the interval's width."""
        return sqrt(self.repeats_s**2 + self.interpolation_s**2 + self.deviation_s**2)

    @property
    def low_s(self) -> float:
        return max(0.0, self.seconds - self.half_s)

    @property
    def high_s(self) -> float:
        return self.seconds + self.half_s


@dataclass(frozen=True, slots=True)
class ChunkCurve:
    """The cost of a chunk against its depth. All tuples ascend by depth.

    fixed: what a prompt takes beyond its chunks, by prompt length. whole: prompts that a sample computed from the first
    token on, by prompt length. spread: the relative standard deviation of repeated samples. samples: their number.
    """

    chunk_tokens: int
    knots: tuple[Knot, ...]
    fixed: tuple[Knot, ...]
    whole: tuple[Knot, ...]
    longest_tokens: int
    spread: float
    samples: int

    @classmethod
    def from_samples(cls, samples: Iterable[Sample], chunk_tokens: int) -> "ChunkCurve":
        """Pair samples of one prompt, or behind one prefix, and average repeats; DataError for impossible samples."""
        times: dict[tuple[int, int], list[float]] = defaultdict(list)
        for sample in samples:
            if sample.seconds <= 0 or sample.claimed_tokens < 0 or sample.computed_tokens < 1 or chunk_tokens < 1:
                raise DataError(f"a sample needs positive tokens and seconds, not {tuple(sample)}")
            times[sample.claimed_tokens, sample.computed_tokens].append(sample.seconds)
        pooled = relative_spread(list(times.values()))
        spread = ASSUMED_SPREAD if pooled is None else pooled
        means = {key: _mean(key[0], seconds, spread) for key, seconds in times.items()}
        knots = _knots(means, chunk_tokens)
        fixed = _fixed(means, knots, chunk_tokens) if len(knots) > 1 else ()
        whole = [mean._replace(depth_tokens=sum(key)) for key, mean in means.items() if key[0] == 0]
        longest, count = max(map(sum, means), default=0), sum(mean.samples for mean in means.values())
        return cls(chunk_tokens, knots, fixed, tuple(sorted(whole)), longest, spread, count)

    def cost_s(self, depth_tokens: float) -> float:
        """Return the seconds of a full chunk behind so many tokens; DataError with fewer than two knots."""
        return float(self._costs(np.array([depth_tokens], dtype=float), self._checked_knots())[0])

    def span_s(self, depth_tokens: int, tokens: int) -> float:
        """Return the seconds of `tokens`, a chunk's at most, behind `depth_tokens`; DataError as `cost_s`."""
        # A part of a chunk costs its share of a full one whose tokens stand as deep on average.
        return tokens / self.chunk_tokens * self.cost_s(depth_tokens + (tokens - self.chunk_tokens) / 2)

    def fixed_s(self, tokens: int) -> float:
        """Return what a prompt of so many tokens takes beyond its chunks, 0 where no sample says it."""
        return float(np.interp(tokens, *_columns(self.fixed))) if self.fixed else 0.0

    def estimate(self, tokens: int, deviations: Sequence[float] = ()) -> PrefillEstimate:
        """Return T(tokens) with its interval; `deviations`: relative ones of real prefills from this curve.

        DataError where fewer than two knots are known and no sample computed the whole prompt.
        """
        share = max([LEAST_DEVIATION, *map(abs, deviations)]) if deviations else ASSUMED_DEVIATION
        if measured := self._measured(tokens):
            repeats_s = STANDARD_ERRORS * measured.error_s
            return PrefillEstimate(measured.cost_s, repeats_s, 0.0, share * measured.cost_s, measured.samples, 0)
        knots = self._checked_knots()
        seconds = self.fixed_s(tokens) + self._sum_s(tokens, knots)
        # The sum is linear in the costs of the knots: each one's share of it is its weight.
        alone = [[other._replace(cost_s=float(other is knot)) for other in knots] for knot in knots]
        errors = [self._sum_s(tokens, unit) * knot.error_s for unit, knot in zip(alone, knots, strict=True)]
        if self.fixed:
            lengths, fixed_errors = zip(*((fixed.depth_tokens, fixed.error_s) for fixed in self.fixed), strict=True)
            errors.append(float(np.interp(tokens, lengths, fixed_errors)))
        changes = [abs(change) for _, change in self.left_out(tokens)]
        return PrefillEstimate(
            seconds,
            repeats_s=STANDARD_ERRORS * sqrt(sum(error**2 for error in errors)),
            interpolation_s=max(changes, default=0.0) * seconds,
            deviation_s=share * seconds,
            samples=self.samples,
            knots=len(knots),
            beyond_tokens=max(0, tokens - self.longest_tokens),
        )

    def left_out(self, tokens: int) -> list[tuple[float, float]]:
        """Return (depth, relative change of T(tokens)) of leaving out each knot between two others.

        Beyond the longest sampled prompt the last knot counts too: it carries the extrapolation.
        """
        knots = self._checked_knots()
        full = self.fixed_s(tokens) + self._sum_s(tokens, knots)
        last = len(knots) if tokens > self.longest_tokens and len(knots) > 2 else len(knots) - 1
        changes = []
        for index in range(1, last):
            rest = [*knots[:index], *knots[index + 1 :]]
            without = self.fixed_s(tokens) + self._sum_s(tokens, rest)
            changes.append((knots[index].depth_tokens, without / full - 1))
        return changes

    def _measured(self, tokens: int) -> Knot | None:
        """Return the whole prompts of this length, or, below one chunk, what lies between two measured lengths."""
        for mean in self.whole:
            if mean.depth_tokens == tokens:
                return mean
        short = [mean for mean in self.whole if mean.depth_tokens <= self.chunk_tokens]
        if not short or not short[0].depth_tokens < tokens < short[-1].depth_tokens:
            return None
        nearest = min(short, key=lambda mean: abs(mean.depth_tokens - tokens))
        return nearest._replace(depth_tokens=tokens, cost_s=float(np.interp(tokens, *_columns(short))))

    def _checked_knots(self) -> Sequence[Knot]:
        if len(self.knots) < 2:
            raise DataError(
                f"{len(self.knots)} depths have samples of one chunk and of several: the cost of a chunk needs two"
            )
        return self.knots

    def _sum_s(self, tokens: int, knots: Sequence[Knot]) -> float:
        """Return the seconds of all chunks of a prompt, the last one as `span_s` says."""
        chunk, full = self.chunk_tokens, tokens // self.chunk_tokens
        total = float(self._costs(np.arange(full, dtype=float) * chunk, knots).sum())
        if rest := tokens - full * chunk:
            total += rest / chunk * float(self._costs(np.array([full * chunk - (chunk - rest) / 2]), knots)[0])
        return total

    @staticmethod
    def _costs(depths: Floats, knots: Sequence[Knot]) -> Floats:
        """Return the costs at `depths` tokens, linear between knots and beyond the ends as in the end's interval."""
        x, y = _columns(knots)
        interval = np.clip(np.searchsorted(x, depths) - 1, 0, len(x) - 2)
        slopes = np.diff(y) / np.diff(x)
        return y[interval] + (depths - x[interval]) * slopes[interval]


def _columns(knots: Sequence[Knot]) -> tuple[Floats, Floats]:
    return np.array([knot.depth_tokens for knot in knots], dtype=float), np.array([knot.cost_s for knot in knots])


def relative_spread(groups: Sequence[Sequence[float]]) -> float | None:
    """Return the pooled relative standard deviation of repeated samples, None where none was repeated."""
    degrees = sum(len(group) - 1 for group in groups)
    squares = sum(float(((np.array(group) / np.mean(group) - 1) ** 2).sum()) for group in groups)
    return sqrt(squares / degrees) if degrees else None


def _mean(depth: int, seconds: Sequence[float], spread: float) -> Knot:
    mean, count = float(np.mean(seconds)), len(seconds)
    deviation = float(np.std(seconds, ddof=1)) if count >= OWN_SPREAD_N else spread * mean
    return Knot(depth, mean, deviation / sqrt(count), count)


def _knots(means: dict[tuple[int, int], Knot], chunk: int) -> tuple[Knot, ...]:
    """Return the knots of all samples that have a partner of fewer chunks.

    The partner ends where the long one ends (the chunks before it remain), or else starts where it starts.
    """
    at: dict[float, list[Knot]] = defaultdict(list)
    for (claimed, computed), long in means.items():
        last = computed % chunk or chunk
        more = (computed - last) // chunk
        if more < 1:
            continue
        first, short = claimed, means.get((claimed + computed - last, last))
        if short is None and last == chunk:
            first, short = claimed + chunk, means.get((claimed, chunk))
        if short is not None:
            cost, error = (long.cost_s - short.cost_s) / more, sqrt(long.error_s**2 + short.error_s**2) / more
            depth = first + (more - 1) * chunk / 2
            at[depth].append(Knot(depth, cost, error, long.samples + short.samples))
    return tuple(_merged(at[depth]) for depth in sorted(at))


def _merged(knots: Sequence[Knot]) -> Knot:
    """Return the mean of knots at one depth."""
    error = sqrt(sum(knot.error_s**2 for knot in knots)) / len(knots)
    cost, samples = sum(knot.cost_s for knot in knots) / len(knots), sum(knot.samples for knot in knots)
    return Knot(knots[0].depth_tokens, cost, error, samples)


def _fixed(means: dict[tuple[int, int], Knot], knots: Sequence[Knot], chunk: int) -> tuple[Knot, ...]:
    """Return what each sample of one chunk takes beyond the chunk, by prompt length."""
    shorts = sorted((claimed, mean) for (claimed, computed), mean in means.items() if computed == chunk)
    costs = ChunkCurve._costs(np.array([claimed for claimed, _ in shorts], dtype=float), knots)
    return tuple(
        mean._replace(depth_tokens=claimed + chunk, cost_s=mean.cost_s - float(cost))
        for (claimed, mean), cost in zip(shorts, costs, strict=True)
    )
