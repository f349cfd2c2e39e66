"""KV connectors of vLLM (0.25.1, 0.32) that fill the cache with noise instead of computing it.

"fill_mean" and "fill_std" are in "kv_connector_extra_config". Everything else is as in claimed_prefix.py.
"""

from types import SimpleNamespace
from typing import Any

import torch
from claimed_prefix import claimed_tokens
from vllm.distributed.kv_transfer.kv_connector.v1.decode_bench_connector import DecodeBenchConnector
from vllm.platforms import current_platform

PIECE_BYTES = 1 << 28  # of noise that is drawn at once


class NoiseConnector(DecodeBenchConnector):  # type: ignore[misc]
    """Fills all of a prompt but its last token, as DecodeBenchConnector does, but only the blocks of that prompt.

    DecodeBenchConnector fills the states of recurrent layers in all blocks. These share their memory with the blocks of
    attention, which then hold bytes of another type: as FP8 many of them are no numbers. And vLLM 0.25.1 keeps an FP8
    cache as bytes, which it cannot fill with noise.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        if self.connector_worker is not None:
            blocks, cache = kv_cache_config.num_blocks, vllm_config.cache_config.cache_dtype
            self.connector_worker._fill_blocks = NoiseFill(self.connector_worker, blocks, fp8_dtype(cache))


def fp8_dtype(cache_dtype: str) -> torch.dtype | None:
    """Return what the bytes of a cache stand for, by vLLM's name of its type; None where scales lie among them."""
    if cache_dtype in ("fp8", "fp8_e4m3"):
        dtype: torch.dtype = current_platform.fp8_dtype()
        return dtype
    return torch.float8_e5m2 if cache_dtype == "fp8_e5m2" else None


class NoiseFill:
    """Fills blocks of a group of layers from N(worker.fill_mean, worker.fill_std ** 2).

    worker: DecodeBenchConnector's, which knows the layers and their tensors. n_blocks: blocks of the whole cache.
    fp8: what the bytes of the cache stand for; None: a cache of bytes is left as it is.
    """

    def __init__(self, worker: Any, n_blocks: int, fp8: torch.dtype | None) -> None:
        self.worker, self.n_blocks, self.fp8 = worker, n_blocks, fp8

    def __call__(self, group: int, block_ids: list[int], num_tokens: int) -> None:
        for layer in self.worker.group_to_layers.get(group, []):
            cache = self.worker.kv_caches.get(layer)
            for tensor in cache if isinstance(cache, (list, tuple)) else [cache]:
                if isinstance(tensor, torch.Tensor) and (tensor.dtype != torch.uint8 or self.fp8):
                    self._fill(tensor, block_ids)

    def _fill(self, tensor: torch.Tensor, block_ids: list[int]) -> None:
        """Fill the blocks in a layer's tensor, whose first or second dimension counts blocks or equal parts of them."""
        dimension = 0 if tensor.shape[0] % self.n_blocks == 0 else 1
        by_block = tensor.movedim(dimension, 0)
        parts = by_block.shape[0] // self.n_blocks
        first = torch.tensor(block_ids, device=tensor.device) * parts
        rows = (first[:, None] + torch.arange(parts, device=tensor.device)).flatten()
        for piece in rows.split(max(1, PIECE_BYTES // (4 * by_block[0].numel()))):
            noise = torch.empty((len(piece), *by_block.shape[1:]), dtype=torch.float32, device=tensor.device)
            noise.normal_(self.worker.fill_mean, self.worker.fill_std)
            is_fp8 = tensor.dtype == torch.uint8 and self.fp8 is not None
            by_block[piece] = noise.to(self.fp8).view(torch.uint8) if is_fp8 else noise.to(tensor.dtype)


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
