"""One model on one node with one recipe: memory, capacity, and the bounds that no server can beat.

Operations that the served precision cannot speed up count at that precision's peak. A matrix runs at the FP8 peak where
weights and activations have 8 bits, and at the FP4 peak where both have 4 and the chip has FP4 units; weights alone in
4 bits are expanded to BF16 before the product. Attention runs at the FP8 peak only for GQA over an FP8 cache, which
vLLM's kernels may compute in FP8. MLA prefill expands the latent to BF16 heads first, so its bound is the BF16 peak
even over an FP8 cache.
"""

from dataclasses import dataclass, replace
from math import ceil

from packaging.version import InvalidVersion, Version

from longctx.errors import ConfigError
from longctx.model.geometry import Geometry
from longctx.model.kv_format import BOUNDARY_LAYERS, KvFormat
from longctx.model.layers import Layer
from longctx.plan import vllm_rules
from longctx.plan.hardware import Hardware, Parallelism
from longctx.plan.kv_cache import memory
from longctx.plan.kv_cache.kv_groups import CachePool, group_layers
from longctx.plan.kv_cache.memory import Memory
from longctx.units import GIB

# Besides weights and KV: context, communication buffers and CUDA graphs, then activations of one prefill chunk. The
# factor counts the copies of the widest layer that live at once. Both set on one H200 probe (measured: 4.9 GiB with a
# 16,384-token chunk, planned: 5.3 GiB), so the plan errs towards less capacity.
FIXED_WORKSPACE_BYTES = 5 * 2**29
ACTIVATION_COPIES = 4
AITER_64BIT = "0.1.19.post2"  # first release whose decode kernel addresses the KV cache with 64 bits
AITER_32BIT_TOKENS = 2**24


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a recipe and campaign that the plan needs.

    headroom_tokens: max_model_len - prompt length; new tokens count in it. batched_tokens: one prefill chunk.
    cpu_kv_gib: VLLM_CPU_KVCACHE_SPACE of a CPU server (hardware None). scope: how long a server lives ('point',
    'pass' or 'campaign'). vllm_version: the recipe's, None for the newest known one. env: the server's variables.
    is_external: somebody else started the server, so without `hardware` nothing is known of its machine.
    """

    kv_dtype: str = "auto"
    gpu_memory_utilization: float | None = None
    batched_tokens: int | None = None
    max_new_tokens: int = 128
    headroom_tokens: int = 16384
    cpu_kv_gib: float | None = None
    aiter_version: str | None = None
    passes: int = 1
    scope: str = "point"
    vllm_version: str | None = None
    prefix_caching: bool = False
    env: tuple[tuple[str, str], ...] = ()
    is_external: bool = False


@dataclass(frozen=True, slots=True)
class System:
    """A model, the node (None: a CPU, or unknown), the split, the recipe; ConfigError for a split that vLLM refuses."""

    geometry: Geometry
    hardware: Hardware | None
    parallelism: Parallelism
    settings: Settings

    def __post_init__(self) -> None:
        split, node = self.parallelism, self.hardware
        vllm_rules.check_split(self.geometry, split)
        if node is not None and split.gpus > node.count:
            raise ConfigError(f"hardware.count: {split.label} needs {split.gpus} GPUs and there are {node.count}")

    @property
    def gpus(self) -> Hardware:
        """Return the hardware; ConfigError on a CPU, whose peaks are not known."""
        if self.hardware is None:
            raise ConfigError("hardware: missing; a bound needs a GPU of resources/hardware/gpus.csv")
        return self.hardware

    @property
    def kv_format(self) -> KvFormat:
        """Return how a token is cached."""
        return self.geometry.kv_format(self.settings.kv_dtype)

    @property
    def stages(self) -> list[list[Layer]]:
        partition = dict(self.settings.env).get(memory.PARTITION)
        return memory.pipeline_stages(self.geometry, self.parallelism.pipeline, partition)

    def with_kv_dtype(self, kv_dtype: str) -> "System":
        return replace(self, settings=replace(self.settings, kv_dtype=kv_dtype))

    def is_same_setup(self, other: "System") -> bool:
        """Return whether both have the same layers on as many of the same GPUs, split alike (replicas may differ)."""
        nodes = [(system.gpus.name, system.gpus.count) for system in (self, other)]
        split = replace(other.parallelism, data=self.parallelism.data)
        return nodes[0] == nodes[1] and split == self.parallelism and other.geometry.layers == self.geometry.layers

    def ttft_bound_s(self, tokens: int) -> float:
        """Return seconds: attention FLOPs over their peak plus linear FLOPs over theirs, on all ranks of one replica.

        Communication, memory traffic, sampling and pipeline bubbles are left out: it is a bound, not a forecast.
        """
        geometry, peaks = self.geometry, self.gpus.peak_flops
        attention_peak = peaks["fp8" if self.kv_format.is_fp8 and not geometry.is_mla else "bf16"]
        linear = (flops / peaks[products] for products, flops in geometry.linear_flops(tokens).items())
        seconds = geometry.attention_flops(tokens) / attention_peak + sum(linear)
        seconds += geometry.index_flops(tokens) / peaks["fp8"]
        split = self.parallelism
        return seconds / (split.tensor * split.pipeline * split.prefill_context)

    def attention_work(self, tokens: int) -> float:
        """Return the FLOPs of a prefill's attention, indexers included: how its time grows beside the linear part."""
        return self.geometry.attention_flops(tokens) + self.geometry.index_flops(tokens)

    def decode_bound_tok_s(self, context: int) -> float:
        """Return tokens/s of one sequence: HBM bandwidth over the bytes that one rank moves for a token.

        Active weights are sharded by TP; the cache as `kv_bytes_per_rank` has it, of sparse attention what is selected
        and all index keys; states are read and written.
        Pipeline stages work one after the other, so PP does not shorten a token.
        """
        one_stage = replace(self, parallelism=replace(self.parallelism, pipeline=1, data=1))
        moved = self.geometry.active_weight_bytes / self.parallelism.tensor + one_stage.kv_bytes_per_rank(
            context, read=True
        )
        return self.gpus.hbm_bytes_per_s / (moved + 2 * one_stage.state_bytes_per_rank)

    def _layer_formats(self) -> list[list[KvFormat]]:
        """Return the format of each stage's layers: packed ones leave the model's ends in its own dtype.

        They do so in models without constant states (TurboQuantConfig.get_boundary_skip_layers).
        """
        kv, count, plain = self.kv_format, self.geometry.layer_count, self.geometry.model_kv_format
        formats = [kv] * count
        if kv.packed and not any(layer.state for layer in self.geometry.layers):
            ends = min(BOUNDARY_LAYERS, count // 2)
            formats = [plain] * ends + [kv] * (count - 2 * ends) + [plain] * ends
        following = iter(formats)
        return [[next(following) for _ in stage] for stage in self.stages]

    def kv_bytes_per_rank(self, tokens: int, *, read: bool = False) -> int:
        """Return the unpadded cache bytes of `tokens` on the fullest rank, or those that a decode step reads."""
        return max(
            sum(memory.layer_kv_bytes(y, self.parallelism, tokens, kv, read=read) for y, kv in zip(*stage, strict=True))
            for stage in zip(self.stages, self._layer_formats(), strict=True)
        )

    @property
    def state_bytes_per_rank(self) -> int:
        """Return the constant states' bytes on the fullest rank, without padding."""
        return max(sum(memory.states_bytes(stage, self.parallelism.tensor)) for stage in self.stages)

    @property
    def weight_bytes_per_rank(self) -> int:
        """Return the weights on the fullest rank."""
        return max(self.stage_weight_bytes)

    @property
    def stage_weight_bytes(self) -> list[int]:
        """Return a rank's weights in each stage: matrices sharded, norms, routers and MLA down projections copied."""
        geometry, tensor = self.geometry, self.parallelism.tensor
        table_per_rank = geometry.embedding_parameters * geometry.dtype_bytes / tensor

        def on_rank(layer: Layer) -> float:
            stored = geometry.stored(layer)
            return (stored.total_bytes - stored.copied_bytes) / tensor + stored.copied_bytes

        totals = [sum(map(on_rank, stage), 0.0) for stage in self.stages]
        totals[0] += table_per_rank
        if self.parallelism.pipeline > 1 or geometry.head_parameters:
            totals[-1] += geometry.head_bytes / tensor if geometry.head_parameters else table_per_rank
        return list(map(ceil, totals))

    @property
    def vllm_version(self) -> Version:
        """Return the vLLM version whose rules hold."""
        return vllm_rules.vllm_version(self.settings.vllm_version)

    @property
    def start_problem(self) -> str | None:
        """Return why vLLM does not start this split of this model, or None."""
        problem = vllm_rules.start_problem(self.geometry, self.parallelism, self.vllm_version)
        if problem or self.hardware is not None or self.settings.is_external:
            return problem
        return vllm_rules.cpu_problem(self.geometry, self.parallelism, self.kv_format)

    @property
    def batched_tokens(self) -> int:
        """Return the tokens of one prefill chunk: the recipe's, else vLLM's default (engine/arg_utils.py)."""
        split, node = self.parallelism, self.hardware
        if self.settings.batched_tokens:
            return self.settings.batched_tokens
        if node is None:
            return 2048 * split.tensor * split.pipeline
        if node.hbm_bytes >= 160 * GIB:
            return 16384
        return 8192 if node.hbm_bytes >= 70 * GIB and "a100" not in node.name.lower() else 2048

    @property
    def in_flight_tokens(self) -> int:
        """Return the tokens that may be scheduled and not yet freed: a chunk for each stage, on GPUs one more.

        On GPUs vLLM schedules the next step before the last one has ended (async scheduling; VllmConfig's
        max_concurrent_batches with model runner V2).
        """
        steps = self.parallelism.pipeline + (self.hardware is not None)
        return steps * self.batched_tokens

    @property
    def block_tokens(self) -> int:
        """Return vLLM's block size in tokens; in hybrid models the smallest whose page holds a layer's state."""
        sizes = (memory.CPU_BLOCK_TOKENS, memory.CPU_MLA_BLOCK_TOKENS)
        if self.hardware is not None:
            sizes = (memory.BLOCK_TOKENS, memory.MLA_BLOCK_TOKENS)
        kernel = sizes[self.geometry.is_mla]
        if any(layer.state for layer in self.geometry.layers):
            kernel = vllm_rules.hybrid_page_tokens(self.geometry, kernel, self.vllm_version)
        return memory.block_tokens(self.geometry, self.parallelism.tensor, self.kv_format, kernel)

    @property
    def cache_pool(self) -> CachePool:
        """Return the groups of the model's caches on one rank of each stage.

        A state takes a second page where prefix caching keeps the last block's. Chunked layers beside full ones get
        pages for all tokens, unless the server's environment allows them groups of their own (config/vllm.py).
        """
        tensor, page_tokens = self.parallelism.tensor, self.block_tokens
        state_pages = 2 if self.settings.prefix_caching else 1
        stages = [
            [page for y, kv in zip(*stage, strict=True)
             for page in memory.cache_pages(y, tensor, kv, page_tokens, state_pages)]
            for stage in zip(self.stages, self._layer_formats(), strict=True)
        ]  # fmt: skip
        kinds = {page.kind for stage in stages for page in stage}
        if {"full", "chunk"} <= kinds and dict(self.settings.env).get(vllm_rules.CHUNKED_GROUPS) != "1":
            stages = [[replace(p, kind="full", span=0) if p.kind == "chunk" else p for p in s] for s in stages]
        return CachePool(group_layers(stages), self.in_flight_tokens, self.parallelism.decode_context)

    def memory(self) -> Memory | None:
        """Return the fullest rank's budget: the KV cache has what weights and workspace leave; None if not known."""
        budgets = self._stage_memory()
        return min(budgets, key=lambda budget: budget.kv) if budgets else None

    def _stage_memory(self) -> list[Memory] | None:
        """Return the budget of a rank of each stage; None on a CPU of unknown cache."""
        if self.hardware is None:
            cpu_kv_gib = self.settings.cpu_kv_gib
            return None if cpu_kv_gib is None else [Memory(int(cpu_kv_gib * GIB))] * self.parallelism.pipeline
        share, geometry = self.settings.gpu_memory_utilization, self.geometry
        share = vllm_rules.default_utilization(self.vllm_version) if share is None else share
        usable = int(self.hardware.hbm_bytes * share)
        widest = max(max(y.mixer.width, y.ffn.width) for y in geometry.layers) / self.parallelism.tensor
        elements = ACTIVATION_COPIES * self.batched_tokens * (widest + 2 * geometry.hidden_size)
        workspace = FIXED_WORKSPACE_BYTES + ceil(elements * geometry.dtype_bytes)
        return [Memory(usable - size - workspace, size, workspace) for size in self.stage_weight_bytes]

    def capacity_tokens(self, kv_bytes: int | None = None) -> int | None:
        """Return the tokens of the longest single sequence; None: not known, or not limited by the KV cache.

        Prompt, new tokens and headroom all count. The weakest pipeline stage decides. `kv_bytes` of KV cache per rank
        replace those of the budget.
        """
        if kv_bytes is not None:
            return self.cache_pool.longest_sequence([kv_bytes] * self.parallelism.pipeline)
        budgets = self._stage_memory()
        return self.cache_pool.longest_sequence([budget.kv for budget in budgets]) if budgets else None

    def kv_shortage(self, length: int) -> tuple[int, int]:
        """Return the bytes of KV cache that a prompt needs per rank, and those there are, in the stage that lacks most.

        The null block and vLLM's padding are part of the need.
        """
        needs, budgets = self.cache_pool.needed_bytes(self.needed_tokens(length)), self._stage_memory() or ()
        return max(((need, b.kv) for need, b in zip(needs, budgets, strict=True)), key=lambda pair: pair[0] - pair[1])

    def needed_tokens(self, length: int) -> int:
        """Return the tokens that the cache must hold for a prompt: 1024 in and 16 out need at least 1040."""
        return length + max(self.settings.headroom_tokens, self.settings.max_new_tokens)

    def holds(self, length: int) -> bool:
        """Return whether a prompt of `length` tokens fits with its headroom."""
        capacity = self.capacity_tokens()
        return capacity is None or capacity >= self.needed_tokens(length)

    def max_context(self) -> int | None:
        """Return the longest prompt that fits with its headroom, 0 where none does, None where nothing limits it."""
        capacity = self.capacity_tokens()
        return None if capacity is None else max(0, capacity - self.needed_tokens(0))

    def aiter_problem(self, length: int) -> str | None:
        """Return why this length may not run on ROCm with the recipe's AITER, or None."""
        tokens = length + self.settings.max_new_tokens
        if self.hardware is None or self.hardware.vendor != "amd" or tokens <= AITER_32BIT_TOKENS:
            return None
        need = f"beyond 2^24 tokens ROCm needs AITER v{AITER_64BIT} or newer (64-bit KV addresses)"
        declared = self.settings.aiter_version
        if declared is None:
            return f"{need}, and the recipe names no version: set serve.aiter_version to the installed release"
        try:
            good = Version(declared.removeprefix(">=").removeprefix("==")) >= Version(AITER_64BIT)
        except InvalidVersion:
            return f"{need}, and serve.aiter_version: {declared!r} is not a version"
        return None if good else f"{need}, and the recipe has {declared}: install the newer release"
