"""How many bytes a quantised checkpoint keeps per parameter, from the config.json's `quantization_config`.

Scales and zero points are counted. Unquantised matrices are counted at the model's dtype. If the checkpoint names one
matrix of a kind (mixers, feed-forward, experts) as unquantised, the whole kind counts as such: the estimate is high
rather than low.
"""

import re
from dataclasses import dataclass

from longctx.model.fields import Fields

_IGNORED = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")
_EXPERTS = re.compile(r"(?<!shared_)experts")
_MIXER = re.compile(r"attn|attention|mixer|mamba")
_FFN = re.compile(r"shared_expert|mlp\\?\.\(?(gate_up|gate_proj|up|down|gate\|)|feed_forward")
_SMALL = re.compile(r"norm|shared_expert_gate|conv1d|in_proj_(ba|a|b)$|router|vision|visual")


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Bytes per parameter of mixers, of other layer parts and of routed experts; bytes per KV element of `auto`.

    `block` is the side of FP8's scaled blocks (0: none); a rank's share of a matrix must be whole blocks.
    """

    mixer: float
    ffn: float
    experts: float
    kv_auto: int
    block: int = 0


def weight_bytes(fields: Fields, dtype_bytes: int) -> WeightBytes:
    """Return the bytes per parameter; GeometryError names a method or scheme that is not known."""
    if not fields.has("quantization_config"):
        return WeightBytes(dtype_bytes, dtype_bytes, dtype_bytes, dtype_bytes)
    quantisation = fields.inner("quantization_config")
    kv_auto = dtype_bytes
    if quantisation.has("kv_cache_scheme"):  # some checkpoints set FP8
        scheme = quantisation.inner("kv_cache_scheme")
        if scheme.count("num_bits") != 8:
            raise scheme.fail("num_bits", f"is {scheme.get('num_bits')}", "known are 8 bits")
        kv_auto = 1
    if quantisation.get("quant_method") == "mxfp4":  # gpt-oss: only experts, one scale byte per 32 elements
        return WeightBytes(dtype_bytes, dtype_bytes, 4.25 / 8, kv_auto)
    size = _parameter_bytes(quantisation)
    listed = (name for key in _IGNORED for name in quantisation.items(key, str, []))
    ignored = [name for name in listed if not _SMALL.search(name)]
    mixer, ffn, experts = (dtype_bytes if any(map(kind.search, ignored)) else size for kind in (_MIXER, _FFN, _EXPERTS))
    block = max(quantisation.items("weight_block_size", int, []), default=0)
    return WeightBytes(mixer, ffn, experts, kv_auto, block)


def _parameter_bytes(quantisation: Fields) -> float:
    method = quantisation.get("quant_method")
    if method in ("fp8", "fbgemm_fp8"):  # one FP32 scale per block, where weight_block_size says so
        block = quantisation.items("weight_block_size", int, [])
        if block and (len(block) != 2 or min(block) < 1):
            raise quantisation.fail("weight_block_size", f"is {block!r}", "it must be two sizes")
        return 1.0 + (4.0 / (block[0] * block[1]) if block else 0.0)
    if method in ("awq", "gptq"):  # FP16 scale and packed zero point per group; group_size -1 is a whole column
        bits, group = quantisation.count("bits"), quantisation.get("group_size")
        return bits / 8 + ((2 + bits / 8) / group if isinstance(group, int) and group > 0 else 0.0)
    if method not in ("compressed-tensors", "modelopt"):
        known = "fp8, fbgemm_fp8, mxfp4, awq, gptq, compressed-tensors, modelopt; plan with the unquantised config"
        raise quantisation.fail("quant_method", f"is {method!r}", f"known are {known}")
    groups, sizes = quantisation.inner("config_groups"), set()
    for name in groups.values:
        weights = groups.inner(name).inner("weights")
        bits, group = weights.count("num_bits"), weights.get("group_size", default=None)
        scale = 1 if weights.get("type", default="int") == "float" else 2  # NVFP4's scales are FP8, INT4's BF16
        sizes.add(bits / 8 + (scale / group if isinstance(group, int) and group > 0 else 0.0))
    if len(sizes) != 1:
        raise quantisation.fail("config_groups", "mix several precisions", "plan with the unquantised config")
    return float(sizes.pop())
