"""Estimated TTFT of whole prompts from samples of their chunks, and how far real prefills are from it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import hypot, sqrt
from statistics import fmean, stdev
from typing import Any

from longctx.campaign.mode import COLD_MODE
from longctx.errors import DataError
from longctx.plan.forecasting.chunk_curve import STANDARD_ERRORS, ChunkCurve, PrefillEstimate, Sample, relative_spread
from longctx.storage.schemas import COLD_ROLES, ESTIMATES, ModeName, Role, Status

Row = Mapping[str, Any]
Bound = Callable[[int], float]

SAMPLE_ROLES = (Role.SAMPLE_SHORT, Role.SAMPLE_LONG)
# Clocks that differ by more than this share make an estimate and a real prefill two different machines.
CLOCK_SHARE = 0.02
# A clock is compared only where the server computed for so much of the request: idle GPUs have other clocks.
BUSY_SHARE = 0.7
# Every long prefill runs into it, a real one as well.
POWER_LIMIT = "sw_power_cap"
INTEGRATED, COMPUTED_WHOLE = "integrated", "computed whole"
DOUBTS = {
    "deviates": "real prefills are outside the interval that the samples alone give",
    "other_clock": f"the GPUs' clocks during the samples and the real prefill differ by more than {CLOCK_SHARE:.0%}",
    "throttled": "a GPU held its clocks back during samples, for another reason than its power limit",
    "extrapolated": "no prompt as long was sampled",
}


def sample_rows(rows: Iterable[Row]) -> list[Row]:
    """Return the sound samples."""
    return [row for row in rows if row["role"] in SAMPLE_ROLES and row["status"] == Status.OK]


def chunk_curve(rows: Iterable[Row]) -> ChunkCurve:
    """Return the curve of a campaign's samples; DataError where the server did not say the size of its chunks."""
    rows = [row for row in sample_rows(rows) if row["sample_prefill_s"] is not None]
    chunks = {row["max_num_batched_tokens"] for row in rows}
    if None in chunks or len(chunks) != 1:
        raise DataError(
            f"samples need one known chunk size, max_num_batched_tokens of the server, not {chunks or '{}'}"
        )
    samples = [
        Sample(row["claimed_tokens"] or 0, row["prompt_tokens"] - (row["claimed_tokens"] or 0), row["sample_prefill_s"])
        for row in rows
    ]
    return ChunkCurve.from_samples(samples, chunks.pop())


def estimated(rows: Iterable[Row]) -> list[Row]:
    """Return the rows of schemas.ESTIMATES of this mode that have an estimate, shortest prompts first."""
    own = [row for row in rows if row["mode"] == ModeName.SAMPLED and row["ttft_estimate_s"]]
    return sorted(own, key=lambda row: row["length"])


@dataclass(frozen=True, slots=True)
class Measured:
    """TTFT of real prefills of one length in s: the mean of `n`, and its standard error where several tell it."""

    ttft_s: float
    error_s: float | None
    n: int
    mode: str
    role: str
    sm_clock_mhz: float | None


def measured_ttft(rows: Iterable[Row], length: int) -> Measured | None:
    """Return the whole prompts of the samples' own server, else the campaign's cold prompts; None for neither."""
    real = [row for row in rows if row["length"] == length and row["status"] == Status.OK and row.get("ttft_s")]
    whole = [row for row in real if row["role"] == Role.WHOLE]
    found = whole or [row for row in real if row["mode"] == COLD_MODE and row["role"] in COLD_ROLES]
    if not found:
        return None
    times = [row["ttft_s"] for row in found]
    error = stdev(times) / sqrt(len(times)) if len(times) > 1 else None
    return Measured(fmean(times), error, len(times), found[0]["mode"], found[0]["role"], _clock(found))


def estimates(rows: Sequence[Row], lengths: Iterable[int], bound: Bound | None = None) -> list[dict[str, Any]]:
    """Return schemas.ESTIMATES rows for `lengths`; a length that cannot be estimated has a reason.

    rows: schemas.MEASUREMENTS of the campaign, all modes. bound: the least prefill time in s that the hardware allows.
    """
    own = [row for row in rows if row["mode"] == ModeName.SAMPLED]
    labels: dict[str, Any] = dict.fromkeys(ESTIMATES.names) | {"mode": str(ModeName.SAMPLED)}
    labels |= {name: next((row[name] for row in own if row.get(name) is not None), None) for name in _LABELS}
    try:
        curve = chunk_curve(own)
    except DataError as error:
        return [labels | {"length": length, "reason": str(error)} for length in lengths]
    made = [_Length(rows, curve, length) for length in lengths]
    # What real prefills deviate by widens the interval of every integrated length, and of its own where it is no sum.
    integrated = [one.real_share for one in made if one.method == INTEGRATED]
    shares = [integrated if one.method == INTEGRATED else [one.real_share] for one in made]
    known = [[share for share in listed if share is not None] for listed in shares]
    return [labels | one.row(real_shares, bound) for one, real_shares in zip(made, known, strict=True)]


_LABELS = ("campaign", "recipe_hash", "synthetic_weights", "gpu", "gpu_count")


