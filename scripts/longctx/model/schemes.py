"""How a quantised matrix is stored and multiplied: bits per weight, scales, the precision of the products.

Names, scale types and block sizes follow vLLM's parameters (model_executor/layers/quantization: fp8, fbgemm_fp8, mxfp4,
auto_awq, auto_gptq, modelopt, compressed_tensors, quark).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Literal

from longctx.model.fields import Fields
from longctx.model.layers import Matrix

Products = Literal["bf16", "fp8", "fp4"]


@dataclass(frozen=True, slots=True)
class Scheme:
    """`bits` per weight, a scale of `scale_bytes` per block of (rows, columns), and `tensor_bytes` once per matrix.

    A block size of 0 is the whole side. `products`: the fastest precision in which this format may be multiplied;
    weights alone in 4 bits (no quantised activations) are expanded to BF16 first.
    """

    bits: float
    scale_bytes: float = 0.0
    block: tuple[int, int] = (0, 0)
    tensor_bytes: int = 0
    products: Products = "bf16"

    def size_bytes(self, matrix: Matrix) -> float:
        rows, columns = self.block
        scales = ceil(matrix.rows / (rows or matrix.rows)) * ceil(matrix.columns / (columns or matrix.columns))
        weights = matrix.rows * matrix.columns * self.bits / 8
        return matrix.count * (weights + scales * self.scale_bytes + self.tensor_bytes)


MXFP4 = Scheme(4, 1, (1, 32), products="fp8")  # scales are powers of two; vLLM may give it FP8 activations
_BITS = {"fp4": 4, "int4": 4, "uint4": 4, "fp6_e2m3": 6, "fp6_e3m2": 6, "fp8_e4m3": 8, "fp8_e5m2": 8, "int8": 8}


def nvfp4(group: int = 16, *, weights_only: bool = False) -> Scheme:
    """Return NVFP4: an FP8 scale per `group` weights and FP32 scales of the matrix (and of its input)."""
    return Scheme(4, 1, (1, group), 4 if weights_only else 8, "bf16" if weights_only else "fp4")


def fp8_blocks(fields: Fields) -> Scheme:
    """Return quant_method fp8: one FP32 scale per `weight_block_size`, else per matrix."""
    if fields.items("weight_block_size", int, []):
        return Scheme(8, 4, _block(fields, "block", "weight_block_size"), products="fp8")
    return Scheme(8, 4, tensor_bytes=4 * (fields.get("activation_scheme", default="") == "static"), products="fp8")


def integers(fields: Fields) -> Scheme:
    """Return quant_method awq or gptq: an FP16 scale and a packed zero point per group; -1 is a whole row."""
    bits, group = fields.count("bits", "w_bit"), fields.get("group_size", "q_group_size")
    return Scheme(bits, 2 + bits / 8, (1, group if isinstance(group, int) and group > 0 else 0))


def modelopt(fields: Fields, algorithm: str, group: int) -> Scheme:
    """Return the scheme of ModelOpt's `quant_algo`; GeometryError names one that is not known."""
    known = {
        "FP8": Scheme(8, 4, tensor_bytes=4, products="fp8"),
        "FP8_PER_CHANNEL_PER_TOKEN": Scheme(8, 4, (1, 0), products="fp8"),
        "FP8_PB_WO": Scheme(8, 4, (128, 128), products="fp8"),
        "FP8_BLOCK_SCALES": Scheme(8, 4, (128, 128), products="fp8"),
        "NVFP4": nvfp4(group),
        "W4A16_NVFP4": nvfp4(group, weights_only=True),
        "MXFP8": Scheme(8, 1, (1, 32), products="fp8"),
    }
    if algorithm.upper() not in known:
        raise fields.fail("quant_algo", f"is {algorithm!r}", f"known are {', '.join(known)}, MIXED_PRECISION")
    return known[algorithm.upper()]


def config_group(fields: Fields) -> Scheme:
    """Return the scheme of a group of compressed-tensors: its `weights` and `input_activations`."""
    weights = fields.inner("weights")
    bits, group = weights.count("num_bits"), weights.get("group_size", default=None)
    activations = fields.inner("input_activations").count("num_bits") if fields.has("input_activations") else 16
    columns = group if isinstance(group, int) and group > 0 else 0
    if weights.text("type", "int") != "float":
        zero_point = 0 if weights.flag("symmetric", True) else bits / 8
        return Scheme(bits, 2 + zero_point, (1, columns), products="fp8" if bits == activations == 8 else "bf16")
    if bits == 4 and columns == 16:
        return nvfp4(columns, weights_only=activations > 8)
    if columns:  # MXFP4, MXFP8
        return Scheme(bits, 1, (1, columns), products=_products(bits, activations))
    return Scheme(bits, 4, _block(weights, weights.text("strategy", "tensor"), "block_structure"),
                  products=_products(bits, activations))  # fmt: skip


def quark(fields: Fields) -> Scheme | None:
    """Return the scheme of one of Quark's configurations, None where its weights are not quantised.

    Its `weight` is one format, or a list of two: values and the format of their scales (NVFP4, or INT4 in FP8).
    """
    formats = _formats(fields, "weight")
    if not formats:
        return None
    first = formats[0]
    bits = min(_bits(item) for item in formats)
    activations = max((_bits(item) for item in _formats(fields, "input_tensors")[:1]), default=16)
    if len(formats) > 1:
        if first.text("dtype") == "fp4":
            return nvfp4(first.count("group_size"))
        return Scheme(bits, 4, (1, 0), 4, _products(8, activations))
    kind = first.text("qscheme")
    if kind == "per_group" and first.text("dtype").startswith("fp"):
        return Scheme(bits, 1, (1, first.count("group_size")), products=_products(bits, activations))
    if kind == "per_group":
        zero_point = 0 if first.flag("symmetric", True) else bits / 8
        return Scheme(bits, 2 + zero_point, (1, first.count("group_size")))
    return Scheme(bits, 4, _block(first, kind.removeprefix("per_"), "block_size"),
                  products=_products(bits, activations))  # fmt: skip


def _block(fields: Fields, kind: str, name: str) -> tuple[int, int]:
    """Return the rows and columns of one scale: of a channel (a row), of the block in `name`, else of all."""
    if kind != "block":
        return (1, 0) if kind == "channel" else (0, 0)
    sizes = fields.items(name, int)
    if len(sizes) != 2 or min(sizes) < 1:
        raise fields.fail(name, f"is {sizes!r}", "it must be two sizes")
    return sizes[0], sizes[1]


def _products(bits: int, activations: int) -> Products:
    """Return the fastest products of weights and activations of so many bits: the wider of both decides."""
    widest = max(bits, activations)
    return "fp4" if widest <= 6 else "fp8" if widest <= 8 else "bf16"


def _formats(fields: Fields, name: str) -> list[Fields]:
    found = fields.get(name, default=None)
    items = found if isinstance(found, list) else [] if found is None else [found]
    if not all(isinstance(item, Mapping) for item in items):
        raise fields.fail(name, f"is {found!r}", "it must be an object or a list of them")
    return [Fields(item, fields.name, f"{fields.where}{name}.") for item in items]


def _bits(fields: Fields) -> int:
    dtype = fields.text("dtype")
    if dtype not in _BITS:
        raise fields.fail("dtype", f"is {dtype!r}", f"known are {', '.join(_BITS)}")
    return _BITS[dtype]
