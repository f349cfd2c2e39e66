"""The facts that a server reports in its log, its metrics, /version and /v1/models. Texts of vLLM 0.25.1 and 0.32.

A reader returns only what it has read. A fact that is not reported is absent (None in the report), never guessed.
"""

import contextlib
import json
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from longctx.redaction import printable
from longctx.serve.http import client, get
from longctx.serve.metrics import Snapshot, scrape
from longctx.serve.root_cause import clean
from longctx.storage.schemas import SERVER_FACTS

LONGEST = 500  # characters of a text in a fact
LARGEST = 1 << 53
JIT = re.compile(
    r"JIT compilation during inference|autotun\w+ during inference|Compiling a graph for|torch\.compile took"
    r"|Graph capturing finished|Capturing CUDA graphs|Autotuning process"
    r"|Autotuning kernel \w|Triton autotuning for function"
    r"|(?:start|finish) build \[|oading JIT ops|TileLang \w+ to compile kernel"  # AITER, FlashInfer, TileLang
)
KV_LIMIT = (
    re.compile(r"larger than the maximum number of tokens that can be stored in (?:the )?KV cache \(([\d,]+)\)"),
    re.compile(r"larger than the available KV cache memory.*?estimated maximum model length is ([\d,]+)"),
    re.compile(r"larger than the available KV cache memory()|No available memory for the cache blocks()"),
)
CONFIG = r"V1 LLM engine \(v[\w.+]+\) with config: .*?\b"  # the line that most settings stand in, as a=1, b=…
ARGUMENTS = r"non-default args: \{.*?"
PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "decode_context_parallel_size")
SAME_NAME = (*PARALLEL, "load_format", "enforce_eager", "disable_custom_all_reduce", "dtype", "device_config")
# What stands for a fact in a log: of the first pattern that is found, its last match counts.
LOG_FACTS: dict[str, tuple[str, ...]] = {name: (rf"{CONFIG}{name}=(?:torch\.)?([^,)\s]+)",) for name in SAME_NAME} | {
    "vllm_version": (r"V1 LLM engine \(v([\w.+]+)\)", r"█  version ([\w.+]+)"),
    "attention_backend": (
        r"Using (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]+)(?: attention)? backend\b(?! for)",
        r"Overriding with ([A-Z][A-Z0-9_]+) out of potential backends",
    ),
    "prefill_backend": (r"Using ([A-Z][A-Z0-9_]+) MLA prefill backend",),
    "kv_cache_dtype": (r"Using (\w+) data type to store kv cache", rf"{CONFIG}kv_cache_dtype=([^,)\s]+)"),
    "block_size": (r"Setting attention block size to (\d+) tokens",),
    "max_model_len": (rf"{CONFIG}max_seq_len=(\d+)",),
    "max_num_seqs": (rf"{ARGUMENTS}'max_num_seqs': (\d+)",),
    "max_num_batched_tokens": (
        r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)",
        rf"{ARGUMENTS}'max_num_batched_tokens': (\d+)",
        rf"{CONFIG}.*'compile_ranges_endpoints': \[(?:\d+, )*(\d+)\]",  # the last range ends at the chunk size
    ),
    "prefix_caching": (rf"{CONFIG}enable_prefix_caching=(True|False)",),
    "cudagraph_mode": (r"setting cudagraph_mode=([A-Z_]+)", rf"{CONFIG}.*'cudagraph_mode': <CUDAGraphMode\.(\w+)"),
    "kv_connector": (r"Creating v1 connector with name: (\w+)",),
}
# Sizes in GiB, one line per rank: of the weights the largest counts, of the KV cache the smallest.
WEIGHTS_GIB = r"Model loading took ([\d.]+) GiB"
KV_GIB = r"Available KV cache memory: ([\d.]+) GiB|Explicitly set \(([\d.]+)/[\d.]+\) GiB for KV cache"
KV_SIZE = r"KV cache size: ([\d,]+) tokens"
CONCURRENCY = r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x"
VERSIONS = (
    "import json, importlib.metadata as m\n"
    "def v(*names): return next((d.version for n in names for d in m.distributions(name=n)), None)\n"
    "print(json.dumps({'torch_version': v('torch'), 'aiter_version': v('amd-aiter', 'aiter')}))"
)


