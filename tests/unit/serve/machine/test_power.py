"""The energy of a window: counters of a stand-in for NVML, samples of a stand-in for amd-smi, a known curve."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import fakenvml
import pytest
from longctx.serve.machine import nvidia, power, vendor_tools
from longctx.serve.machine.vendor_tools import PowerReader
from patching import replace_in

Show = Callable[..., None]
Install = Callable[..., None]
AMD_SMI = 'cat <<END\n[{"gpu": 0, "power": {"socket_power": {"value": 140}}}, {"gpu": 1, "power": %s}]\nEND\n'
ROCM_SMI = """cat <<END
{"card0": {"Average Graphics Package Power (W)": "90.0"}, "card1": {"Average Graphics Package Power (W)": "95.0"}}
END
"""
SAYS, SAYS_NOT = '{"socket_power": {"value": 1000.5}}', '"N/A"'


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        for module in (power, fakenvml):
            replace_in(monkeypatch, module, "time", monotonic=lambda: self.now_s)


@pytest.fixture
def amd_smi(show_gpus: Show, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """A function that puts an amd-smi, or another tool, with this script on PATH, of a machine without NVML."""

    def install(script: str, name: str = "amd-smi") -> None:
        (tmp_path / name).write_text("#!/bin/sh\n" + script)
        (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return install


def energy_meter(gpus: tuple[int, ...]) -> power.EnergyMeter | None:
    return power.EnergyMeters(gpus).meter()


def wait_for(condition: Callable[[], object], limit_s: float = 20.0) -> None:
    end_s = time.monotonic() + limit_s
    while not condition() and time.monotonic() < end_s:
        time.sleep(0.01)


def test_energy_of_a_ramp_is_its_triangle() -> None:
    samples = [(t / 4, 100.0 * t) for t in range(41)]
    assert power.integrate(samples, 0.0, 10.0) == (pytest.approx(20_000.0), 0.0)


def test_samples_outside_the_window_do_not_count() -> None:
    samples = [(t / 4, 500.0) for t in range(-40, 80)]
    joules, gap = power.integrate(samples, 2.0, 3.1) or (0, 0)
    assert joules == pytest.approx(550.0)
    assert gap == 0


def test_gaps_are_interpolated_and_stated() -> None:
    head_gap = power.integrate([(5.0, 100.0), (5.25, 100.0)], 0.0, 5.5)
    assert head_gap == (pytest.approx(550.0), pytest.approx(5.0))
    middle = [(t / 4, 100.0) for t in range(5)] + [(7 + t / 4, 300.0) for t in range(5)]
    assert power.integrate(middle, 0.0, 8.0) == (pytest.approx(100 + 6 * 200 + 300), pytest.approx(6.0))
    assert power.integrate([], 0.0, 8.0) is None


def test_counters_give_the_sum_of_the_servers_gpus(show_gpus: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs of 300 W and 500 W for 10 s, the last 4 s of which follow the first token."""
    show_gpus(fakenvml.h200(power_w=9000.0), fakenvml.h200(power_w=300.0), fakenvml.h200(power_w=500.0))
    clock = Clock(monkeypatch)
    meter = energy_meter((1, 2))
    assert meter is not None
    with meter:
        for seconds in (6, 3):
            clock.now_s += seconds
            meter.first_token()
            wait_for_thread("energy")
        clock.now_s += 1
    assert meter.energy() == {
        "energy_j": pytest.approx(8000.0),
        "energy_decode_j": pytest.approx(3200.0),
        "power_mean_w": pytest.approx(800.0),
        "power_gap_s": 0.0,
    }


def wait_for_thread(name: str) -> None:
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join()


