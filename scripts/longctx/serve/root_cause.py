"""Which line of a server's log says why it died, and which lines are kept with the row of the request that it cost."""

import re
from collections.abc import Iterable, Sequence

PREFIX = re.compile(r"^(?:\([^)]*pid=\d+\) ?)*(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d [\d:]+ \[[^\]]*\] ?)?")
RANK = re.compile(r"^(?:\[rank\d+\]: ?)+")  # of torch, before each line of a traceback
EXCEPTION = re.compile(
    r"^(?:[\w.]*(?:Error|Exception|Interrupt|Exit|Refused)\b:? ?.*|.*\berror: .*|Killed.*|.*Segfault.*)$"
)
# What the driver, the C++ and the Python runtime print when a process crashes.
CRASH = re.compile(
    r"^(?:Memory access fault by GPU|HW Exception by GPU|what\(\): |terminate called|Fatal Python error|Aborted\b"
    r"|Segmentation fault|Bus error|Illegal instruction|double free|corrupted |free\(\): |malloc\(\): )"
    r"|Segmentation fault|core dumped|ProcessGroupNCCL\.cpp.*exception|NCCL WARN"
    r"|\*\*\* SIG[A-Z]+ |: Assertion .* failed|HSA_STATUS_ERROR|CUDA_ERROR_[A-Z]|cudaError[A-Z]|hipError[A-Z]"
    r"|\b(?:CUDA|HIP|XPU) out of memory|NVRM: Xid|Watchdog caught collective operation timeout"
)
# The GPU, its memory or the network between GPUs: other errors after one of these are its consequences.
DEVICE = re.compile(
    r"illegal memory access|memory access fault|HW Exception by GPU|device-side assert|out of memory|OutOfMemory"
    r"|(?:CUDA|HIP|NCCL|RCCL|cuBLAS|CUBLAS|cuDNN)\b.{0,20}\b[Ee]rror|hipError|cudaError|ECC error|NCCL WARN"
    r"|HSA_STATUS_ERROR|CUDA_ERROR_|CUBLAS_STATUS_|NVRM: Xid|Watchdog caught collective",
    re.IGNORECASE,
)
# vLLM's wrappers around a cause that stands higher in the log, and the noise of an end: orderly, or of broken pipes.
GENERIC = re.compile(
    r"See root cause above|See stack trace|EngineDeadError|EngineGenerateError|initialization failed due to"
    r"|CancelledError|WorkerProc initialization failed|^\w*SystemExit|KeyboardInterrupt|output_handler failed"
    r"|Traceback \(most recent|Error in \w+(?: \w+)* stream generator"
    r"|^[\w.]*(?:ConnectionResetError|ConnectionAbortedError|BrokenPipeError|EOFError|ZMQError|DistNetworkError)\b"
)
# vLLM's API server prints this when its engine has ended; without an error of the engine, it was killed or crashed
ENGINE_GONE = re.compile(r"engine core (?:proc\S* \S+ )?(?:exited|died) unexpectedly", re.IGNORECASE)
LONGEST = 500  # characters of a log line in a message
# Lines kept with a cause: a traceback stands above its error, advice below it.
ABOVE, BELOW = 7, 2


def clean(line: str) -> str:
    """Return a log line without vLLM's process, level, time and file."""
    return PREFIX.sub("", line.rstrip()).strip()


def root_cause_line(lines: Iterable[str]) -> str:
    """Return the log line that best says why a server died, or ''.

    It is the last error that is not a mere wrapper; of a GPU, if there is one. Wrappers alone, around an engine that is
    gone, mean that it was killed, or crashed in native code.
    """
    cleaned = [clean(line) for line in lines]
    at = find_cause(cleaned)
    if at is None and (gone := next((line for line in cleaned if ENGINE_GONE.search(line)), None)):
        return f"its engine process was killed or crashed, leaving no error of its own ({gone})"
    if at is None:
        errors = [line for line in cleaned if _is_error(line)] or [line for line in cleaned if line]
        return errors[-1][:LONGEST] if errors else ""
    # pydantic puts the message on the line below 'N validation errors for …'
    following = cleaned[at + 1] if "validation error" in cleaned[at] and at + 1 < len(cleaned) else ""
    text = re.sub(r" \[type=\w+, input_value=.*", "", f"{cleaned[at]} {following}").strip()
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def find_cause(cleaned: Sequence[str]) -> int | None:
    """Return the index of the line with the cause, among lines without prefixes; None where there is none."""
    causes = [at for at, line in enumerate(cleaned) if _is_error(line) and not GENERIC.search(RANK.sub("", line))]
    of_device = [at for at in causes if DEVICE.search(cleaned[at])]
    return next(reversed(of_device or causes), None)


def _is_error(line: str) -> bool:
    line = RANK.sub("", line)
    return bool(EXCEPTION.match(line) or CRASH.search(line))


def lines_to_keep(cleaned: Sequence[str], most: int) -> list[str]:
    """Return at most `most` lines of a request: the last ones, and before them the cause of a death with its traceback.

    A server that ends prints its cause first, and then more lines than a row keeps.
    """
    at = find_cause(cleaned)
    if at is None or len(cleaned) - at + ABOVE <= most:
        return list(cleaned[-most:])
    around = cleaned[max(0, at - ABOVE) : at + BELOW + 1]
    return [*around, *cleaned[at + BELOW + 1 :][-(most - len(around)) :]]
