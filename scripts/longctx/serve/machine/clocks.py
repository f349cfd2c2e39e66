"""The SM clocks of NVIDIA GPUs during a request, and why they were held back."""

import contextlib
import threading
from collections.abc import Sequence
from typing import Any, Self

from longctx.serve.machine import nvidia

INTERVAL_S = 0.25
STOP_TIMEOUT_S = 10.0


class ClockSampler(contextlib.AbstractContextManager["ClockSampler"]):
    """Reads the clocks of these GPUs between enter and exit, in a thread; `columns()` afterwards."""

    def __init__(self, gpus: Sequence[int]) -> None:
        self._gpus = tuple(gpus)
        self._count, self._sum_mhz, self._min_mhz = 0, 0.0, float("inf")
        self._reasons: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clocks", daemon=True)

    def __enter__(self) -> Self:
        if self._gpus:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._gpus:
            self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        with nvidia.nvml() as there:
            while there:
                for gpu in self._gpus:
                    self._add(nvidia.clock_state(gpu))
                if self._stop.wait(INTERVAL_S):
                    return

    def _add(self, state: dict[str, Any]) -> None:
        self._reasons |= set(state["throttle_reasons"] or ())
        if (mhz := state["sm_mhz"]) is not None:
            self._count, self._sum_mhz, self._min_mhz = self._count + 1, self._sum_mhz + mhz, min(self._min_mhz, mhz)

    def columns(self) -> dict[str, Any]:
        """Return the columns of a row about clocks: mean and lowest in MHz over all readings, None without any.

        throttle_reasons: names of nvidia.THROTTLE_REASONS seen at any reading, with commas between; None where none.
        """
        return {
            "sm_clock_mhz": self._sum_mhz / self._count if self._count else None,
            "sm_clock_min_mhz": float(self._min_mhz) if self._count else None,
            "throttle_reasons": ", ".join(sorted(self._reasons)) or None,
        }
