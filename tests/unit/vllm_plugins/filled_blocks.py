"""Fills blocks of a small hybrid cache, whose layers share one memory, as vLLM lays it out; prints JSON.

Run by a Python that has vLLM. A page of 512 bytes is a block of attention (4 kernel blocks of FP8) or of a state.
"""

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch

sys.path.insert(0, sys.argv[1])
import filled_prefix

BLOCKS, PAGE = 64, 512


def main() -> None:
    memory = torch.zeros(BLOCKS * PAGE, dtype=torch.uint8)
    attention = memory.view(
        BLOCKS * 4, PAGE // 4
    )  # kernel blocks are smaller than the blocks that the engine hands out
    states = memory.view(torch.float32).as_strided((BLOCKS, 64), (PAGE // 4, 1))
    by_keys = torch.zeros(2, BLOCKS, 256, dtype=torch.bfloat16)  # a backend that has keys and values first
    worker: Any = SimpleNamespace(
        group_to_layers={0: ["attention"], 1: ["recurrent"], 2: ["full"]},
        kv_caches={"attention": attention, "recurrent": [states], "full": by_keys},
        fill_mean=0.0,
        fill_std=1.0,
    )
    fill = filled_prefix.NoiseFill(worker, BLOCKS, filled_prefix.fp8_dtype("fp8_e4m3"))
    asked = list(range(0, BLOCKS, 2))
    fill(0, asked, 0)
    fill(1, [1, 3], 0)
    fill(2, asked, 0)
    pages = memory.view(BLOCKS, PAGE)
    values = pages[asked].view(torch.float8_e4m3fn).float()
    print(
        json.dumps(
            {
                "finite": bool(values.isfinite().all()),
                "mean": float(values.mean()),
                "deviation": float(values.std()),
                "states": float(states[[1, 3]].std()),
                "touched": [block for block in range(BLOCKS) if pages[block].any()],
                "touched_keys": [block for block in range(BLOCKS) if by_keys[:, block].any()],
                "deviation_keys": float(by_keys[:, asked].float().std()),
                "unknown": filled_prefix.fp8_dtype("fp8_ds_mla") is None,
            }
        )
    )


main()
