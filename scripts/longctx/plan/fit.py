"""Whether a prompt fits: memory per rank, tokens that are needed, the longest context."""

from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from longctx.model.geometry import Geometry
from longctx.plan.hardware import Hardware, Parallelism
from longctx.plan.memory import Memory, capacity_tokens, check_parallelism, rank_memory
from longctx.units import GIB

AITER_64BIT = "0.1.19.post2"  # first release whose decode kernel addresses the KV cache with 64 bits
AITER_32BIT_TOKENS = 2**24


@dataclass(frozen=True, slots=True)
class Settings:
    """What of a recipe and campaign the plan needs.

    headroom_tokens: max_model_len - prompt length; new tokens count in it. batched_tokens: one prefill chunk.
    cpu_kv_gib: VLLM_CPU_KVCACHE_SPACE of a CPU server (hardware None). scope: how long a server lives ('point',
    'pass' or 'campaign'). start_s: one server's start with warm-up, None = GPU_START_S or CPU_START_S.
    """

    kv_dtype: str = "auto"
    gpu_memory_utilization: float | None = None
    batched_tokens: int | None = None
    max_new_tokens: int = 128
    headroom_tokens: int = 16384
    cpu_kv_gib: float | None = None
    aiter_version: str | None = None
    passes: int = 1
    scope: str = "point"
    start_s: float | None = None


def split_memory(
    geometry: Geometry, hardware: Hardware | None, parallelism: Parallelism, settings: Settings
) -> Memory | None:
    """Return a rank's budget; None where neither hardware nor a CPU cache size is known."""
    if hardware is not None:
        return rank_memory(
            geometry,
            hardware,
            parallelism,
            gpu_memory_utilization=settings.gpu_memory_utilization,
            batched_tokens=settings.batched_tokens,
        )
    check_parallelism(geometry, parallelism)
    return None if settings.cpu_kv_gib is None else Memory(int(settings.cpu_kv_gib * GIB))


def sequence_capacity(
    geometry: Geometry, hardware: Hardware | None, parallelism: Parallelism, settings: Settings
) -> int | None:
    """Return the tokens of the longest sequence (prompt, new tokens and headroom); None: not known or not limited."""
    memory = split_memory(geometry, hardware, parallelism, settings)
    if memory is None:
        return None
    return capacity_tokens(
        geometry,
        parallelism,
        memory.kv,
        settings.kv_dtype,
        batched_tokens=settings.batched_tokens,
        cpu=hardware is None,
    )


def needed_tokens(length: int, settings: Settings) -> int:
    """Return what the cache must hold for a prompt of `length`: 1024 in and 16 out need at least 1040."""
    return length + max(settings.headroom_tokens, settings.max_new_tokens)


def max_context(
    geometry: Geometry, hardware: Hardware | None, parallelism: Parallelism, settings: Settings
) -> int | None:
    """Return the longest prompt that fits with its headroom, 0 where none does, None where nothing limits it."""
    capacity = sequence_capacity(geometry, hardware, parallelism, settings)
    return None if capacity is None else max(0, capacity - needed_tokens(0, settings))


def aiter_problem(hardware: Hardware | None, length: int, settings: Settings) -> str | None:
    """Return why this length may not run on ROCm with the recipe's AITER, or None."""
    if hardware is None or hardware.vendor != "amd" or length + settings.max_new_tokens <= AITER_32BIT_TOKENS:
        return None
    need = f"beyond 2^24 tokens ROCm needs AITER v{AITER_64BIT} or newer (64-bit KV addresses)"
    declared = settings.aiter_version
    if declared is None:
        return f"{need}, and the recipe names no version: set serve.aiter_version to the installed release"
    try:
        good = Version(declared.removeprefix(">=").removeprefix("==")) >= Version(AITER_64BIT)
    except InvalidVersion:
        return f"{need}, and serve.aiter_version: {declared!r} is not a version"
    return None if good else f"{need}, and the recipe has {declared}: install the newer release"
