"""A server recipe and the vLLM command line that it means (0.25.1 and 0.32; older flags are not tried)."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is asked of a server: everything that may change a number. None means vLLM's own default.

    model: hub id or folder. served_name: name in requests. max_model_len: prompt + new tokens + headroom, in tokens.
    env: variables for the server alone. extra_args: appended as they are.
    versions: what the server must be, by 'vllm', 'torch', 'aiter': a version or a specifier like '>=0.1.19.post2'.
    """

    model: str
    served_name: str
    max_model_len: int
    served_aliases: tuple[str, ...] = ()
    tokenizer: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    load_format: str = "auto"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    kv_cache_dtype: str = "auto"
    attention_backend: str | None = None
    cudagraph_mode: str | None = None
    custom_all_reduce: bool = True
    gpu_memory_utilization: float | None = None
    max_num_seqs: int = 1
    max_num_batched_tokens: int | None = None
    enforce_eager: bool = False
    prefix_caching: bool = False
    prompt_tokens_details: bool = True
    kv_transfer_config: dict[str, Any] | None = None
    extra_args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """GPUs of the whole server; ranks that share one sequence's cache are among those of TP."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size


@dataclass(frozen=True, slots=True)
class Launcher:
    """How a campaign gets its server: `kind` is 'local', 'container' or 'external'; `options` is that kind's config."""

    kind: str
    options: dict[str, Any] = field(default_factory=dict)
