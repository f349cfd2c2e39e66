"""The energy that GPUs use during a request.

NVIDIA's GPUs count it themselves (NVML): it is the counter after the request minus the counter before it. Other GPUs
are asked for their power again and again by the vendor's tools, and the energy is the area under that curve. What
others do on the same GPUs is in both. An unknown energy is None, never 0.
"""

import contextlib
import threading
import time
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Self

from longctx.serve.machine import gpus, nvidia
from longctx.serve.machine.vendor_tools import POWER_TIMEOUT_S, PowerReader

INTERVAL_S = 0.25
# A stretch without a sample counts as a gap when it is longer than this many intervals.
GAP_INTERVALS = 4
COLUMNS = ("energy_j", "energy_decode_j", "power_mean_w", "power_gap_s")


class EnergyMeter(contextlib.AbstractContextManager["EnergyMeter"]):
    """Measures these GPUs between enter and exit; `energy()` afterwards. Never raises for a tool's sake."""

    def __init__(self, gpus: Sequence[int]) -> None:
        self._gpus = tuple(gpus)
        self._start_s = self._end_s = 0.0
        self._first_token_s: float | None = None

    @abstractmethod
    def joules(self, start_s: float, end_s: float) -> tuple[float, float] | None:
        """Return (J, gap in s) of all GPUs between two moments of the measurement; None where it is not known."""

    def first_token(self) -> None:
        """Note that the first token is here: what follows is the decode's energy. Later calls change nothing."""
        self._first_token_s = self._first_token_s or time.monotonic()

    def energy(self) -> dict[str, float | None]:
        """Return the columns of a row about energy.

        energy_j: between enter and exit. energy_decode_j: from the first token on. power_mean_w: energy_j over that
        time. power_gap_s: how much of that time was not measured: all of it where energy_j is None, and 0 for a
        counter, which has no gaps.
        """
        window_s = self._end_s - self._start_s
        total = self.joules(self._start_s, self._end_s) if window_s > 0 else None
        if total is None:
            return dict.fromkeys(COLUMNS) | {"power_gap_s": window_s if window_s > 0 else None}
        decode = self.joules(self._first_token_s, self._end_s) if self._first_token_s is not None else None
        return dict(zip(COLUMNS, (total[0], decode[0] if decode else None, total[0] / window_s, total[1]), strict=True))


class EnergyMeters:
    """Makes the meters of one server's GPUs, by the best source that this host has for them."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = tuple(numbers)
        self._reader = PowerReader(gpus.installed_tools() if numbers else [])

    def meter(self) -> EnergyMeter | None:
        """Return a meter for one request; None where there are no GPUs to measure, or nothing that measures them."""
        if not self._numbers:
            return None
        with nvidia.nvml():
            if nvidia.energy_j(self._numbers) is not None:
                return CountedEnergy(self._numbers)
        return SampledEnergy(self._numbers, self._reader) if self._reader else None


class CountedEnergy(EnergyMeter):
    """The difference of the counters of NVIDIA's GPUs."""

    def __init__(self, gpus: Sequence[int]) -> None:
        super().__init__(gpus)
        self._open = contextlib.ExitStack()
        self._readings: dict[float, list[float] | None] = {}

    def __enter__(self) -> Self:
        self._open.enter_context(nvidia.nvml())
        self._start_s = time.monotonic()
        self._read(self._start_s)
        return self

    def __exit__(self, *_: object) -> None:
        self._end_s = time.monotonic()
        self._read(self._end_s)
        self._open.close()

    def first_token(self) -> None:
        """Note the first token, and read the counters beside the request, which must not wait for them."""
        if self._first_token_s is None:
            super().first_token()
            reader = threading.Thread(target=self._read, args=(self._first_token_s,), name="energy", daemon=True)
            reader.start()
            self._open.callback(reader.join)

    def _read(self, moment_s: float) -> None:
        self._readings[moment_s] = nvidia.energy_j(self._gpus)

    def joules(self, start_s: float, end_s: float) -> tuple[float, float] | None:
        """A GPU always uses some: a counter that did not move was not renewed in so short a time, and says nothing."""
        before, after = self._readings.get(start_s), self._readings.get(end_s)
        used = [last - first for first, last in zip(before or (), after or (), strict=False)]
        return (sum(used), 0.0) if used and min(used) > 0 else None


class SampledEnergy(EnergyMeter):
    """The area under samples of the power, which a thread takes with the vendor's tools."""

    def __init__(self, gpus: Sequence[int], reader: PowerReader) -> None:
        super().__init__(gpus)
        self._reader = reader
        self.samples: dict[int, list[tuple[float, float]]] = {gpu: [] for gpu in gpus}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="power", daemon=True)

    def __enter__(self) -> Self:
        self._start_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_s = time.monotonic()
        self._stop.set()
        self._thread.join(POWER_TIMEOUT_S + 1)

    def _run(self) -> None:
        while not self._stop.is_set():
            watts_by_gpu = self._reader.watts(self.samples)
            now_s = time.monotonic()
            for gpu, watts in watts_by_gpu.items():
                self.samples[gpu].append((now_s, watts))
            self._stop.wait(INTERVAL_S)

    def joules(self, start_s: float, end_s: float) -> tuple[float, float] | None:
        """Return the sum over all GPUs and the longest gap of one; None where one has no sample in the window."""
        curves = [integrate(samples, start_s, end_s) for samples in self.samples.values()]
        known = [curve for curve in curves if curve]
        return (sum(j for j, _ in known), max(gap for _, gap in known)) if len(known) == len(curves) else None


def integrate(samples: Iterable[tuple[float, float]], start_s: float, end_s: float) -> tuple[float, float] | None:
    """Return (J, gap in s) of one GPU's (time s, W) samples over [start_s, end_s], by trapezoids; None without samples.

    Before the first and after the last sample its value holds. Every stretch without a sample that is longer than
    GAP_INTERVALS intervals counts as a gap: its energy is in the sum, but only interpolated.
    """
    inside = [(time_s, watts) for time_s, watts in samples if start_s <= time_s <= end_s]
    if not inside:
        return None
    points = [(start_s, inside[0][1]), *inside, (end_s, inside[-1][1])]
    joules, gap = 0.0, 0.0
    for (t0, w0), (t1, w1) in pairwise(points):
        joules += (t1 - t0) * (w0 + w1) / 2
        gap += t1 - t0 if t1 - t0 > GAP_INTERVALS * INTERVAL_S else 0.0
    return joules, gap
