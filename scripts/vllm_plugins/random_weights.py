"""vLLM load format `longctx_random`: random weights with the spread of trained ones, without a checkpoint.

vLLM's own dummy weights lie within 0.001 of zero. Then all logits are equal, and a router sends every token to the same
experts. Here a matrix is drawn from N(0, 1 / fan-in), so each layer keeps the size of what passes through it. An
embedding's fan-in is 1, since one row is looked up; where it is the output matrix too, its columns count.

A value depends on the parameter's name and on its place in the matrix as it is before tensor parallelism splits it. So
the ranks of any split hold parts of one model. Two kinds are drawn anew for each rank: the short convolutions of
recurrent layers, and quantized weights.

This module runs in the server's processes and imports nothing of longctx. It serves vLLM 0.25.1 and 0.32.
"""

import hashlib
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

LOAD_FORMAT = "longctx_random"
# Drawn at once, elements and rows: 16 MB of float32 at most. Other numbers give other weights.
PIECE, PIECE_ROWS = 1 << 22, 1024
# vLLM takes 1.0 for the scales of attention that no checkpoint sets.
LEFT_ALONE = ("k_scale", "v_scale", "q_scale", "prob_scale")
FP4_RMS = math.sqrt(68.5 / 8)  # of the eight magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6 of E2M1
INT4_RMS = math.sqrt(344 / 16)  # of -8 … 7
QUANTIZED = (torch.uint8, torch.int8, torch.int32, torch.float8_e4m3fn, torch.float8_e5m2)
FP8_RMS, INT8_RMS = 64.0, 32.0  # chosen: their largest values, 448 and 127, are 7 and 4 deviations away
INPUT_MAX = 6.0  # what static activation scales must hold: inputs are normal with deviation 1


class Block(NamedTuple):
    """Rows that lie together in the whole matrix: how many, and the number of the first one there."""

    rows: int
    start: int


class Layout(NamedTuple):
    """Where a rank's matrix lies in the whole one: its blocks of rows, its first column; columns of the whole one."""

    blocks: tuple[Block, ...]
    column: int
    columns: int


def register() -> None:
    """Tell vLLM the load format; vLLM calls this in each of its processes."""
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    @register_model_loader(LOAD_FORMAT)
    class RandomWeightsLoader(BaseModelLoader):  # type: ignore[misc]
        """Draws the weights where a checkpoint's would be loaded."""

        def download_model(self, model_config: Any) -> None:
            """Do nothing: there is no checkpoint."""

        def load_weights(self, model: nn.Module, model_config: Any) -> None:
            with torch.no_grad():
                draw_weights(model)


def draw_weights(model: nn.Module) -> None:
    """Give every parameter of `model` its values, in place; ValueError where vLLM quantizes while it loads."""
    modules = dict(model.named_modules())
    heads = {id(p) for name, p in model.named_parameters(remove_duplicate=False) if "lm_head" in name}
    for name, parameter in model.named_parameters():
        if parameter.device.type == "meta":
            remedy = "write weights: dummy, or leave --quantization out"
            raise ValueError(f"random weights: {name} is quantized while it is loaded; {remedy}")
        owner, _, short = name.rpartition(".")
        _draw(modules[owner], name, short, parameter.data)
        if hasattr(modules[owner], "shard_indices") and short == "weight" and id(parameter) not in heads:
            parameter.data.mul_(parameter.shape[1] ** 0.5)


def _draw(module: nn.Module, name: str, short: str, tensor: torch.Tensor) -> None:
    if short in LEFT_ALONE:
        return
    if gate := GATES.get(short):
        heads, rank = tensor.numel(), int(getattr(module, "tp_rank", 0))
        whole = torch.empty((rank + 1) * heads, dtype=torch.float32, device=tensor.device)
        whole.uniform_(1e-6, 1, generator=_generator(name, tensor.device))
        tensor.copy_(gate(whole[-heads:]).view_as(tensor))
    elif short == "g_idx" or "scale" in short or "zero" in short or tensor.dtype in QUANTIZED:
        _draw_quantized(module, name, short, tensor)
    elif tensor.dim() < 2:
        tensor.fill_(0.0 if "bias" in short else 1.0)
    elif "bias" in short:
        tensor.zero_()  # of each expert
    else:
        for number, matrix in _matrices(module, tensor):
            _draw_matrix(matrix, f"{name}.{number}", _layout(module, short, matrix))


