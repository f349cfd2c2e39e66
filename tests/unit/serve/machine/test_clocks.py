"""Clocks of a stand-in for NVML during a window."""

import threading
from collections.abc import Callable

import fakenvml
import pytest
from longctx.serve.machine import clocks
from patching import replace_in

Show = Callable[..., None]
NOTHING = {"sm_clock_mhz": None, "sm_clock_min_mhz": None, "throttle_reasons": None}


class Turn(threading.Event):
    """A stop event that lets the sampler read once more only when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.reading, self.read = threading.Semaphore(0), threading.Semaphore(0)

    def wait(self, timeout: float | None = None) -> bool:
        self.read.release()
        self.reading.acquire(timeout=20)
        return self.is_set()


@pytest.fixture
def turn(monkeypatch: pytest.MonkeyPatch) -> Turn:
    made = Turn()
    replace_in(monkeypatch, clocks, "threading", Event=lambda: made)
    return made


def test_the_mean_the_lowest_and_every_reason_of_the_servers_gpus(show_gpus: Show, turn: Turn) -> None:
    show_gpus(fakenvml.h200(clocks=[100, 1]), fakenvml.h200(clocks=[1980, 1], reasons=0))
    with clocks.ClockSampler((1,)) as sampler:
        assert turn.read.acquire(timeout=20)
        show_gpus(fakenvml.h200(), fakenvml.h200(clocks=[1500, 1], reasons=0x04 | 0x20))
        turn.reading.release()
        assert turn.read.acquire(timeout=20)
        turn.set()
        turn.reading.release()
    assert sampler.columns() == {
        "sm_clock_mhz": 1740.0,
        "sm_clock_min_mhz": 1500.0,
        "throttle_reasons": "sw_power_cap, sw_thermal_slowdown",
    }


def test_what_a_gpu_does_not_say_is_unknown(show_gpus: Show, turn: Turn) -> None:
    show_gpus(fakenvml.h200(clocks=None, reasons=None))
    with clocks.ClockSampler((0,)) as sampler:
        assert turn.read.acquire(timeout=20)
        turn.set()
        turn.reading.release()
    assert sampler.columns() == NOTHING


def test_no_gpus_and_no_nvml_give_nothing(show_gpus: Show) -> None:
    for gpus in ((), (0,)):
        with clocks.ClockSampler(gpus) as sampler:
            pass
        assert sampler.columns() == NOTHING
