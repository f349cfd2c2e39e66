"""Power sampling: what the vendors' tools print, a fake nvidia-smi on PATH, and the energy under a known curve."""

import os
import stat
import time
from pathlib import Path

import pytest
from longctx.serve.machine import power

AMD_LIST = '[{"gpu": 0, "power": {"socket_power": {"value": 140, "unit": "W"}, "gfx_voltage": "N/A"}},' + (
    ' {"gpu": 1, "power": {"socket_power": {"value": 1000.5, "unit": "W"}}}]'
)
AMD_DICT = 'WARNING: user is not in the render group\n{"gpu_data": [{"gpu": 3, "power": {"socket_power": "N/A"}}]}'
AMD_OLD = '[{"gpu": 0, "power": {"current_socket_power": {"value": 90, "unit": "W"}}}]'
ROCM = (
    '{"card0": {"Average Graphics Package Power (W)": "35.0"}, "card1": {"Current Socket Graphics Package Power (W)":'
)
ROCM += ' "220.5", "Max Graphics Package Power (W)": "750"}, "system": {"Driver version": "6.2"}}'


@pytest.mark.parametrize(
    ("line", "watts"),
    [("0, 123.45\n", {0: 123.45}), ("7, 99 W", {7: 99.0}), ("1, [N/A]", {1: None}), ("index, power.draw [W]", {}),
     ("", {}), ("Failed to initialize NVML: Driver/library version mismatch", {})],
)  # fmt: skip
def test_nvidia_lines(line: str, watts: dict[int, float | None]) -> None:
    assert power.parse_nvidia(line) == watts


@pytest.mark.parametrize(
    ("text", "watts"),
    [(AMD_LIST, {0: 140.0, 1: 1000.5}), (AMD_DICT, {3: None}), (AMD_OLD, {0: 90.0}), ("", {}), ("not json", {}),
     ('[{"gpu": 0}]', {0: None}), ("[1, 2]", {})],
)  # fmt: skip
def test_amd_smi(text: str, watts: dict[int, float | None]) -> None:
    assert power.parse_amd(text) == watts


def test_rocm_smi() -> None:
    assert power.parse_rocm(ROCM) == {0: 35.0, 1: 220.5}
    assert power.parse_rocm("[]") == {}


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


def fake_tool(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / name
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def wait_for(condition: object, limit_s: float = 20.0) -> None:
    end = time.monotonic() + limit_s
    while not condition() and time.monotonic() < end:  # type: ignore[operator]
        time.sleep(0.01)


STREAM = 'echo $$ > "$0.pid"; echo "$@" > "$0.args"; while :; do echo "0, 300.0"; echo "1, 500.0"; sleep 0.05; done\n'


def test_streaming_tool_gives_the_sum_of_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tool(tmp_path, "nvidia-smi", STREAM, monkeypatch)
    with power.PowerSampler(gpus=None) as sampler:
        wait_for(lambda: len(sampler.samples.get(1, [])) > 3)
    energy = sampler.energy()
    assert energy["power_mean_w"] == pytest.approx(800.0)
    assert energy["energy_j"] is not None
    assert energy["energy_j"] > 0
    assert "--query-gpu=index,power.draw" in (tmp_path / "nvidia-smi.args").read_text()


def test_what_follows_the_first_token_is_the_decode_s_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs at 100 W until the first token at 6 s, and at 300 W until the end at 10 s."""
    sampler = power.PowerSampler(gpus=None, _tool=power.TOOLS[0], _start_s=0.0, _end_s=10.0)
    assert sampler.energy()["energy_decode_j"] is None
    for gpu in (0, 1):
        sampler.samples[gpu] = [(t / 4, 100.0 if t < 24 else 300.0) for t in range(40)]
    assert sampler.energy()["energy_decode_j"] is None, "no first token"
    for now_s in (6.0, 9.0):
        monkeypatch.setattr(power.time, "monotonic", lambda now_s=now_s: now_s)
        sampler.first_token()
    assert sampler.energy()["energy_decode_j"] == pytest.approx(2 * 4 * 300.0)
    assert sampler.energy()["energy_j"] == pytest.approx(2 * (6 * 100 + 4 * 300), rel=0.02)
    sampler.samples[1] = sampler.samples[1][:20]
    assert sampler.energy()["energy_decode_j"] is None, "one GPU has no sample after it"


def test_the_tool_ends_with_the_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tool(tmp_path, "nvidia-smi", STREAM, monkeypatch)
    with power.PowerSampler(gpus=None) as sampler:
        wait_for(lambda: sampler.samples)
    pid = int((tmp_path / "nvidia-smi.pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_only_the_servers_gpus_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tool(tmp_path, "nvidia-smi", STREAM, monkeypatch)
    with power.PowerSampler(gpus=(1,)) as sampler:
        wait_for(lambda: sampler.samples)
    assert sampler.energy()["power_mean_w"] == pytest.approx(500.0)
    assert "-i 1" in (tmp_path / "nvidia-smi.args").read_text()


@pytest.mark.parametrize(
    "script",
    ["echo 'NVIDIA-SMI has failed'; exit 9\n", "echo '0, [N/A]'; sleep 0.01\n", "echo '0, 200'; echo '1, [N/A]'\n"],
)
def test_a_gpu_that_does_not_say_leaves_the_energy_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    fake_tool(tmp_path, "nvidia-smi", script, monkeypatch)
    with power.PowerSampler(gpus=None) as sampler:
        time.sleep(0.1)
    energy = sampler.energy()
    assert energy["energy_j"] is None
    assert energy["power_mean_w"] is None
    assert energy["power_gap_s"] is not None


def test_polled_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tool(tmp_path, "amd-smi", f"cat <<'END'\n{AMD_LIST}\nEND\n", monkeypatch)
    with power.PowerSampler(gpus=None) as sampler:
        wait_for(lambda: len(sampler.samples.get(0, [])) > 1)
    assert sampler.energy()["power_mean_w"] == pytest.approx(1140.5)


def test_no_tool_is_no_energy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with power.PowerSampler(gpus=None) as sampler:
        pass
    assert set(sampler.energy().values()) == {None}