@dataclass(frozen=True, slots=True)
class ServerReport:
    """Facts and, for each, where they were read: 'log', 'metrics', '/version', '/v1/models', 'packages'."""

    values: dict[str, Any]
    sources: dict[str, str]

    def get(self, name: str) -> Any:
        return self.values.get(name)

    def server_facts(self) -> dict[str, Any]:
        """Return a value for each name of schemas.SERVER_FACTS, None where it was not reported."""
        return {name: self.values.get(name) for name in SERVER_FACTS}


def kv_limit(lines: Iterable[str]) -> tuple[bool, int | None]:
    """Return whether max_model_len was refused for lack of KV cache, and the largest length that fits, if logged."""
    text = "\n".join(lines)
    match = next(filter(None, (pattern.search(text) for pattern in KV_LIMIT)), None)
    return match is not None, _number(match[1]) if match else None


def jit_lines(lines: Iterable[str]) -> list[str]:
    """Return the lines about kernels that were compiled, tuned or captured meanwhile."""
    return [clean(line) for line in lines if JIT.search(line) and "monitor activated" not in line]


def read_log(lines: list[str]) -> dict[str, Any]:
    """Return the facts in vLLM's start-up log; of a value that is logged twice, the later one."""
    text = "\n".join(lines)
    found = {name: filter(None, (re.findall(pattern, text) for pattern in LOG_FACTS[name])) for name in LOG_FACTS}
    facts = {name: _value(next(matches, [None])[-1]) for name, matches in found.items()}
    if facts["kv_cache_dtype"] == "auto":
        facts["kv_cache_dtype"] = facts["dtype"] or "auto"
    if facts["device_config"] == "cpu" and facts["attention_backend"] is None:
        facts["attention_backend"] = "CPU_ATTN"  # vLLM's only one there but for MLA, which it logs
    facts["weights_bytes"] = max(_gib(WEIGHTS_GIB, text), default=None)
    facts["kv_cache_bytes"] = min(_gib(KV_GIB, text), default=None)
    return _known(facts | {"kv_capacity_tokens": _logged_capacity(text)})


def read_metrics(snapshot: Snapshot | None, max_model_len: int | None) -> dict[str, Any]:
    """Return the facts in the labels of vllm:cache_config_info; of several engines, the smallest capacity."""
    if snapshot is None or not snapshot.engines:
        return {}
    labels = snapshot.engines[0]
    facts = {
        "kv_capacity_tokens": _labelled_capacity(snapshot.engines, max_model_len),
        "block_size": _number(labels.get("effective_attention_block_size")) or _number(labels.get("block_size")),
        "prefix_caching": _value(labels.get("enable_prefix_caching")),
        "kv_cache_dtype": None if labels.get("cache_dtype") == "auto" else _text(labels.get("cache_dtype")),
    }
    return _known(facts)


def collect(
    url: str, lines: list[str], known: dict[str, Any], probe: list[str] | None = None, api_key: str | None = None
) -> ServerReport:
    """Ask a ready server at `url` (http://host:port) for its facts; `known` are those of launcher and owner."""
    with client(url, api_key) as http:
        model = _listed_model(_json(http, "/v1/models"), known.get("model"))
        version = _json(http, "/version")
    snapshot = scrape(url, api_key=api_key)
    max_model_len = _count(model.get("max_model_len"))
    models = {"max_model_len": max_model_len, "model": _text(model.get("id")), "root": _text(model.get("root"))}
    by_source = {
        "log": read_log(lines),
        "metrics": read_metrics(snapshot, max_model_len) | ({"has_metrics": True} if snapshot else {}),
        "/version": {"vllm_version": _text(version.get("version"))},
        "/v1/models": models,
        "packages": package_versions(probe) if probe else {},
        "launcher": known,
    }
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for source, facts in by_source.items():
        values |= _known(facts)
        sources |= dict.fromkeys(_known(facts), source)
    return ServerReport(values, sources)


