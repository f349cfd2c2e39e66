"""GPU power during a request, from the vendor's own tool, and the energy under that curve.

nvidia-smi streams samples by itself; amd-smi and rocm-smi are asked again and again. Without a tool or a sample the
energy is None, never 0.
"""

import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType
from typing import Any

INTERVAL_S = 0.25
# A stretch without a sample counts as a gap when it is longer than this many intervals.
GAP_INTERVALS = 4
POLL_TIMEOUT_S = 10.0

# None: the GPU is there and does not say.
Watts = Mapping[int, float | None]


def parse_nvidia(line: str) -> Watts:
    """Return {GPU: W} of one line '0, 123.45' of `--query-gpu=index,power.draw`; '[N/A]' is None."""
    found = re.fullmatch(r"\s*(\d+)\s*,\s*(\S.*?)\s*", line)
    return {int(found[1]): _watts(found[2])} if found else {}


def parse_rocm(text: str) -> Watts:
    """Return {GPU: W} of `rocm-smi --showpower --json`: {"card0": {"… Package Power (W)": "35.0"}}."""
    found: dict[int, float | None] = {}
    for card, values in json_in(text, dict).items():
        if (number := re.fullmatch(r"card(\d+)", card)) and isinstance(values, dict):
            powers = [_watts(value) for key, value in values.items() if "Power (W)" in key and "Max" not in key]
            found[int(number[1])] = next((watts for watts in powers if watts is not None), None)
    return found


def parse_amd(text: str) -> Watts:
    """Return {GPU: W} of `amd-smi metric --power --json`: a list (or {"gpu_data": list}) of
    {"gpu": 0, "power": {"socket_power": {"value": 140, "unit": "W"}}}."""
    data = json_in(text, (list, dict))
    found: dict[int, float | None] = {}
    for entry in data.get("gpu_data", []) if isinstance(data, dict) else data:
        if isinstance(entry, dict) and isinstance(entry.get("gpu"), int):
            power = entry["power"] if isinstance(entry.get("power"), dict) else {}
            values = (power.get(key) for key in ("socket_power", "current_socket_power", "average_socket_power"))
            powers = [_watts(value.get("value") if isinstance(value, dict) else value) for value in values]
            found[entry["gpu"]] = next((watts for watts in powers if watts is not None), None)
    return found


def json_in(text: str, kind: Any) -> Any:
    """Return the JSON document in `text` (tools print warnings around it) if it is of `kind`, else an empty dict."""
    for start in re.finditer(r"^\s*(?=[\[{])", text, re.MULTILINE):
        try:
            data, _ = json.JSONDecoder().raw_decode(text, start.end())
        except ValueError:
            continue
        return data if isinstance(data, kind) else {}
    return {}


def _watts(value: Any) -> float | None:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(?:\s*W)?", str(value).strip())
    return float(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class Tool:
    """A vendor's program: its arguments for GPUs `ids`, its parser, and whether it repeats by itself."""

    program: str
    arguments: Callable[[Sequence[int] | None], list[str]]
    parse: Callable[[str], Watts]
    streams: bool = False


def _nvidia_arguments(ids: Sequence[int] | None) -> list[str]:
    chosen = ["-i", ",".join(map(str, ids))] if ids else []
    query = ["--query-gpu=index,power.draw", "--format=csv,noheader,nounits"]
    return [*query, "-lms", str(int(INTERVAL_S * 1000)), *chosen]


TOOLS = (
    Tool("nvidia-smi", _nvidia_arguments, parse_nvidia, streams=True),
    Tool("amd-smi", lambda ids: ["metric", "--power", "--json"], parse_amd),
    Tool("rocm-smi", lambda ids: ["--showpower", "--json"], parse_rocm),
)


@dataclass(slots=True)
class PowerSampler:
    """Samples this host's GPUs between enter and exit; `energy()` afterwards. Never raises for a tool's sake.

    gpus: the GPU numbers to count, None for all. Power of others' work on them is in it too.
    """

    gpus: Sequence[int] | None
    samples: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    _tool: Tool | None = None
    _process: "subprocess.Popen[str] | None" = None
    _thread: threading.Thread | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _start_s: float = 0.0
    _end_s: float = 0.0
    _first_token_s: float | None = None

    def __enter__(self) -> "PowerSampler":
        self._tool = next((tool for tool in TOOLS if shutil.which(tool.program)), None)
        self._start_s = time.monotonic()
        if self._tool:
            self._thread = threading.Thread(target=self._run, args=(self._tool,), name="power", daemon=True)
            if self._tool.streams:
                # Should we be killed, the tool ends at its next write into the broken pipe.
                self._process = self._popen(self._tool)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_s = time.monotonic()
        self._stop.set()
        if self._process:
            self._process.terminate()
            try:
                self._process.wait(POLL_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._thread:
            self._thread.join(POLL_TIMEOUT_S + 1)

    def first_token(self) -> None:
        """Note that the first token is here: what follows is the decode's energy. Later calls change nothing."""
        self._first_token_s = self._first_token_s or time.monotonic()

    def energy(self) -> dict[str, float | None]:
        """Return energy_j, power_mean_w and power_gap_s of the window, and energy_decode_j of what followed the first
        token, summed over GPUs; all None without a tool."""
        nothing: dict[str, float | None] = dict.fromkeys(("energy_j", "energy_decode_j", "power_mean_w", "power_gap_s"))
        if self._tool is None or self._end_s <= self._start_s:
            return nothing
        window_s = self._end_s - self._start_s
        found = [integrate(samples, self._start_s, self._end_s) for samples in self.samples.values()]
        curves = [curve for curve in found if curve]
        if not curves or len(curves) < max(len(found), len(self.gpus or ())):
            return nothing | {"power_gap_s": window_s}
        joules = sum(curve[0] for curve in curves)
        return {
            "energy_j": joules,
            "energy_decode_j": self._decode_j(),
            "power_mean_w": joules / window_s,
            "power_gap_s": max(gap for _, gap in curves),
        }

    def _decode_j(self) -> float | None:
        """Return the energy after the first token, None without one or without a sample of every GPU there."""
        if self._first_token_s is None:
            return None
        found = [integrate(samples, self._first_token_s, self._end_s) for samples in self.samples.values()]
        return sum(curve[0] for curve in found if curve) if all(found) else None

    def _popen(self, tool: Tool) -> "subprocess.Popen[str] | None":
        try:
            return subprocess.Popen(
                [tool.program, *tool.arguments(self.gpus)],
                text=True,
                bufsize=1,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            return None

    def _run(self, tool: Tool) -> None:
        for text in self._lines() if tool.streams else self._polls(tool):
            now = time.monotonic()
            for gpu, watts in tool.parse(text).items():
                if self.gpus is None or gpu in self.gpus:
                    series = self.samples.setdefault(gpu, [])
                    series += [(now, watts)] if watts is not None else []

    def _lines(self) -> Iterator[str]:
        if self._process and self._process.stdout:
            with self._process.stdout as stream:
                yield from stream

    def _polls(self, tool: Tool) -> Iterator[str]:
        while not self._stop.is_set():
            try:
                done = subprocess.run(
                    [tool.program, *tool.arguments(self.gpus)],
                    capture_output=True,
                    text=True,
                    timeout=POLL_TIMEOUT_S,
                    stdin=subprocess.DEVNULL,
                )
                yield done.stdout
            except (OSError, subprocess.SubprocessError):
                pass
            self._stop.wait(INTERVAL_S)


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
