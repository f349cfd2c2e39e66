"""A KV connector of vLLM (0.25.1, 0.32) that claims the beginning of a prompt as computed and loads nothing.

The server then computes only the rest of the prompt, at the depth and with the attention work of a whole prefill. The
claimed part of the KV cache keeps what was in its blocks. So times are real, and answers mean nothing.

How much is claimed is in the request: "kv_transfer_params": {"claimed_tokens": N}. Without it nothing is claimed.

The server imports this module by --kv-transfer-config {"kv_connector": "ClaimedPrefixConnector",
"kv_connector_module_path": "claimed_prefix", "kv_role": "kv_both"} with this folder on its PYTHONPATH. It runs in the
server's Python, so it imports nothing of longctx.
"""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)


def claimed_tokens(request: Any, computed_tokens: int) -> int:
    """Return how many tokens to claim beyond those that the engine has itself; the last token is always computed."""
    asked = int((request.kv_transfer_params or {}).get("claimed_tokens", 0))
    most = int(request.num_tokens) - 1
    return max(0, min(asked, most) - computed_tokens)


class ClaimedPrefixConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Claims what each request asks for. Nothing is ever loaded or saved, so all other methods are empty."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Return the number of tokens to claim, and that they need not be waited for."""
        return claimed_tokens(request, num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        pass

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        pass

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        pass

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        """Let the engine free a finished request's blocks at once."""
        return False, None