# ---------------------------------------------------------------------------------------------------------------------
# Gates of recurrent layers, as functions of a uniform value in (0, 1). Ranges: Mamba 2 (arXiv:2405.21060) and its
# reference code, which gated delta networks (arXiv:2412.06464) and Kimi Delta Attention (arXiv:2510.26692) take over:
# decay rates A in 1 … 16, time steps from 0.001 to 0.1 on a logarithmic scale behind a softplus.


def _log_decay(u: torch.Tensor) -> torch.Tensor:
    return torch.log(1 + 15 * u)


def _time_step_bias(u: torch.Tensor) -> torch.Tensor:
    step = torch.exp(u * math.log(0.1 / 0.001) + math.log(0.001))
    return step + torch.log(-torch.expm1(-step))  # the inverse of softplus


GATES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "A_log": _log_decay,
    "A": lambda u: -torch.exp(_log_decay(u)),  # vLLM keeps Mamba 2's decay in this form
    "dt_bias": _time_step_bias,
    "D": torch.ones_like,
}


# ---------------------------------------------------------------------------------------------------------------------
# Where a rank's matrix lies in the whole one


def _matrices(module: nn.Module, tensor: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield (number, matrix): one for each expert of this rank, else one; a convolution is one matrix."""
    if tensor.dim() == 3 and tensor.shape[1] > 1:
        moe = getattr(module, "moe_config", None)
        first = tensor.shape[0] * int(getattr(moe, "ep_rank", 0)) if getattr(moe, "ep_size", 1) > 1 else 0
        yield from enumerate(tensor, first)
    else:
        yield 0, tensor.flatten(1)


def _layout(module: nn.Module, short: str, matrix: torch.Tensor) -> Layout:
    """Return where `matrix` lies; a matrix of unknown kind is taken for one that each rank has whole."""
    rows, columns = matrix.shape
    if (moe := getattr(module, "moe_config", None)) is not None:
        rank, size = int(moe.tp_rank), int(moe.tp_size)
        if short.startswith("w2"):
            return Layout((Block(rows, 0),), rank * columns, size * columns)
        halves = 2 if getattr(moe, "is_act_and_mul", True) else 1  # gate and up, each split by itself
        part = rows // halves
        return Layout(tuple(Block(part, (half * size + rank) * part) for half in range(halves)), 0, columns)
    rank, size = int(getattr(module, "tp_rank", 0)), int(getattr(module, "tp_size", 1))
    if size == 1:
        return Layout((Block(rows, 0),), 0, columns)
    if indices := getattr(module, "shard_indices", None):
        return Layout((Block(rows, int(indices.org_vocab_start_index)),), 0, columns)
    if getattr(module, "input_size_per_partition", 0) == columns < getattr(module, "input_size", 0):
        return Layout((Block(rows, 0),), rank * columns, size * columns)
    if getattr(module, "output_size_per_partition", 0) == rows:
        return Layout(tuple(_column_blocks(module, rows, rank, size)), 0, columns)
    return Layout((Block(rows, 0),), 0, columns)


def _column_blocks(module: Any, rows: int, rank: int, size: int) -> Iterator[Block]:
    """Yield the blocks of rows of a layer whose outputs are split: one for each matrix that vLLM has merged into it."""
    if hasattr(module, "num_kv_head_replicas"):
        value_size = getattr(module, "v_head_size", module.head_size)
        kv_rank, kv_heads = rank // module.num_kv_head_replicas, module.num_kv_heads
        queries, keys = module.total_num_heads * module.head_size, module.total_num_kv_heads * module.head_size
        yield Block(module.num_heads * module.head_size, rank * module.num_heads * module.head_size)
        yield Block(kv_heads * module.head_size, queries + kv_rank * kv_heads * module.head_size)
        yield Block(kv_heads * value_size, queries + keys + kv_rank * kv_heads * value_size)
        return
    start = 0
    for outputs in getattr(module, "output_sizes", None) or [rows * size]:
        yield Block(outputs // size, start + rank * (outputs // size))
        start += outputs


# ---------------------------------------------------------------------------------------------------------------------
# Values


def _generator(name: str, device: torch.device) -> torch.Generator:
    """Return a generator whose values depend on `name` alone, so on no order of parameters and no other process."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little")
    return torch.Generator(device=device).manual_seed(seed)