def package_versions(probe: list[str]) -> dict[str, Any]:
    """Return the versions of torch and AITER installed beside the server, asked without importing them."""
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
        done = subprocess.run(
            [*probe, "-c", VERSIONS], capture_output=True, encoding="utf-8", errors="replace", timeout=60, check=True
        )
        return dict(json.loads(done.stdout))
    return {}


def _known(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}


def _value(text: str | None) -> Any:
    """Return a logged value as the truth or number that it is."""
    return int(text) if text and text.isdecimal() else {"True": True, "False": False}.get(text or "", text)


def _gib(pattern: str, text: str) -> list[int]:
    """Return each size that a log gives in GiB, in bytes."""
    sizes = (next(filter(None, match.groups())) for match in re.finditer(pattern, text))
    return [round(float(size) * 2**30) for size in sizes]


def _logged_capacity(text: str) -> int | None:
    """Return the KV capacity in tokens that a log tells; its concurrency is rounded to two decimals."""
    sizes, concurrencies = re.findall(KV_SIZE, text), re.findall(CONCURRENCY, text)
    size = _number(sizes[-1]) if sizes else None
    if not concurrencies:
        return size
    length, ratio = _number(concurrencies[-1][0]) or 0, float(concurrencies[-1][1])
    return _capacity(size, ratio, length, rounding=0.005)


def _labelled_capacity(engines: Sequence[Mapping[str, str]], max_model_len: int | None) -> int | None:
    """Return the KV capacity in tokens that the labels of vllm:cache_config_info tell, that of the smallest engine."""
    capacities = []
    for labels in engines:
        size = _number(labels.get("kv_cache_size_tokens"))
        with contextlib.suppress(KeyError, ValueError):
            size = _capacity(size, float(labels["kv_cache_max_concurrency"]), max_model_len or 0)
        capacities.append(size)
    return min(filter(None, capacities), default=None)


def _capacity(size: int | None, concurrency: float, length: int, rounding: float = 0.0) -> int | None:
    """Return the KV capacity in tokens out of a told size, and of how many requests of `length` tokens fit.

    Some versions' size ignores that the layers of hybrid models differ; concurrency times length is always right, but
    rounded. So the size counts only where both agree within a rounding to two decimals.
    """
    if not length or not 0 < concurrency * length < LARGEST:
        return size
    if size is not None and abs(size - concurrency * length) <= 0.006 * length:
        return size
    return int((concurrency - rounding) * length)


def _number(text: str | None) -> int | None:
    digits = (text or "").replace(",", "")
    return _count(int(digits)) if digits.isdecimal() and len(digits) < LONGEST else None


def _count(value: Any) -> int | None:
    """Return a positive whole number that a server sent as such or as text; None for anything else."""
    if isinstance(value, str):
        return _number(value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if number and 0 < value < LARGEST and value % 1 == 0 else None


def _text(value: Any) -> str | None:
    """Return a text that a server sent, fit to be shown; None for anything else."""
    return printable(value)[:LONGEST] if isinstance(value, str) and value else None


def _listed_model(listed: dict[str, Any], name: str | None) -> dict[str, Any]:
    """Return the entry of a model in a list of models, the first one where its name is not in it."""
    models = listed.get("data")
    entries = [model for model in models if isinstance(model, dict)] if isinstance(models, list) else []
    return next((model for model in entries if model.get("id") == name), next(iter(entries), {}))


def _json(http: httpx.Client, path: str) -> dict[str, Any]:
    with contextlib.suppress(httpx.HTTPError, ValueError, RecursionError):
        response = get(http, path)
        answer = response.json() if response.is_success else None
        return answer if isinstance(answer, dict) else {}
    return {}
