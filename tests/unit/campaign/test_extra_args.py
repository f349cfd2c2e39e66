"""Arguments that a field sets are refused in every spelling that vLLM takes; all others pass."""

from pathlib import Path

import pytest
from longctx.campaign.extra_args import ALIASES, FIELDS, OURS, faults
from longctx.errors import ConfigError
from shipped import ROOT, read_campaign


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["--tensor-parallel-size", "2"], "serve.tensor_parallel_size"),
        (["--tensor_parallel_size=2"], "serve.tensor_parallel_size"),
        (["-tp", "2"], "serve.tensor_parallel_size"),
        (["-tp=2"], "serve.tensor_parallel_size"),
        (["--tensor-par", "2"], "serve.tensor_parallel_size"),
        (["-pp", "2"], "serve.pipeline_parallel_size"),
        (["-dp", "2"], "serve.data_parallel_size"),
        (["-dcp", "2"], "serve.decode_context_parallel_size"),
        (["--seed", "1", "-pcp", "2"], "serve.prefill_context_parallel_size"),
        (["--prefill_context_parallel_size", "2"], "serve.prefill_context_parallel_size"),
        (["--no-enable-prefix-caching"], "serve.prefix_caching"),
        (["--enable_prefix_caching"], "serve.prefix_caching"),
        (["--no-trust-remote-code"], "model.trust_remote_code"),
        (["--kv-cache-dtype=nvfp4"], "serve.kv_cache_dtype"),
        (["--compilation-config", '{"cudagraph_mode": "NONE"}'], "serve.cudagraph_mode"),
        (["--compilation_config={\"cudagraph_mode\": \"NONE\"}"], "serve.cudagraph_mode"),
        (["-cc.cudagraph_mode=NONE"], "serve.cudagraph_mode"),
        (["--compilation-config.cudagraph_mode", "NONE"], "serve.cudagraph_mode"),
        (["-ac.backend", "FLASHMLA"], "serve.attention_backend"),
        (["--attention-config", '{"backend": "FLASHMLA"}'], "serve.attention_backend"),
        (["--device-memory-utilization", "0.5"], "serve.gpu_memory_utilization"),
        (["--max-model-len", "-1"], "serve.headroom_tokens"),
    ],
)  # fmt: skip
def test_a_flag_with_a_field_is_refused_with_its_name(words: list[str], field: str) -> None:
    (fault,) = faults(words)
    assert fault.endswith(f"write {field} instead")


@pytest.mark.parametrize(
    "words", [["--host", "::"], ["--port=80"], ["--served_model_name", "x"], ["--config", "a.yaml"]]
)
def test_what_the_pipeline_sets_is_refused(words: list[str]) -> None:
    (fault,) = faults(words)
    assert fault.startswith(f"serve.extra_args.0: {words[0]!r} is not possible; ")


@pytest.mark.parametrize(
    "words",
    [
        ["--seed", "1"], ["--nnodes", "2", "--node-rank", "0", "--distributed-executor-backend", "mp"],
        ["--compilation-config", '{"level": 0}'], ["-cc.pass_config.fuse_norm_quant=true"], ["--block-size=32"],
        ["--data-parallel-size-local", "1"], ["--kv-cache-dtype-skip-layers", "0"], ["--hf-overrides", "{}"],
        ["--attention-config.flash_attn_version", "3"], ["--model-impl", "vllm"], ["null"], [],
    ],
)  # fmt: skip
def test_other_flags_pass(words: list[str]) -> None:
    assert list(faults(words)) == []


@pytest.mark.parametrize("version", ["0.25.1", "0.32.0"])
def test_the_flags_are_vllms(version: str) -> None:
    known = set((ROOT / f"tests/data/server_logs/{version}-flags.txt").read_text().split())
    ours = {flag.partition(".")[0] for flag in (*FIELDS, *OURS, *ALIASES.values())}
    assert ours <= known
    aliases = {*ALIASES, *(flag.replace("--", "--no-", 1) for flag in ours)}
    refused = {flag for flag in known if list(faults([flag])) and not flag.endswith("-")}
    assert refused <= ours | aliases, "nothing else is taken for one of them"


def test_a_campaign_with_such_a_flag_does_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    over = tmp_path / "over.yaml"
    over.write_text("serve: {extra_args: [--seed, '1', -pcp, '2']}\n")
    with pytest.raises(ConfigError, match=r"serve\.extra_args\.2: '-pcp' has a field .* serve\.prefill_context"):
        read_campaign(over)