def test_without_a_first_token_there_is_no_decode(show_gpus: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    show_gpus(fakenvml.h200())
    clock = Clock(monkeypatch)
    meter = energy_meter((0,))
    assert meter is not None
    with meter:
        clock.now_s += 10
    energy = meter.energy()
    assert (energy["energy_j"], energy["energy_decode_j"]) == (pytest.approx(1000.0), None)


def test_a_counter_that_did_not_move_says_nothing(show_gpus: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    show_gpus(fakenvml.h200(), fakenvml.h200(power_w=0.0))
    clock = Clock(monkeypatch)
    meter = energy_meter((0, 1))
    assert meter is not None
    with meter:
        clock.now_s += 10
    assert meter.energy() == dict.fromkeys(power.COLUMNS) | {"power_gap_s": pytest.approx(10.0)}


def test_a_counter_that_fails_in_the_window_leaves_the_energy_unknown(show_gpus: Show) -> None:
    show_gpus(fakenvml.h200())
    meter = energy_meter((0,))
    assert meter is not None
    with meter:
        show_gpus(fakenvml.h200(power_w=None))
    assert meter.energy()["energy_j"] is None
    assert meter.energy()["power_gap_s"] is not None


def test_a_gpu_without_the_counter_has_no_energy(show_gpus: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendor_tools.shutil, "which", lambda name: None)
    show_gpus(fakenvml.h200(), fakenvml.h200(power_w=None))
    assert energy_meter((0, 1)) is None
    assert energy_meter((0,)) is not None
    assert energy_meter(()) is None


def test_no_nvml_and_no_tool_is_no_energy(show_gpus: Show, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert energy_meter((0,)) is None


def test_a_polled_tool_gives_the_sum_of_the_servers_gpus(amd_smi: Install) -> None:
    amd_smi(AMD_SMI % SAYS)
    for gpus, watts in (((0, 1), 1140.5), ((1,), 1000.5)):
        meter = energy_meter(gpus)
        assert isinstance(meter, power.SampledEnergy)
        with meter:
            wait_for(lambda samples=meter.samples: len(samples.get(1, [])) > 1)
        energy = meter.energy()
        assert energy["power_mean_w"] == pytest.approx(watts)
        assert energy["energy_j"] is not None
        assert energy["energy_j"] > 0


def test_what_follows_the_first_token_is_the_decode_s_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs at 100 W until the first token at 6 s, and at 300 W until the end at 10 s."""
    meter = power.SampledEnergy((0, 1), PowerReader([]))
    clock = Clock(monkeypatch)
    meter._start_s, meter._end_s = 1000.0, 1010.0
    assert meter.energy()["energy_decode_j"] is None
    for gpu in (0, 1):
        meter.samples[gpu] = [(1000 + t / 4, 100.0 if t < 24 else 300.0) for t in range(40)]
    assert meter.energy()["energy_decode_j"] is None, "no first token"
    for now_s in (1006.0, 1009.0):
        clock.now_s = now_s
        meter.first_token()
    assert meter.energy()["energy_decode_j"] == pytest.approx(2 * 4 * 300.0)
    assert meter.energy()["energy_j"] == pytest.approx(2 * (6 * 100 + 4 * 300), rel=0.02)
    meter.samples[1] = meter.samples[1][:20]
    assert meter.energy()["energy_decode_j"] is None, "one GPU has no sample after it"


@pytest.mark.parametrize("script", ["echo failed; exit 9\n", AMD_SMI % SAYS_NOT])
def test_a_gpu_that_does_not_say_leaves_the_energy_unknown(amd_smi: Install, script: str) -> None:
    amd_smi(script)
    meter = energy_meter((0, 1))
    assert meter is not None
    with meter:
        time.sleep(0.1)
    energy = meter.energy()
    assert (energy["energy_j"], energy["power_mean_w"]) == (None, None)
    assert energy["power_gap_s"] is not None


@pytest.mark.parametrize(
    ("script", "watts"),
    [
        ("echo 'no such device' >&2; exit 1\n", [90.0, 95.0]),
        ("printf '\\377\\376 [ {'\n", [90.0, 95.0]),
        ("echo '{\"gpu_data\": null}'\n", [90.0, 95.0]),
        (AMD_SMI % SAYS_NOT, [140.0, 95.0]),
        (AMD_SMI % '{"socket_power": {"value": 0, "unit": "W"}}', [140.0, 95.0]),
        (AMD_SMI % SAYS, [140.0, 1000.5]),
    ],
)
def test_what_one_tool_does_not_say_comes_from_the_next(amd_smi: Install, script: str, watts: list[float]) -> None:
    amd_smi(script)
    amd_smi(ROCM_SMI, name="rocm-smi")
    meter = energy_meter((0, 1))
    assert isinstance(meter, power.SampledEnergy)
    with meter:
        wait_for(lambda: all(meter.samples.values()))
    assert [meter.samples[gpu][0][1] for gpu in (0, 1)] == watts
    assert meter.energy()["power_mean_w"] == pytest.approx(sum(watts))


def test_a_tool_that_answered_is_asked_first_the_next_time(amd_smi: Install, tmp_path: Path) -> None:
    """A tool that hangs until its time limit must not cost it again with every sample."""
    amd_smi(f"echo asked >> {tmp_path}/asked; exit 1\n")
    amd_smi(ROCM_SMI, name="rocm-smi")
    meters = power.EnergyMeters((0, 1))
    for _ in range(2):
        meter = meters.meter()
        assert isinstance(meter, power.SampledEnergy)
        with meter:
            wait_for(lambda samples=meter.samples: len(samples[1]) > 1)
    assert (tmp_path / "asked").read_text() == "asked\n"


@pytest.mark.parametrize("has_nvml", [True, False])
def test_nvidia_smi_where_nvml_counts_no_energy(show_gpus: Show, amd_smi: Install, has_nvml: bool) -> None:
    """NVML without the counter (or not found at all); an amd-smi beside it speaks of other GPUs."""
    if has_nvml:
        show_gpus(fakenvml.h200(power_w=None), fakenvml.h200(power_w=None))
    amd_smi(AMD_SMI % SAYS)
    gpus = "0, NVIDIA T4, 12, 15360, 580.95.05\n1, NVIDIA T4, [N/A], 15360, 580.95.05"
    answers = f"case $1 in *power*) echo '0, 26.50\n1, 30.00';; *) echo '{gpus}';; esac\n"
    amd_smi(answers, name="nvidia-smi")
    meter = energy_meter((0, 1))
    assert isinstance(meter, power.SampledEnergy)
    with meter:
        wait_for(lambda: all(meter.samples.values()))
    assert meter.energy()["power_mean_w"] == pytest.approx(56.5)


def test_nvidia_smi_that_fails_leaves_the_energy_unknown(show_gpus: Show, amd_smi: Install) -> None:
    show_gpus(fakenvml.h200(power_w=None))
    amd_smi("echo 'NVIDIA-SMI has failed, because 0, 1'; exit 9\n", name="nvidia-smi")
    amd_smi(AMD_SMI % SAYS)
    meter = energy_meter((0,))
    assert meter is not None
    with meter:
        time.sleep(0.1)
    assert meter.energy()["energy_j"] is None
    assert nvidia.smi_power("0, [N/A]\n1, 71.25") == {0: None, 1: 71.25}
