"""The cause of a server's death in its log, and the lines of it that a row keeps."""

from pathlib import Path

import pytest
from longctx.serve.root_cause import LONGEST, clean, lines_to_keep, root_cause_line

LOGS = Path(__file__).parents[2] / "data" / "server_logs"
MOST = 20


def recorded(name: str) -> list[str]:
    return (LOGS / name).read_text().splitlines()


def noise() -> list[str]:
    """What vLLM's API server logged after its engine was gone, on one H200."""
    return [clean(line) for line in recorded("h200-0.25.1-engine-killed.log")]


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("kv-too-small", "ValueError: To serve at least one request"),
        ("unknown-backend", "ValueError: Unknown attention backend: 'NOSUCH'"),
        ("unknown-dtype", "api_server.py: error: argument --kv-cache-dtype: invalid choice: 'fp7'"),
        ("unknown-flag", "api_server.py: error: unrecognized arguments: --no-such-flag"),
        ("impossible-parallelism", "ValidationError: 1 validation error for ParallelConfig Value error, tp_size=1"),
        ("no-connector", "Value error, Unsupported connector type: NoSuchConnector"),
        ("no-model", "OSError: Repo id must be in the form"),
        ("port-in-use", "OSError: [Errno 98] Address already in use"),
    ],
)  # fmt: skip
def test_the_telling_line_of_a_failed_start(log: str, words: str) -> None:
    told = root_cause_line(recorded(f"cpu-0.32-{log}.log"))
    assert words in told
    assert "input_value" not in told
    assert len(told) <= LONGEST


def test_the_telling_line_is_the_cause_and_not_its_wrapper() -> None:
    prefix = "(EngineCore pid=1) ERROR 11-29 10:00:00 [core.py:1] "
    wrapper = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    cause = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert root_cause_line([f"{prefix}{cause}", "INFO: fine", wrapper]) == cause
    assert root_cause_line([wrapper]) == wrapper
    assert root_cause_line(["first", "last", ""]) == "last"
    assert root_cause_line([]) == ""


CAUSES = [
    "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.",
    "[rank3]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3356, unhandled cuda error",
    "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
    "Memory access fault by GPU node-2 (Agent handle: 0x1) on address 0x7f00. Reason: Page not present.",
    "HW Exception by GPU node-1 (Agent handle: 0x1) reason :GPU Hang",
    "what():  CUDA error: device-side assert triggered",
    "HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a hardware exception. code: 0x1016",
    ":0:rocdevice.cpp:3006: Callback: Queue 0x7f aborting with error : HSA_STATUS_ERROR_OUT_OF_RESOURCES",
    "cudaErrorLaunchFailure: unspecified launch failure",
    "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",
    "[rank1]:[E1130 ProcessGroupNCCL.cpp:688] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)",
    "*** SIGSEGV received at time=1 on cpu 3 ***",
    "python: malloc.c:2617: sysmalloc: Assertion `old_top == initial_top' failed.",
    "AssertionError: Expected block table of 4 rows",
    "ValueError: cannot reshape tensor",
    "!!!!!!! Segfault encountered !!!!!!!",
    "Fatal Python error: Segmentation fault",
    "Segmentation fault (core dumped)",
    "free(): invalid pointer",
    "OSError: [Errno 28] No space left on device",
]


@pytest.mark.parametrize("cause", CAUSES)
def test_a_row_keeps_the_cause_before_the_noise_of_the_end(cause: str) -> None:
    """A server that dies prints more lines after its cause than a row keeps."""
    trace = [f'  File "/opt/vllm/model_runner.py", line {line}, in execute' for line in range(40)]
    lines = [*trace, cause, "CUDA kernel errors might be asynchronously reported at some other API call.", *noise()]
    kept = lines_to_keep(lines, MOST)
    assert len(kept) == MOST
    assert cause in kept
    assert kept[kept.index(cause) - 1] == trace[-1], "and the traceback above it"
    assert kept[-1] == lines[-1], "and how it ended"
    assert root_cause_line(lines) == cause


def test_what_breaks_after_a_gpu_has_is_its_consequence() -> None:
    cause = CAUSES[0]
    after = [
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "RuntimeError: cancelled",
        "[rank1]: torch.distributed.DistNetworkError: The client socket has timed out",
        "BrokenPipeError: [Errno 32]",
    ]
    assert root_cause_line([cause, *after]) == cause
    assert root_cause_line(after[:1]) == after[0], "it is all that is known"


@pytest.mark.parametrize("line", ["To avoid running out of memory, lower max_num_seqs", "GPU KV cache size: 9 tokens"])
def test_words_about_memory_are_no_cause(line: str) -> None:
    lines = [line, *map(str, range(40))]
    assert lines_to_keep(lines, MOST) == lines[-MOST:]


def test_few_lines_are_kept_as_they_are() -> None:
    lines = ["first", CAUSES[0], *map(str, range(8))]
    assert lines_to_keep(lines, MOST) == lines
    assert lines_to_keep([], MOST) == []
