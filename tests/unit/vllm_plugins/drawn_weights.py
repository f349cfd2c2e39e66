"""Draws the weights of a small stand-in for vLLM's modules, for each rank of a split; run by a Python that has torch.

Prints JSON: what test_random_weights.py asks of the values.
"""

import json
import sys
from typing import Any

import torch
from torch import nn

sys.path.insert(0, sys.argv[1])
import random_weights

HIDDEN, HEADS, KV_HEADS, HEAD_SIZE, INTER, EXPERTS, VOCABULARY = 64, 4, 2, 16, 96, 4, 128


class Split(nn.Module):
    """A module with the fields by which vLLM tells how its parameters are split."""

    def __init__(self, parameters: dict[str, torch.Tensor], **fields: Any) -> None:
        super().__init__()
        for name, value in parameters.items():
            self.register_parameter(name, nn.Parameter(value, requires_grad=False))
        for name, field in fields.items():
            setattr(self, name, field)


class Fields:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, 9).to(dtype)


def model(rank: int, size: int) -> nn.Module:
    """Return the rank's part of a model, each value 9."""
    split: dict[str, Any] = {"tp_rank": rank, "tp_size": size}
    heads, kv_heads, inter, rows = HEADS // size, max(1, KV_HEADS // size), INTER // size, VOCABULARY // size
    moe = Fields(tp_rank=rank, tp_size=size, ep_size=1, ep_rank=0, is_act_and_mul=True, hidden_dim=HIDDEN,
                 intermediate_size_per_partition=inter)  # fmt: skip
    parts = {
        "embed": Split({"weight": empty(rows, HIDDEN)}, **split,
                       shard_indices=Fields(org_vocab_start_index=rank * rows)),
        "qkv": Split(
            {"weight": empty((heads + 2 * kv_heads) * HEAD_SIZE, HIDDEN), "bias": empty(heads)},
            num_heads=heads, num_kv_heads=kv_heads, total_num_heads=HEADS, total_num_kv_heads=KV_HEADS,
            head_size=HEAD_SIZE, v_head_size=HEAD_SIZE, num_kv_head_replicas=max(1, size // KV_HEADS),
            output_size_per_partition=(heads + 2 * kv_heads) * HEAD_SIZE, **split,
        ),
        "gate_up": Split({"weight": empty(2 * inter, HIDDEN)}, output_sizes=[INTER, INTER],
                         output_size_per_partition=2 * inter, **split),
        "down": Split({"weight": empty(HIDDEN, inter)}, input_size=INTER, input_size_per_partition=inter, **split),
        "router": Split({"weight": empty(EXPERTS, HIDDEN), "e_score_correction_bias": empty(EXPERTS)}, **split),
        "experts": Split({"w13_weight": empty(EXPERTS, 2 * inter, HIDDEN), "w2_weight": empty(EXPERTS, HIDDEN, inter)},
                         moe_config=moe),
        "norm": Split({"weight": empty(HIDDEN)}),
        "recurrent": Split({"A_log": empty(1, 1, heads, 1), **{name: empty(heads) for name in ("A", "dt_bias", "D")}},
                           **split),
        "conv": Split({"weight": empty(HIDDEN, 1, 4)}),
        "attention": Split({"k_scale": empty(1).squeeze()}),
    }  # fmt: skip
    return nn.ModuleDict(parts)


def drawn(rank: int = 0, size: int = 1) -> dict[str, torch.Tensor]:
    part = model(rank, size)
    with torch.no_grad():
        random_weights.draw_weights(part)
    return dict(part.named_parameters())


def joined(name: str, parts: list[torch.Tensor], size: int) -> torch.Tensor:
    """Put the ranks' parts of a parameter together again, as vLLM's loaders take it apart."""
    if name in ("down.weight", "experts.w2_weight"):
        return torch.cat(parts, -1)
    if name.partition(".")[0] in ("router", "norm", "conv", "attention"):
        return parts[-1]
    if name == "qkv.weight":
        heads, kv = HEADS // size * HEAD_SIZE, max(1, KV_HEADS // size) * HEAD_SIZE
        pieces = [part.split([heads, kv, kv]) for part in parts]
        step = max(1, size // KV_HEADS)
        return torch.cat([p[0] for p in pieces] + [p[1] for p in pieces[::step]] + [p[2] for p in pieces[::step]])
    if name in ("gate_up.weight", "experts.w13_weight"):
        halves = [part.chunk(2, -2) for part in parts]
        return torch.cat([half[0] for half in halves] + [half[1] for half in halves], -2)
    return torch.cat(parts, -2 if name == "recurrent.A_log" else 0)


def quantized() -> dict[str, list[float]]:
    """Return (deviation of codes times scales, 1 / sqrt(fan-in)) for each kind of quantized weight."""
    e2m1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    fan_in, rows, results = 256, 512, {}
    fp8, byte = torch.float8_e4m3fn, torch.uint8

    def fill(**parameters: torch.Tensor) -> dict[str, torch.Tensor]:
        module = nn.ModuleDict({"linear": Split(parameters, input_size=fan_in)})
        with torch.no_grad():
            random_weights.draw_weights(module)
        return {name.removeprefix("linear."): value for name, value in module.named_parameters()}

    def nibbles(packed: torch.Tensor) -> torch.Tensor:
        codes = packed.contiguous().view(byte).to(torch.int64)
        return torch.stack([codes & 15, codes >> 4], -1)

    got = fill(weight=empty(rows, fan_in, dtype=fp8), weight_scale_inv=empty(4, 2))
    results["fp8 blocks"] = got["weight"].float() * got["weight_scale_inv"][0, 0]
    got = fill(weight=empty(rows, fan_in, dtype=torch.int8), weight_scale=empty(rows, 1))
    results["int8 channels"] = got["weight"].float() * got["weight_scale"]
    got = fill(weight=empty(rows, fan_in // 2, dtype=byte), weight_scale=empty(rows, fan_in // 16, dtype=fp8),
               weight_scale_2=empty(1))  # fmt: skip
    results["nvfp4"] = e2m1[nibbles(got["weight"])] * got["weight_scale"].float()[0, 0] * got["weight_scale_2"]
    got = fill(weight_packed=empty(rows, fan_in // 2, dtype=byte), weight_scale=empty(rows, fan_in // 16, dtype=fp8),
               weight_global_scale=empty(1))  # fmt: skip
    results["nvfp4 of compressed-tensors"] = e2m1[nibbles(got["weight_packed"])] / got["weight_global_scale"]
    got = fill(weight=empty(rows, fan_in // 2, dtype=byte), weight_scale=empty(rows, fan_in // 32, dtype=byte))
    results["mxfp4"] = e2m1[nibbles(got["weight"])] * 2.0 ** (got["weight_scale"][0, 0].item() - 127)
    got = fill(qweight=empty(rows // 8, fan_in, dtype=torch.int32), scales=empty(2, rows))
    results["int4 groups"] = (nibbles(got["qweight"]) - 8).float() * got["scales"][0, 0]
    return {name: [float(value.float().std()), fan_in**-0.5] for name, value in results.items()}


def main() -> None:
    whole = drawn()
    spread = {name: [float(value.std()), value.shape[-1] ** -0.5] for name, value in whole.items() if value.dim() > 1}
    splits = {
        size: [
            name
            for name in whole
            if name != "qkv.bias"
            and not torch.equal(joined(name, [drawn(rank, size)[name] for rank in range(size)], size), whole[name])
        ]
        for size in (2, 4)
    }
    again, first, second = drawn(), whole["experts.w13_weight"][0].flatten(), whole["experts.w13_weight"][1].flatten()
    print(
        json.dumps(
            {
                "spread": spread,
                "splits": splits,
                "again": all(torch.equal(again[name], value) for name, value in whole.items()),
                "correlation": float(torch.corrcoef(torch.stack([first, second]))[0, 1]),
                "norm": whole["norm.weight"].unique().tolist(),
                "biases": [*whole["qkv.bias"].tolist(), *whole["router.e_score_correction_bias"].tolist()],
                "k_scale": float(whole["attention.k_scale"]),
                "gates": {
                    name: whole[f"recurrent.{name}"].flatten().tolist() for name in ("A_log", "A", "dt_bias", "D")
                },
                "quantized": quantized(),
            }
        )
    )


main()
