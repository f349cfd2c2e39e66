"""Strict access to a config.json: each read names its field, and nothing absent turns into a number.

A field that nobody read is an error if its name suggests a size: the planner would guess that it changes nothing.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from longctx.errors import GeometryError

REQUIRED = object()
Item = TypeVar("Item", int, str)
Value = TypeVar("Value")
_KINDS = {int: "whole numbers", str: "strings"}
# As served: vLLM's dtype 'auto' casts FP32 checkpoints to 16 bits (config/model.py, _resolve_auto_dtype).
_DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 2, "float": 2}
_SIZES = re.compile(
    r"head|layer|dim|rank|size|expert|window|kv_|conv|state|bias|lora|index|mamba|ssm|attn|attention|block|chunk|shared"
    r"|sparse|interval|period|offset|expand|expansion|mtp|mlp|mixer|depth|width|kernel|pattern|group|latent|vocab|tie"
)
_NO_SIZE = re.compile(
    r"_act|activation|dropout|_ids?$|token_index|implementation|multiplier|scaling$|_method$|_type$|_in_fp32$|^scale_"
    r"|^longctx_"
)
# Fields of released configurations that change neither memory nor work, or repeat other fields.
_HARMLESS = {
    "_attn_implementation_autoset", "attn_temperature_tuning", "chunk_size", "dual_chunk_attention_config", "ep_size",
    "expand", "expert_selection_fn", "experts_per_token", "global_attn_every_n_layers", "head_dim",
    "index_share_for_mtp_iteration", "indexer_rope_interleave", "intermediate_size", "layer_switch", "lm_head",
    "mamba_chunk_size", "mamba_expand", "mamba_norm_before_gate", "mamba_use_mlp", "max_model_len", "max_window_layers",
    "mla_use_nope", "mlp_expansion_factor", "mlp_intermediate_size", "moe_shared_expert_overlap",
    "mtp_hybrid_override_pattern", "mtp_layers_block_type", "mtp_transformer_layers", "n_group",
    "no_rope_layer_interval", "no_rope_layers", "num_beam_groups", "num_expert_group", "num_key_value_heads",
    "num_logits_to_keep", "num_query_groups", "qk_head_dim", "query_pre_attn_scalar", "rescale_prenorm_residual",
    "residual_in_fp32", "rotary_dim", "shared_expert_combination_strategy", "shared_moe_mode", "sliding_window_size",
    "time_step_rank", "topk_group", "use_grouped_topk", "use_mamba_kernels", "use_mtp",
}  # fmt: skip


def shortened(value: object) -> str:
    """Return `value` as a message shows it, in at most 60 characters."""
    return repr(value) if len(repr(value)) < 60 else f"{repr(value)[:56]} ..."


@dataclass(frozen=True, slots=True)
class Fields:
    """A config.json's text part; `where` is its path inside the file, `name` the model's name for messages."""

    values: Mapping[str, Any]
    name: str
    where: str = ""
    read: set[str] = field(default_factory=set, compare=False)

    def fail(self, field: str, problem: str, remedy: str) -> GeometryError:
        """Return the error, to be raised, that names model and field."""
        return GeometryError(f"{self.name or 'config.json'}: {self.where}{field} {problem}; {remedy}")

    def count(self, *names: str, default: Any = REQUIRED, at_least: int = 1) -> int:
        """Return the whole number under the first of `names` that is there and not null."""
        value = self.get(*names, default=default)
        if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
            raise self.fail(names[0], f"is {value!r}", f"it must be a whole number of at least {at_least}")
        return value

    def flag(self, name: str, default: Any = REQUIRED) -> bool:
        """Return true or false as the file says, `default` where it says nothing."""
        return self._typed(name, bool, "true or false", default)

    def strings(self, name: str, length: int, *allowed: str) -> list[str]:
        """Return a list of `length` strings, each one of `allowed`."""
        value = self.get(name)
        if not isinstance(value, list) or len(value) != length:
            raise self.fail(name, "is not a list of one entry per layer", f"give {length} entries")
        for entry in value:
            if entry not in allowed:
                raise self.fail(name, f"has the unknown kind {entry!r}", f"known are {', '.join(allowed)}")
        return value

    def text(self, name: str, default: Any = REQUIRED) -> str:
        return self._typed(name, str, "a string", default)

    def _typed(self, name: str, kind: type[Value], wanted: str, default: Any = REQUIRED) -> Value:
        value = self.get(name, default=default)
        if not isinstance(value, kind):
            raise self.fail(name, f"is {value!r}", f"it must be {wanted}")
        return value

    def items(self, name: str, kind: type[Item], default: Any = REQUIRED) -> list[Item]:
        """Return a list whose entries are of one type, int or str."""
        value = self.get(name, default=default)
        if not isinstance(value, list) or not all(type(item) is kind for item in value):
            raise self.fail(name, f"is {value!r}", f"it must be a list of {_KINDS[kind]}")
        return value

    def get(self, *names: str, default: Any = REQUIRED) -> Any:
        """Return the first of `names` that is there and not null, else `default`, else GeometryError."""
        self.read.update(names)
        for name in names:
            if self.values.get(name) is not None:
                return self.values[name]
        if default is REQUIRED:
            raise self.fail(names[0], "is missing", "add it as the model's own config.json has it")
        return default

    def present(self, name: str) -> Any:
        """Return what `name` is, null too; GeometryError if the key is absent, which means another size than null."""
        self.read.add(name)
        if name not in self.values:
            raise self.fail(name, "is missing", "add it as the model's own config.json has it, null included")
        return self.values[name]

    def has(self, name: str) -> bool:
        self.read.add(name)
        return self.values.get(name) is not None

    def is_null(self, *names: str) -> bool:
        """Return whether one of `names` is there and null, and none has a value."""
        self.read.update(names)
        return any(name in self.values for name in names) and all(self.values.get(name) is None for name in names)

    def expect(self, name: str, known: object) -> None:
        """Raise if the field, or an entry of its list, is there and not `known`."""
        value = self.get(name, default=known)
        if any(item != known for item in (value if isinstance(value, list) else [value])):
            raise self.fail(name, f"is {shortened(value)}", f"known is {known!r}")

    def skip(self, *names: str) -> None:
        """Count fields as read that change nothing in this configuration: other fields decide."""
        self.read.update(names)

    def inner(self, name: str) -> "Fields":
        """Return the object under `name` as Fields of its own."""
        return Fields(self._typed(name, dict, "an object"), self.name, f"{self.where}{name}.")

    def refuse(self, name: str, why: str) -> None:
        """Raise if `name` is set: a field that changes the geometry in a way that this planner does not know."""
        self.read.add(name)
        if self.values.get(name):
            raise self.fail(name, f"is {self.values[name]!r}", f"{why}, which the planner does not know")

    def refuse_unread(self, model_type: str) -> None:
        """Raise for a field that no reader of this family read, although its name suggests sizes or layers."""
        for name, value in self.values.items():
            if not value or isinstance(value, float) or name in self.read or name in _HARMLESS:
                continue
            if _SIZES.search(name) and not _NO_SIZE.search(name):
                problem = f"is {shortened(value)}; the planner does not know it in a {model_type}"
                raise self.fail(name, problem, "plan with a copy without it if it changes no size")

    def dtype_bytes(self) -> int:
        """Return the bytes per parameter as served of the model's dtype (`dtype`, formerly `torch_dtype`).

        Without the field vLLM takes the weights' own type, and FP32 where it finds none (get_torch_dtype in
        transformers_utils/model_arch_config_convertor.py): both are served in 16 bits.
        """
        value = str(self.get("dtype", "torch_dtype", default="float32")).removeprefix("torch.")
        if value not in _DTYPE_BYTES:
            raise self.fail("dtype", f"is {value!r}", f"known are {', '.join(_DTYPE_BYTES)}")
        return _DTYPE_BYTES[value]
