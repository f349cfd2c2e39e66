"""How vLLM's --kv-cache-dtype stores a token in the KV cache: the bits of keys and values, and their scales.

Of vLLM 0.32: kv_cache_interface.py, and `customize_spec` of the backends Triton, FlashInfer, TurboQuant, UltraQuant and
MLA.
"""

from dataclasses import dataclass
from math import ceil

from longctx.errors import ConfigError

BOUNDARY_LAYERS = 2  # first and last layers that packed formats leave in the model's dtype, in models without states


@dataclass(frozen=True, slots=True)
class KvFormat:
    """One KV cache dtype. Bytes are per token, of one KV head.

    `scale_bytes` are fixed (scales, norms and zero points). `group` elements share one more byte of scale. `mla_bytes`
    is the whole entry of MLA where the format has a layout of its own for it. `kinds` are the attentions that vLLM
    stores so. A `packed` format leaves the first and last layers unquantized.
    """

    name: str
    key_bits: int
    value_bits: int
    scale_bytes: int = 0
    group: int | None = None
    mla_bytes: int | None = None
    kinds: tuple[str, ...] = ("gqa", "mla")
    packed: bool = False

    @property
    def is_fp8(self) -> bool:
        """Return whether both are FP8, which kernels may multiply as they are."""
        return self.name.startswith("fp8")

    def head_bytes(self, key_dim: int, value_dim: int) -> int:
        """Return the bytes of one head's key and value with their scales; packed ones are rounded to even."""
        if self.mla_bytes is not None:
            return self.mla_bytes
        data = ceil(key_dim * self.key_bits / 8) + ceil(value_dim * self.value_bits / 8)
        scales = self.scale_bytes + ((key_dim // self.group + value_dim // self.group) if self.group else 0)
        return data + scales + (data + scales) % 2 * self.packed


def _formats() -> dict[str, KvFormat]:
    gqa = ("gqa",)
    known = [KvFormat(name, bits, bits) for bits, names in _PLAIN.items() for name in names]
    # A scale of four bytes for the key and one for the value of each token and head.
    per_token_head = {"int4": 4, "int8": 8, "fp8": 8}
    known += [KvFormat(f"{kind}_per_token_head", bits, bits, 8) for kind, bits in per_token_head.items()]
    known += [KvFormat(name, 4, 4, group=16, kinds=gqa) for name in ("nvfp4", "nvfp4_4over6")]
    known += [KvFormat("fp8_ds_mla", 8, 8, mla_bytes=656, kinds=("mla",))]
    known += [KvFormat("nvfp4_ds_mla", 4, 4, mla_bytes=352, kinds=("mla",))]
    known += [KvFormat("turboquant_k8v4", 8, 4, 4, kinds=gqa, packed=True)]
    for name, key_bits, value_bits in (("4bit_nc", 4, 4), ("k3v4_nc", 3, 4), ("3bit_nc", 3, 3)):
        known += [KvFormat(f"turboquant_{name}", key_bits, value_bits, 6, kinds=gqa, packed=True)]
    known += [KvFormat("ultraquant_4bit", 4, 4, group=32, kinds=gqa, packed=True)]
    return {known_format.name: known_format for known_format in known}


_PLAIN = {
    16: ("bfloat16", "float16", "half"),
    32: ("float32",),
    8: ("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"),
}
KV_FORMATS = _formats()


def kv_format(name: str, kinds: set[str]) -> KvFormat:
    """Return a dtype's format; ConfigError for an unknown one and for attentions that vLLM does not store so."""
    if name not in KV_FORMATS:
        raise ConfigError(f"kv_cache_dtype: {name!r} is not one of auto, {', '.join(KV_FORMATS)}")
    found = KV_FORMATS[name]
    if not kinds <= set(found.kinds):
        others = "MLA" if found.kinds == ("gqa",) else "models without MLA"
        raise ConfigError(f"kv_cache_dtype: vLLM does not store {others} as {name}")
    return found
