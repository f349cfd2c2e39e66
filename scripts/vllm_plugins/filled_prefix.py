"""KV connectors of vLLM (0.25.1, 0.32) that fill the cache with noise instead of computing it.

"fill_mean" and "fill_std" are in "kv_connector_extra_config". Everything else is as in claimed_prefix.py.
"""

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from claimed_prefix import claimed_tokens
from vllm.distributed.kv_transfer.kv_connector.v1.decode_bench_connector import DecodeBenchConnector
from vllm.platforms import current_platform

PIECE_BYTES = 1 << 28  # of noise that is drawn at once


class NoiseConnector(DecodeBenchConnector):  # type: ignore[misc]
    """Fills all of a prompt but its last token, as DecodeBenchConnector does; its noise fits an FP8 cache too.

    vLLM 0.25.1 keeps an FP8 cache as bytes, which it cannot fill with noise; a mean of 0.015 becomes the byte 0 there.
    """

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        knows_fp8 = hasattr(self.connector_worker, "_fp8_dtypes")
        if self.connector_worker is not None and not knows_fp8:
            is_fp8 = vllm_config.cache_config.cache_dtype in ("fp8", "fp8_e4m3")
            dtype = current_platform.fp8_dtype() if is_fp8 else None
            self.connector_worker._fill_block_tensor = partial(fill_blocks, self.connector_worker, dtype)


def fill_blocks(worker: Any, fp8_dtype: torch.dtype | None, kv_cache: torch.Tensor, block_ids: list[int]) -> None:
    """Fill blocks of one layer's cache, of shape (blocks, ...), from N(worker.fill_mean, worker.fill_std ** 2).

    fp8_dtype: what the bytes of an FP8 cache stand for; None for a cache of another kind.
    """
    dtype = fp8_dtype if fp8_dtype and kv_cache.dtype == torch.uint8 else kv_cache.dtype
    blocks = torch.tensor([block for block in block_ids if block < kv_cache.shape[0]], device=kv_cache.device)
    at_once = max(1, PIECE_BYTES // (4 * kv_cache[0].numel()))
    for piece in blocks.split(at_once):
        noise = torch.empty((len(piece), *kv_cache.shape[1:]), dtype=torch.float32, device=kv_cache.device)
        noise.normal_(worker.fill_mean, worker.fill_std)
        kv_cache[piece] = noise.to(dtype).view(kv_cache.dtype)


class FilledPrefixConnector(NoiseConnector):
    """Fills what a request claims, where its base fills all of a prompt but its last token."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Return the number of tokens to claim, and that they need not be waited for."""
        return claimed_tokens(request, num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Let the base class fill the blocks of a prompt that ends one token after the claimed part."""
        # The server keeps no prefixes, so what is claimed starts with the prompt.
        claimed = SimpleNamespace(request_id=request.request_id, num_tokens=num_external_tokens + 1)
        super().update_state_after_alloc(claimed, blocks, num_external_tokens)
