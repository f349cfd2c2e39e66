"""The table of all families, the names that released files give them, and the defaults that these files rely on.

A size that transformers' class would take from a default of its own must be in the file, except where released files
rely on it (CLASS_DEFAULTS). A field that a family's builder did not read but whose name suggests a size is refused.
"""

from collections.abc import Callable
from typing import Any

from longctx.model.families.hybrids import HYBRIDS
from longctx.model.families.sparse import SPARSE
from longctx.model.families.standard import STANDARD, standard_layers
from longctx.model.families.variants import VARIANTS
from longctx.model.fields import Fields
from longctx.model.layers import Layer

# transformers 4.50 and 5, configuration_<model_type>.py.
CLASS_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma": {"tie_word_embeddings": True},
    "gemma2": {"tie_word_embeddings": True},
    "gemma3_text": {
        "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "sliding_window": 4096, "sliding_window_pattern": 6, "tie_word_embeddings": True,
        "max_position_embeddings": 131072,
    },
    "gpt_oss": {"attention_bias": True},
    "minimax_m2": {"use_qk_norm": True},
    "glm4_moe": {"use_qk_norm": False},
    "qwen2_moe": {"qkv_bias": True},
    "starcoder2": {"tie_word_embeddings": True, "use_bias": True},
    "cohere": {"tie_word_embeddings": True, "use_qk_norm": False},
    "cohere2": {"tie_word_embeddings": True},
    "cohere2_moe": {"tie_word_embeddings": True},
    "ernie4_5": {"tie_word_embeddings": True},
    "ernie4_5_moe": {"tie_word_embeddings": True},
    "smollm3": {"tie_word_embeddings": True, "num_key_value_heads": 4},
    "youtu": {"tie_word_embeddings": True},
    "gemma4_text": {"tie_word_embeddings": True, "global_head_dim": 512},
    "gemma4_unified_text": {
        "tie_word_embeddings": True, "global_head_dim": 512, "hidden_size_per_layer_input": 0,
        "attention_k_eq_v": False,
    },
    "lfm2": {"tie_word_embeddings": True},
    "lfm2_moe": {"tie_word_embeddings": True},
}  # fmt: skip

# The family under other names: of multimodal files, whose text part has another name or none, and of copies.
ALIASES = {
    "gemma3": "gemma3_text", "gemma4": "gemma4_text", "gemma4_unified": "gemma4_unified_text",
    "glm4v": "glm4v_text", "glm4v_moe": "glm4v_moe_text",
    "llama4": "llama4_text", "mistral3": "mistral", "qwen2_vl": "qwen2", "qwen2_vl_text": "qwen2",
    "qwen2_5_vl": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl": "qwen3", "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe": "qwen3_moe", "qwen3_vl_moe_text": "qwen3_moe", "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text", "kimi_k25": "kimi_k2", "kimi_k3": "kimi_linear",
    "deepseek_ref": "deepseek_v4", "minimax_m3_vl": "minimax_m3", "step3p7": "step3p5", "mimo_v2": "mimo_v2_flash",
}  # fmt: skip

# Families whose cache vLLM keeps in FP8 where `auto` is asked for.
FP8_CACHE_BY_DEFAULT = {"deepseek_v4"}

FAMILIES: dict[str, Callable[[Fields, int], list[Layer]]] = {
    **dict.fromkeys(STANDARD, standard_layers), **VARIANTS, **SPARSE, **HYBRIDS,
}  # fmt: skip