def _draw_matrix(matrix: torch.Tensor, name: str, layout: Layout) -> None:
    """Fill a rank's matrix from N(0, 1 / fan-in).

    The whole matrix consists of pieces of `step` rows, each with a generator of its own: a rank draws those it needs.
    """
    step, done = max(1, min(PIECE // layout.columns, PIECE_ROWS)), 0
    last_column = layout.column + matrix.shape[1]
    for block in layout.blocks:
        end = block.start + block.rows
        for piece in range(block.start // step, -(-end // step)):
            first, last = max(block.start, piece * step), min(end, (piece + 1) * step)
            drawn = torch.empty(step, layout.columns, dtype=torch.float32, device=matrix.device)
            drawn.normal_(0, layout.columns**-0.5, generator=_generator(f"{name}.{piece}", matrix.device))
            row = done + first - block.start
            matrix[row : row + last - first] = drawn[
                first - piece * step : last - piece * step, layout.column : last_column
            ]
        done += block.rows


# ---------------------------------------------------------------------------------------------------------------------
# Quantized weights: codes at random, and scales so that the products have the deviation 1 / sqrt(fan-in)


def _draw_quantized(module: nn.Module, name: str, short: str, tensor: torch.Tensor) -> None:
    if "zero" in short:
        tensor.fill_(-0x77777778 if tensor.dtype == torch.int32 else 0)  # 8 in each of the eight places
    elif short == "g_idx":
        tensor.copy_(torch.arange(tensor.numel()) // 128)
    elif "scale" not in short:
        _draw_codes(tensor, f"{name}.{getattr(module, 'tp_rank', 0)}")
    elif tensor.dtype == torch.uint8:  # E8M0: a power of two
        tensor.fill_(127 + round(math.log2(_weight_scale(module, short))))
    else:
        tensor.fill_(_scale(module, short, tensor))


def _draw_codes(tensor: torch.Tensor, name: str) -> None:
    flat, kind, generator = tensor.view(-1), tensor.dtype, _generator(name, tensor.device)
    for first in range(0, flat.numel(), PIECE):
        part = flat[first : first + PIECE]
        if kind == torch.int8 or kind.is_floating_point:
            rms, limit = (INT8_RMS, 127) if kind == torch.int8 else (FP8_RMS, 448)
            drawn = torch.empty(part.shape, dtype=torch.float32, device=tensor.device)
            drawn.normal_(0, rms, generator=generator)
            part.copy_((drawn if kind.is_floating_point else drawn.round()).clamp(-limit, limit))
        else:
            part.view(torch.uint8).random_(0, 256, generator=generator)


def _scale(module: nn.Module, short: str, tensor: torch.Tensor) -> float:
    """Return the value of a scale: by its name, and by whether a second one of the whole matrix stands beside it."""
    four_bits = _code_rms(module, short) == FP4_RMS
    if "input" in short:
        static = INPUT_MAX / (6 * 448) if four_bits else INPUT_MAX / 448
        return 1 / static if "global" in short else static  # compressed-tensors divides by its global scales
    if "global" in short:
        return 1 / _weight_scale(module, short)
    if tensor.element_size() == 1:
        return 1.0  # a block's scale in FP8: the matrix has another one
    return _weight_scale(module, short)


def _weight_scale(module: nn.Module, short: str) -> float:
    return 1 / (_code_rms(module, short) * math.sqrt(_fan_in(module, short)))


def _code_rms(module: nn.Module, short: str) -> float:
    """Return the root mean square of the codes of the weight that the scale `short` belongs to."""
    expert = next((prefix for prefix in ("w13", "w2") if short.startswith(prefix)), "")
    kinds = [
        p.dtype for key, p in module.named_parameters(recurse=False) if key.startswith(expert) and "scale" not in key
    ]
    by_kind = {torch.uint8: FP4_RMS, torch.int32: INT4_RMS, torch.int8: INT8_RMS}
    return next((by_kind[kind] for kind in kinds if kind in by_kind), FP8_RMS)


def _fan_in(module: Any, short: str) -> int:
    if (moe := getattr(module, "moe_config", None)) is None:
        return int(getattr(module, "input_size", 1))
    return int(moe.intermediate_size_per_partition * moe.tp_size if short.startswith("w2") else moe.hidden_dim)
