"""The GPU vendors' command-line tools: what they are asked, and what happens where one of them fails."""

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from longctx.serve.machine.gpu import Gpu

TIMEOUT_S = 60.0
POWER_TIMEOUT_S = 10.0

# Power in W by GPU index. None: the GPU is there and does not say.
Watts = Mapping[int, float | None]


@dataclass(frozen=True, slots=True)
class Tool:
    """A vendor's program: the arguments of its questions, and the readers of its answers."""

    program: str
    gpu_questions: tuple[str, ...]
    read_gpus: Callable[..., list[Gpu]]
    power_question: str
    read_power: Callable[[str], Watts]

    def gpus(self) -> list[Gpu]:
        """Return the GPUs that the tool shows."""
        return self.read_gpus(*(self._ask(question, TIMEOUT_S) for question in self.gpu_questions))

    def power_w(self) -> Watts:
        """Return what each GPU draws now."""
        return self.read_power(self._ask(self.power_question, POWER_TIMEOUT_S))

    def _ask(self, question: str, timeout_s: float) -> str:
        command, null = [self.program, *question.split()], subprocess.DEVNULL
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(command, stdin=null, capture_output=True, timeout=timeout_s)
            return done.stdout.decode(errors="replace")
        return ""


def installed(tools: Iterable[Tool]) -> list[Tool]:
    """Return the tools that are on PATH."""
    return [tool for tool in tools if shutil.which(tool.program)]


def gpus(tools: Iterable[Tool]) -> list[Gpu]:
    """Return the GPUs of the first installed tool that shows some; what it doesn't say of one comes from the next."""
    found: list[Gpu] = []
    for tool in installed(tools):
        if found and not any(None in asdict(gpu).values() for gpu in found):
            break
        shown = tool.gpus()
        others = {gpu.index: gpu for gpu in shown}
        found = [_completed(gpu, others.get(gpu.index)) for gpu in found] or shown
    return found


class PowerReader:
    """Asks a vendor's tools for power, first the one that answered for all GPUs the last time."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = list(tools)

    def __bool__(self) -> bool:
        return bool(self._tools)

    def watts(self, gpus: Iterable[int]) -> dict[int, float]:
        """Return what each of these GPUs draws now, in W, by the first tool that says it; a GPU may be absent."""
        known: dict[int, float] = {}
        for tool in self._tools:
            told = tool.power_w()
            # 0 W is what a tool says of a GPU that it cannot measure
            known = {gpu: watts for gpu in gpus if (watts := known.get(gpu) or told.get(gpu))}
            if known.keys() >= set(gpus):
                self._tools = sorted(self._tools, key=lambda other: other is not tool)
                break
        return known


def _completed(gpu: Gpu, other: Gpu | None) -> Gpu:
    """Return the GPU with what `other` says where it says nothing itself."""
    missing: dict[str, Any] = {name: getattr(other, name, None) for name, has in asdict(gpu).items() if has is None}
    return replace(gpu, **missing)
