"""The connector of claimed_prefix.py, with the claimed part of the KV cache filled by vLLM's DecodeBenchConnector.

Its fill_mean and fill_std are in "kv_connector_extra_config". Everything else is as in claimed_prefix.py.
"""

from types import SimpleNamespace
from typing import Any

from claimed_prefix import claimed_tokens
from vllm.distributed.kv_transfer.kv_connector.v1.decode_bench_connector import DecodeBenchConnector


class FilledPrefixConnector(DecodeBenchConnector):  # type: ignore[misc]
    """Fills what a request claims, where DecodeBenchConnector fills all of a prompt but its last token."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Return the number of tokens to claim, and that they need not be waited for."""
        return claimed_tokens(request, num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Let the base class fill the blocks of a prompt that ends one token after the claimed part."""
        # The server keeps no prefixes, so what is claimed starts with the prompt.
        claimed = SimpleNamespace(request_id=request.request_id, num_tokens=num_external_tokens + 1)
        super().update_state_after_alloc(claimed, blocks, num_external_tokens)