class _Length:
    """One length: its estimate from the samples alone, and the real prefills that it is held against."""

    def __init__(self, rows: Sequence[Row], curve: ChunkCurve, length: int) -> None:
        self.curve, self.length = curve, length
        self.samples = [row for row in sample_rows(rows) if row["prompt_tokens"] <= length]
        self.own = [row for row in self.samples if row["prompt_tokens"] == length]
        self.overheads = [row["overhead_s"] for row in self.own if row["overhead_s"] is not None]
        self.measured = measured_ttft(rows, length)
        self.alone: PrefillEstimate | None = None
        self.reason: str | None = None
        if not self.overheads:
            self.reason = "no sample of this length"
            return
        try:
            self.alone = curve.estimate(length)
        except DataError as error:
            self.reason = str(error)

    @property
    def method(self) -> str:
        return INTEGRATED if self.alone and self.alone.knots else COMPUTED_WHOLE

    @property
    def overhead_s(self) -> float:
        return fmean(self.overheads)

    @property
    def deviation(self) -> float | None:
        """The estimate over the measured TTFT, less 1."""
        if self.alone is None or self.measured is None:
            return None
        return (self.alone.seconds + self.overhead_s) / self.measured.ttft_s - 1

    @property
    def real_share(self) -> float | None:
        """The measured TTFT over the estimate, less 1."""
        return None if self.deviation is None else 1 / (1 + self.deviation) - 1

    def half_s(self, estimate: PrefillEstimate) -> float:
        """Return half the interval of the TTFT."""
        count = len(self.overheads)
        error = stdev(self.overheads) / sqrt(count) if count > 1 else 0.0
        return hypot(estimate.half_s, STANDARD_ERRORS * error)

    def is_inside(self) -> bool | None:
        """Return whether the real prefills agree with the samples alone, both intervals considered."""
        if self.alone is None or self.measured is None or self.deviation is None:
            return None
        error = self.measured.error_s
        if error is None:  # a single prefill scatters as the samples of its length do
            error = (_spread(self.own) or self.curve.spread) * self.measured.ttft_s
        return abs(self.deviation) * self.measured.ttft_s <= hypot(self.half_s(self.alone), STANDARD_ERRORS * error)

    def row(self, real_shares: Sequence[float], bound: Bound | None) -> dict[str, Any]:
        """Return the row of schemas.ESTIMATES, without what all lengths share, in the light of real prefills."""
        made: dict[str, Any] = {"length": self.length, "reason": self.reason, "doubts": []}
        if self.measured is not None:
            made |= {f"measured_{name}": value for name, value in asdict(self.measured).items() if name != "error_s"}
            made["ttft_measured_s"] = made.pop("measured_ttft_s")
        if self.alone is None:
            return made
        ttft_s = self.alone.seconds + self.overhead_s
        # They are shares of a TTFT; the interval is first made for the prefill in it.
        shares = [share * ttft_s / self.alone.seconds for share in real_shares]
        estimate = self.curve.estimate(self.length, shares)
        half_s = self.half_s(estimate)
        parts = {name: getattr(estimate, name) for name in ("repeats_s", "interpolation_s", "deviation_s", "samples")}
        made |= parts | {"knots": estimate.knots, "method": self.method, "chunk_tokens": self.curve.chunk_tokens}
        made |= {"ttft_estimate_s": ttft_s, "ttft_low_s": max(0.0, ttft_s - half_s), "ttft_high_s": ttft_s + half_s}
        made |= {"prefill_estimate_s": estimate.seconds, "overhead_s": self.overhead_s}
        made |= {"deviations_n": len(real_shares), "deviation": self.deviation}
        made |= {"deviation_inside": self.is_inside(), "sm_clock_mhz": _clock(self.samples)}
        return made | self._last_chunk(bound) | {"doubts": self._doubts(estimate)}

    def _last_chunk(self, bound: Bound | None) -> dict[str, float | None]:
        """Return the cost of the last full chunk and the hardware's limit for it, where the curve says it."""
        first = self.length - self.curve.chunk_tokens
        if self.method == COMPUTED_WHOLE or first < 0:
            return {}
        limit = bound(self.length) - bound(first) if bound and first else None
        return {"last_chunk_s": self.curve.cost_s(first), "last_chunk_bound_s": limit}

    def _doubts(self, estimate: PrefillEstimate) -> list[str]:
        clock, real = _clock(self.samples), self.measured.sm_clock_mhz if self.measured else None
        found = {
            "deviates": self.is_inside() is False,
            "other_clock": bool(clock and real) and abs(clock / real - 1) > CLOCK_SHARE,  # type: ignore[operator]
            "throttled": any(_throttling(row) for row in self.samples),
            "extrapolated": estimate.beyond_tokens > 0,
        }
        return [name for name in DOUBTS if found[name]]


def _spread(rows: Iterable[Row]) -> float | None:
    """Return the relative standard deviation of repeated samples, pooled over their roles; None without repeats."""
    by_role: dict[str, list[float]] = {}
    for row in rows:
        by_role.setdefault(row["role"], []).append(row["sample_prefill_s"])
    return relative_spread(list(by_role.values()))


def _clock(rows: Iterable[Row]) -> float | None:
    """Return the mean SM clock of busy requests in MHz, each weighted by its prefill; None where no GPU said it."""
    times = [(row, row.get("sample_prefill_s") or row.get("prefill_s") or 0.0) for row in rows]
    known = [
        (row["sm_clock_mhz"], seconds)
        for row, seconds in times
        if row.get("sm_clock_mhz") and seconds and seconds >= BUSY_SHARE * (row.get("e2e_s") or 0.0)
    ]
    total_s = sum(seconds for _, seconds in known)
    return sum(mhz * seconds for mhz, seconds in known) / total_s if known else None


def _throttling(row: Row) -> set[str]:
    """Return why a GPU held its clocks back during a request, but for its power limit."""
    return set((row.get("throttle_reasons") or "").split(", ")) - {"", POWER_LIMIT}
