"""What no server can beat: a lower bound of TTFT and an upper bound of decode throughput.

Arithmetic that the served precision cannot do faster is reckoned at that precision's peak: matrices at the FP8 peak
only where weights have 8 bits; attention at the FP8 peak only for GQA over an FP8 cache, which vLLM's kernels may
compute in FP8. MLA prefill expands the latent to BF16 heads first, so it is bound by the BF16 peak even over an FP8
cache. 4-bit weights are expanded to BF16 before the product.
"""

from dataclasses import dataclass

from longctx.model.geometry import Geometry
from longctx.plan.hardware import Hardware, Parallelism
from longctx.plan.memory import kv_bytes_per_rank, state_bytes_per_rank


def ttft_bound_s(
    geometry: Geometry, hardware: Hardware, parallelism: Parallelism, tokens: int, kv_dtype: str = "auto"
) -> float:
    """Return seconds: attention FLOPs over their peak plus linear FLOPs over theirs, on all ranks of one replica.

    Communication, memory traffic, sampling and pipeline bubbles are left out: it is a bound, not a forecast.
    """
    ranks = parallelism.tensor * parallelism.pipeline
    fp8 = hardware.fp8_flops or hardware.bf16_flops
    fp8_attention = geometry.kv_dtype_bytes(kv_dtype) == 1 and not geometry.is_mla
    attention_peak = fp8 if fp8_attention else hardware.bf16_flops
    linear_peak = fp8 if geometry.fp8_products else hardware.bf16_flops
    seconds = geometry.attention_flops(tokens) / attention_peak + geometry.linear_flops(tokens) / linear_peak
    return seconds / ranks


def decode_bound_tok_s(
    geometry: Geometry,
    hardware: Hardware,
    parallelism: Parallelism,
    context: int,
    kv_dtype: str = "auto",
    active_weight_bytes: float | None = None,
) -> float:
    """Return tokens/s of one sequence: HBM bandwidth over the bytes that one rank moves for a token.

    Active weights are sharded by TP; the cache as `kv_bytes_per_rank` has it; states are read and written. Pipeline
    stages work one after the other, so PP does not shorten a token.
    """
    weights = geometry.active_weight_bytes if active_weight_bytes is None else active_weight_bytes
    one_stage = Parallelism(tensor=parallelism.tensor, decode_context=parallelism.decode_context)
    moved = weights / parallelism.tensor + kv_bytes_per_rank(geometry, one_stage, context, kv_dtype)
    moved += 2 * state_bytes_per_rank(geometry, one_stage)
    return hardware.hbm_bytes_per_s / moved


@dataclass(frozen=True, slots=True)
class Limit:
    """Least TTFT in s and most decode throughput in tokens/s at one prompt length; None where it isn't known."""

    ttft_s: float | None
    decode_tok_s: float | None
