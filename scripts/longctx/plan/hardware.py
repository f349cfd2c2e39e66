"""GPUs with their peak rates, and how a model is spread over several of them."""

import csv
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from longctx.errors import ConfigError
from longctx.resources import GPUS_CSV


@dataclass(frozen=True, slots=True)
class Hardware:
    """`count` GPUs of one kind. The other fields are per GPU; FLOP/s are dense, None without units of that width."""

    name: str
    count: int
    hbm_bytes: int
    hbm_bytes_per_s: float
    bf16_flops: float
    fp8_flops: float | None
    fp4_flops: float | None = None
    vendor: str = ""
    source: str = ""

    @property
    def peak_flops(self) -> dict[str, float]:
        """Return FLOP/s by the precision of the products; what the chip has no units for runs in BF16.

        4-bit weights with 4-bit activations too: without FP4 units vLLM expands such weights to BF16 (Marlin).
        """
        return {"bf16": self.bf16_flops, "fp8": self.fp8_flops or self.bf16_flops,
                "fp4": self.fp4_flops or self.bf16_flops}  # fmt: skip


AXES = ("tensor", "pipeline", "decode_context", "data", "prefill_context")


@dataclass(frozen=True, slots=True)
class Parallelism:
    """vLLM's --tensor-, --pipeline-, --decode-context-, --data- and --prefill-context-parallel-size."""

    tensor: int = 1
    pipeline: int = 1
    decode_context: int = 1
    data: int = 1
    prefill_context: int = 1

    def __post_init__(self) -> None:
        for name in AXES:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}_parallel_size: is {getattr(self, name)}; it must be 1 or more")
        tensor, prefill, decode = self.tensor, self.prefill_context, self.decode_context
        if prefill > 1 and decode not in (1, prefill, tensor * prefill):
            sizes = f"1, {prefill} or {tensor * prefill} beside {prefill} prefill context ranks and TP{tensor}"
            raise ConfigError(f"decode_context_parallel_size: is {decode}; vLLM takes {sizes}")
        if prefill == 1 and tensor % decode:
            indivisible = f"{decode} does not divide tensor_parallel_size {tensor}"
            raise ConfigError(f"decode_context_parallel_size: {indivisible}; DCP shares the TP ranks")

    @property
    def gpus(self) -> int:
        """Return the GPUs needed; decode context parallelism shares those of the other axes."""
        return self.tensor * self.pipeline * self.prefill_context * self.data

    @property
    def label(self) -> str:
        sizes = (
            ("TP", self.tensor), ("PP", self.pipeline), ("PCP", self.prefill_context), ("DCP", self.decode_context),
            ("DP", self.data),
        )  # fmt: skip
        return " ".join(f"{name}{size}" for name, size in sizes if size > 1) or "1 GPU"


def read_gpus(path: Path = GPUS_CSV) -> list[Hardware]:
    """Return every GPU of the table with count 1; ConfigError names the wrong value."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    except OSError as error:
        raise ConfigError(f"{path}: not readable ({error})") from error
    return [_gpu(row, path) for row in csv.DictReader(lines)]


def _gpu(row: dict[str, str], path: Path) -> Hardware:
    def positive(column: str) -> float:
        try:
            value = float(row[column])
        except (KeyError, ValueError, TypeError):
            value = 0.0
        if not 0 < value < inf:
            wrong = f"{column} of {row.get('gpu')!r} is {row.get(column)!r}"
            raise ConfigError(f"{path}: {wrong}; it must be a number above 0")
        return value

    hbm_bytes, hbm_bytes_per_s = int(positive("hbm_gib") * 2**30), positive("hbm_tb_s") * 1e12
    bf16_flops = positive("bf16_tflops") * 1e12
    fp8_flops, fp4_flops = (positive(c) * 1e12 if row.get(c) else None for c in ("fp8_tflops", "fp4_tflops"))
    name, vendor, source = (row.get(column) or "" for column in ("gpu", "vendor", "source"))
    return Hardware(name, 1, hbm_bytes, hbm_bytes_per_s, bf16_flops, fp8_flops, fp4_flops, vendor, source)


def load_hardware(name: str, count: int = 1, path: Path = GPUS_CSV) -> Hardware:
    """Return `count` GPUs called `name` (case does not matter); ConfigError lists the known names."""
    if count < 1:
        raise ConfigError(f"hardware.count: is {count}; it must be 1 or more")
    gpus = read_gpus(path)
    for gpu in gpus:
        if gpu.name.lower() == name.lower():
            return replace(gpu, count=count)
    known = ", ".join(gpu.name for gpu in gpus)
    raise ConfigError(f"hardware.gpu: {name!r} is not in {path.name}; known are {known}, or add a line to it")
