"""The keys of a configuration: type, bounds, default, unit and meaning of each (a long one stands below its key).

workflow/schemas/config.schema.yaml is made from here by tests/makeschema.py.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from longctx.campaign.config_types import (
    AS_WRITTEN,
    LadderEnd,
    Length,
    Lengths,
    Section,
    Texts,
    Variables,
    first_mistake,
)
from longctx.errors import ConfigError
from longctx.lengths import ladder, parse_length
from longctx.storage.schemas import ModeName

KvCacheDtype = Literal[
    "auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla", "nvfp4_ds_mla",
    "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc", "ultraquant_4bit",
    "int4_per_token_head", "int8_per_token_head", "fp8_per_token_head", "nvfp4", "nvfp4_4over6",
]  # of vLLM 0.32 (config/cache.py)  # fmt: skip
CudagraphMode = Literal["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]
Number = Annotated[float, *AS_WRITTEN]
NonNegative = Annotated[float, Field(ge=0), *AS_WRITTEN]
Positive = Annotated[float, Field(gt=0), *AS_WRITTEN]
Share = Annotated[float, Field(gt=0, le=1), *AS_WRITTEN]


class RepeatsConfig(Section):
    """Cold requests per length and pass, each with its own prompt."""

    count: int = Field(1, ge=1, le=16, description="Requests per length and pass.")
    up_to: Length = Field("64Ki", description="Longer lengths get one request, in tokens.")


class ModeConfig(Section):
    """The ladder of a mode other than cold prompts."""

    lengths: Lengths = Field((), description="Its own lengths; default: those of the campaign.")
    from_: LadderEnd = Field(None, alias="from", description="First length of its own ladder.")
    to: LadderEnd = Field(None, description="Last length of its own ladder.")
    passes: int | None = Field(None, ge=1, description="Its own number of passes; null = the campaign's.")


class DecodeOnlyConfig(ModeConfig):
    """The decode_only mode."""

    fill_mean: Number | None = None
    """Mean of the values that fill the KV cache; null = 0 with weights: random, else 0.015 (vLLM's default)."""
    fill_std: NonNegative | None = None
    """Their standard deviation; null = 1 with weights: random, as their keys and values have, else 0."""


class ReuseConfig(ModeConfig):
    """The reuse mode."""

    queries: int = Field(4, ge=1, le=64, description="Different queries behind each resident prefix.")
    suffix_tokens: int = Field(64, ge=1, description="New tokens of each query.")


class SampledConfig(ModeConfig):
    """The sampled mode: single chunks behind prefixes that a KV connector claims."""

    repeats: int = Field(1, ge=1, le=16, description="Pairs of samples per length and pass.")
    whole: tuple[Length, ...] = Field(
        (), strict=False, description="Lengths of its ladder whose whole prompt is prefilled too, as a check."
    )
    whole_passes: int = Field(1, ge=1, description="In how many of its passes whole prompts are prefilled.")
    fill_mean: Number | None = Field(
        None,
        description="Mean of the values that fill the claimed part of the KV cache; null = 0 with weights: random, else"
        " not filled: it holds zeros, or what earlier requests left there. Zeros let a GPU clock higher.",
    )
    fill_std: NonNegative | None = Field(
        None, description="Their standard deviation; null = 1 with weights: random, else 0."
    )


class ModelConfig(Section):
    """What is served."""

    source: str = Field(min_length=1, description="'synthetic' (made here, random weights), folder or Hugging Face id.")
    revision: str | None = Field(None, description="Commit of the Hugging Face repository.")
    trust_remote_code: bool = Field(False, description="Run the repository's own code; needs `revision`.")
    weights: Literal["real", "random", "dummy"] = "real"
    """'real'; 'random' = drawn at the server's start with the spread of trained ones; 'dummy' = vLLM's, near zero,
    which flatter a mixture of experts. The last two need no checkpoint and are labelled synthetic."""
    geometry: str | None = Field(
        None,
        description="For source 'synthetic': a config.json whose geometry is served with random weights; null = the"
        " tiny Llama below. For another source: the config.json that the plan reads where it doesn't understand the"
        " model's own.",
    )
    hidden_size: int = Field(128, ge=8, description="Tiny Llama only.")
    layers: int = Field(2, ge=1, description="Tiny Llama only.")
    heads: int = Field(2, ge=1, description="Tiny Llama only.")
    kv_heads: int = Field(1, ge=1, description="Tiny Llama only.")
    vocabulary: int = Field(4096, ge=300, description="Tiny Llama only: tokens of its tokenizer, made from the corpus.")


class ServeConfig(Section):
    """The server's recipe; every key except python, start_timeout_s and contract is part of the recipe's identity."""

    scope: Literal["point", "pass", "campaign"] = Field(
        "point",
        description="How long one server lives. point = a fresh one per length and pass (the published protocol);"
        " pass = one climbs the ladder; campaign = one for all passes.",
    )
    python: str = Field("python3", description="Python that has vLLM (launcher local); not part of the identity.")
    env: Variables = Field({}, description="Environment variables of the server.")
    tensor_parallel_size: int = Field(1, ge=1, description="Ranks that share each layer.")
    pipeline_parallel_size: int = Field(1, ge=1, description="Stages that split the layers.")
    data_parallel_size: int = Field(1, ge=1, description="Independent replicas.")
    decode_context_parallel_size: int = Field(1, ge=1, description="Ranks that share one sequence's KV cache.")
    prefill_context_parallel_size: int = Field(
        1, ge=1, exclude_if=lambda ranks: ranks == 1, description="Ranks that share the prefill of one chunk."
    )
    kv_cache_dtype: KvCacheDtype = Field("auto", description="KV cache precision as vLLM names it.")
    attention_backend: str | None = Field(None, description="vLLM attention backend; null = its choice.")
    cudagraph_mode: CudagraphMode | None = Field(None, description="vLLM CUDA graph mode; null = its choice.")
    custom_all_reduce: bool = Field(True, description="vLLM's own all-reduce between GPUs.")
    gpu_memory_utilization: Share | None = Field(None, description="Share of GPU memory for vLLM; null = its default.")
    cpu_kv_cache_gib: int | None = Field(None, ge=1, description="KV cache of a CPU server, whole GiB; null on GPUs.")
    max_num_seqs: int = Field(1, ge=1, description="Sequences the scheduler runs together.")
    max_num_batched_tokens: int | None = Field(None, ge=1, description="Prefill chunk, tokens; null = vLLM's choice.")
    enforce_eager: bool = Field(False, description="No compilation and no CUDA graphs.")
    prefix_caching: bool = False
    """Keep prefixes between requests; off = cold prefills. Mode reuse and checkpoints turn it on."""
    headroom_tokens: int = Field(16384, ge=1, description="max_model_len = length + this.")
    aiter_version: str | None = Field(None, description="ROCm: AITER release; the plan checks it beyond 2^24 tokens.")
    vllm_version: str | None = Field(None, description="Required vLLM version; null = any.")
    extra_args: Texts = Field((), description="Further vLLM arguments.")
    start_timeout_s: Positive = Field(1800, description="A server not ready by then has failed, s.")
    contract: Literal["fail", "warn"] = Field(
        "fail",
        description="What a server that runs with other settings than asked does to its point: 'fail' before it costs"
        " hours, or 'warn'.",
    )


class ContainerConfig(Section):
    """Launcher container."""

    engine: Literal["podman", "docker", "apptainer"] | None = None
    """null = the first found of podman, docker, apptainer."""
    image: str | None = Field(None, description="Image name with tag or digest, or an apptainer .sif.")
    containerfile: str | None = Field(None, description="Made into `image` by `snakemake image`; null = it exists.")
    build_args: dict[str, str] = Field({}, description="Build arguments.")
    python: str = Field("python3", description="Python inside the image.")
    runtime: str | None = Field(None, description="OCI runtime such as runc; null = the engine's.")
    devices: Texts = Field((), description='Device nodes, or "all" for every NVIDIA GPU.')
    network: str = Field("host", description="Container network.")
    ipc: str | None = Field("host", description="IPC namespace.")
    shm_size: str | None = Field(None, description="Size of /dev/shm, such as 64g.")
    ulimits: Texts = Field((), description="Limits such as nofile=65536:65536.")
    mounts: Texts = Field((), description="Host folders as source:target[:ro].")
    pass_env: Texts = ("HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE")
    """Variables passed by name, never by value."""
    extra_args: Texts = Field((), description="Further arguments of `run`.")


class ExternalConfig(Section):
    """Launcher external."""

    url: str | None = Field(None, pattern="^https?://", description="Base address without /v1.")
    model: str | None = Field(None, description="Model id to ask for; null = the only one served.")
    api_key_env: str | None = Field(None, description="Name of the environment variable that holds the API key.")


Launcher = ServeConfig | ContainerConfig | ExternalConfig  # who starts the server


class HardwareConfig(Section):
    """What the plan computes with; null = no hardware limits (CPU)."""

    gpu: str = Field(description="A name of resources/hardware/gpus.csv.")
    count: int = Field(1, ge=1, description="GPUs of the server.")
    usd_per_gpu_hour: Positive | None = Field(None, description="Price, $; null = no cost tables.")


class CorpusConfig(Section):
    """The text that prompts are made of."""

    source: str = "packages"
    """'packages' (pinned Python packages, the same on every machine), 'stdlib' (this Python's library, other prompts
    with each Python), a folder of source trees, or a manifest .yaml."""
    folder: str = Field("corpus", description="Where a manifest's repositories lie.")


class PromptConfig(Section):
    """The shape of a prompt."""

    shape: str = Field("report", description="A folder with system.txt and task.txt; built in: 'report' and 'plain'.")
    salt: str | None = Field(
        None,
        exclude_if=lambda salt: salt is None,
        description="Text that changes the first tokens of every prompt, so that no server has it cached. null = a"
        " fresh one for each campaign on an external server, else none; '' = none.",
    )


class MeasureConfig(Section):
    """The protocol; stall_s, blind_stall_s and retry_doubtful are not part of a recipe's identity."""

    warmup_max: int = Field(8, ge=3, le=15, description="Small warm-up requests at most, until they are steady.")
    retry_doubtful: int = Field(1, ge=0, description="How often a doubtful request is repeated.")
    clock_tolerance: Positive = Field(0.15, description="Largest relative difference of client and server clocks.")
    stall_s: Positive = Field(900, description="No growth in tokens and no engine step for so long is a failure, s.")
    blind_stall_s: Positive | None = Field(
        None,
        description="The same for a server without metrics, where only tokens show life, s; null = 4 × stall_s. Never"
        " less than 4 × the planned TTFT.",
    )


class CheckpointConfig(Section):
    """Prefill checkpoints on disk (GPU only); null = none."""

    dir: str = Field(min_length=1, description="A folder on a fast local disk.")
    cpu_gib: Positive = Field(8, description="CPU memory between GPU and disk, GiB.")


class CampaignConfig(Section):
    """A ladder of context lengths, climbed several times, on one model, server recipe and hardware."""

    name: str = Field("default", pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Results go to results/<name>/; 'default' means results/ itself."""
    lengths: Lengths = Field((), description="Prompt lengths in tokens, used unless `from` and `to` are given.")
    from_: LadderEnd = Field(None, alias="from")
    """First length of a ladder of doublings up to `to`. Wins over `lengths`."""
    to: LadderEnd = Field(None, description="Last length of the ladder, included.")
    passes: int = Field(3, ge=1, description="How often the whole ladder is climbed; each pass is cold.")
    repeats: RepeatsConfig = Field(default_factory=RepeatsConfig)
    modes: tuple[Annotated[ModeName, Field(strict=False)], ...] = Field(
        (ModeName.PREFILL,),
        strict=False,
        min_length=1,
        description="What is measured. prefill = cold prompts; reuse = queries behind a resident prefix;"
        " decode_only = filled KV cache, no prefill; sampled = TTFT estimated from a few chunks of each length.",
    )
    max_new_tokens: int = Field(128, ge=1)
    """Tokens decoded per request; decode throughput is taken over them."""
    decode_only: DecodeOnlyConfig = Field(default_factory=DecodeOnlyConfig)
    reuse: ReuseConfig = Field(default_factory=ReuseConfig)
    # Left out of what is saved where nothing of it is set: older configurations keep their hashes.
    sampled: SampledConfig = Field(default_factory=SampledConfig, exclude_if=lambda section: section == SampledConfig())
    model: ModelConfig
    launcher: Literal["local", "container", "external"] = Field(
        "local",
        description="Who runs the server. local = a process here; container = podman, docker or apptainer;"
        " external = already running elsewhere.",
    )
    serve: ServeConfig = Field(default_factory=ServeConfig)
    container: ContainerConfig = Field(default_factory=ContainerConfig)
    external: ExternalConfig = Field(default_factory=ExternalConfig)
    hardware: HardwareConfig | None = None
    corpus: CorpusConfig = Field(default_factory=CorpusConfig)
    prompt: PromptConfig = Field(default_factory=PromptConfig)
    measure: MeasureConfig = Field(default_factory=MeasureConfig)
    checkpoint: CheckpointConfig | None = None
    compare: Texts = Field((), description="Other runs drawn beside this one, summary.parquet or a published .csv.")
    compare_threshold: Positive = 0.03
    """Slowdown, as a share, that `snakemake compare` rejects when significant (docs/compare.md)."""

    @field_validator("modes")
    @classmethod
    def _check_modes_differ(cls, modes: tuple[ModeName, ...]) -> tuple[ModeName, ...]:
        if len(set(modes)) < len(modes):
            raise PydanticCustomError("duplicate", "names a mode twice")
        return modes


def parse_config(config: Mapping[str, Any]) -> CampaignConfig:
    """Return the typed configuration with every default; ConfigError for the first thing that the schema refuses."""
    try:
        return CampaignConfig.model_validate(dict(config))
    except ValidationError as error:
        raise ConfigError(first_mistake(error, CampaignConfig)) from None


def configured_lengths(section: CampaignConfig | ModeConfig, path: str) -> list[int]:
    """Return a section's lengths in tokens, ascending; [] where it has none. `path` is its path with the dot."""
    if section.from_ is None and section.to is None:
        return sorted({parse_length(length) for length in section.lengths})
    if section.from_ is None or section.to is None:
        missing = "to" if section.to is None else "from"
        raise ConfigError(f"config key {path}{missing}: missing; from and to go together")
    try:
        return ladder(section.from_, section.to)
    except ConfigError as error:
        raise ConfigError(f"config keys {path}from and {path}to: {error}") from error
