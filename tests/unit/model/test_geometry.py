"""Geometry from config.json files, against published and independently counted numbers."""

import json

import pytest
from longctx.errors import ConfigError, GeometryError
from longctx.model.geometry import Geometry
from longctx.model.reader import build_geometry, read_geometry
from longctx.resources import MODELS_DIR

GIB, MIB = 2**30, 2**20

# Counted by instantiating transformers 5.24's classes on the meta device (buffers e_score_correction_bias included).
PARAMETERS = {
    "deepseek-v3": 671_026_419_200,
    "gemma-3-27b": 27_009_346_304,
    "kimi-linear-48b-a3b": 49_122_681_728,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-4-scout": 107_769_861_120,
    "qwen2.5-7b-1m": 7_615_616_512,
    "qwen3-next-80b-a3b": 79_674_391_296,
}
LLAMA = {
    "model_type": "llama", "dtype": "bfloat16", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
}  # fmt: skip
# The same oracle over the class defaults of each family: (config, parameters).
OTHERS = {
    "mixtral": (
        {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
         "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000},
        46_702_792_704,
    ),
    "jamba": (
        {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
         "num_key_value_heads": 8, "num_experts": 16, "num_experts_per_tok": 2, "expert_layer_period": 2,
         "expert_layer_offset": 1, "attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_state": 16,
         "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": "auto", "vocab_size": 65536},
        51_570_323_328,
    ),
    "bamba": (
        {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
         "num_key_value_heads": 8, "attn_layer_indices": [9, 18, 27], "mamba_n_heads": 128, "mamba_n_groups": 1,
         "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2, "vocab_size": 128000},
        9_808_584_064,
    ),
    "gpt_oss": (
        {"hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36, "num_attention_heads": 64,
         "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 128, "num_experts_per_tok": 4,
         "sliding_window": 128, "vocab_size": 201088,
         "layer_types": ["sliding_attention", "full_attention"] * 18},
        116_829_156_672,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def kimi() -> Geometry:
    return read_geometry("kimi-linear-48b-a3b")


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_parameters_equal_the_reference_implementation(name: str) -> None:
    assert read_geometry(name).parameters_total == PARAMETERS[name]


@pytest.mark.parametrize("family", sorted(OTHERS))
def test_parameters_of_other_families(family: str) -> None:
    config, parameters = OTHERS[family]
    assert build_geometry({"model_type": family, "dtype": "bfloat16", **config}).parameters_total == parameters


def test_every_shipped_model_names_its_source() -> None:
    files = list(MODELS_DIR.glob("*.json"))
    assert {f.stem for f in files} == set(PARAMETERS)
    for file in files:
        assert "https://" in json.loads(file.read_text())["longctx_source"]


def test_active_parameters_as_model_cards_count_them(kimi: Geometry) -> None:
    assert read_geometry("deepseek-v3").parameters_active == pytest.approx(36.6e9, rel=0.002)
    assert kimi.parameters_active == pytest.approx(3.0e9, rel=0.05)
    assert read_geometry("qwen3-next-80b-a3b").parameters_active == pytest.approx(3e9, rel=0.2)


def test_kimi_kv_bytes_as_published(kimi: Geometry) -> None:
    assert (kimi.kv_bytes_per_token("fp8_e4m3"), kimi.kv_bytes_per_token("bfloat16")) == (4032, 8064)
    assert kimi.kv_bytes_per_token("auto") == 8064
    for length in (1024, 65536, 2**26):
        for kv_dtype, size in (("fp8", 1), ("bfloat16", 2)):
            assert kimi.kv_bytes(length, kv_dtype) == 7 * length * 576 * size
    assert kimi.kv_bytes(2**26, "fp8") == 252 * GIB
    assert kimi.kv_bytes(2**26, "bfloat16") == 504 * GIB


def test_kda_state_is_constant_and_about_43_mib(kimi: Geometry) -> None:
    # vLLM's own page for one layer: 32 heads of 128 x 128 FP32 and three BF16 convolution inputs of 12288 channels.
    assert kimi.state_bytes() == 20 * (32 * 128 * 128 * 4 + 3 * 12288 * 2)
    assert kimi.state_bytes() == pytest.approx(43 * MIB, rel=0.05)


def test_kimi_weights_match_the_probe(kimi: Geometry) -> None:
    assert kimi.weight_bytes == pytest.approx(91.6 * GIB, rel=0.005)
    assert kimi.layer_count == 27
    assert [layer.kind for layer in kimi.each_layer()].count("mla") == 7


def test_published_crossings_of_kimi(kimi: Geometry) -> None:
    published = json.loads((MODELS_DIR / "kimi-linear-48b-a3b.json").read_text())["longctx_published"]
    active, checkpoint = published["active_gib"] * GIB, published["checkpoint_gib"] * GIB
    per_token = kimi.kv_bytes_per_token("fp8")
    assert active / per_token == pytest.approx(1.6e6, rel=0.01)
    assert checkpoint / 2 / per_token == pytest.approx(12.8e6, rel=0.01)
    assert checkpoint / per_token == pytest.approx(25.6e6, rel=0.01)
    assert kimi.kv_bytes(2**26, "fp8") / checkpoint == 2.625


@pytest.mark.parametrize(
    ("name", "fp8_bytes"),
    [("llama-3.1-8b", 2 * 8 * 128 * 32), ("llama-3.1-70b", 2 * 8 * 128 * 80), ("deepseek-v3", 576 * 61),
     ("qwen3-next-80b-a3b", 2 * 2 * 256 * 12), ("gemma-3-27b", 2 * 16 * 128 * 10), ("llama-4-scout", 2 * 8 * 128 * 12)],
)  # fmt: skip
def test_kv_bytes_per_token(name: str, fp8_bytes: int) -> None:
    geometry = read_geometry(name)
    assert geometry.kv_bytes_per_token("fp8") == fp8_bytes
    assert geometry.kv_bytes_per_token("bfloat16") == 2 * fp8_bytes


def test_mqa_and_mha_are_gqa_at_its_ends() -> None:
    assert build_geometry(LLAMA | {"num_key_value_heads": 1}).kv_bytes_per_token("fp8") == 2 * 128 * 32
    without = {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}
    assert build_geometry(without).kv_bytes_per_token("fp8") == 2 * 32 * 128 * 32


def test_sliding_windows_stop_growing() -> None:
    gemma = read_geometry("gemma-3-27b")
    per_layer = 2 * 16 * 128
    assert gemma.kv_bytes(512, "fp8") == 62 * per_layer * 512
    assert gemma.kv_bytes(2**20, "fp8") == per_layer * (10 * 2**20 + 52 * 1024)
    mistral = build_geometry(LLAMA | {"model_type": "mistral", "sliding_window": 4096})
    assert mistral.kv_bytes(2**20, "fp8") == mistral.kv_bytes(4096, "fp8")


def test_attention_flops_count_each_causal_pair_once(kimi: Geometry) -> None:
    assert kimi.attention_flops(2**20) == 7 * 32 * (192 + 128) * 2.0**40
    gemma = read_geometry("gemma-3-27b")
    n, w = 65536, 1024
    pairs = 10 * n * n / 2 + 52 * (n * w - w * w / 2)
    assert gemma.attention_flops(n) == 2 * 32 * 256 * pairs
    scout = read_geometry("llama-4-scout")
    assert scout.attention_flops(16384) == 2 * 40 * 256 * (12 * 16384**2 / 2 + 36 * 2 * 8192**2 / 2)
    begun = 12 * 16484**2 / 2 + 36 * (2 * 8192**2 + 100**2) / 2
    assert scout.attention_flops(16484) == 2 * 40 * 256 * begun, "a chunk that has only begun counts as far as it goes"


def test_linear_flops_count_parameters_and_states(kimi: Geometry) -> None:
    states = 20 * 32 * 128 * 128
    flops = 1024 * (2 * kimi.layer_parameters_active + 4 * states)
    assert kimi.linear_flops(1024) == {"bf16": flops, "fp8": 0, "fp4": 0}


def test_quantised_checkpoints() -> None:
    deepseek = read_geometry("deepseek-v3")
    assert deepseek.weight_bytes == pytest.approx(671e9, rel=0.01)
    config, _ = OTHERS["gpt_oss"]
    quantised = {
        "model_type": "gpt_oss",
        "dtype": "bfloat16",
        **config,
        "quantization_config": {"quant_method": "mxfp4"},
    }
    assert build_geometry(quantised).weight_bytes == pytest.approx(65e9, rel=0.02)


def test_kimi_k2_is_read_as_deepseek_v3() -> None:
    config = json.loads((MODELS_DIR / "deepseek-v3.json").read_text())
    assert build_geometry(config | {"model_type": "kimi_k2"}).kv_bytes_per_token("fp8") == 35136


@pytest.mark.parametrize("field", ["num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size",
                                   "vocab_size", "model_type"])  # fmt: skip
def test_a_missing_field_is_named(field: str) -> None:
    config = {key: value for key, value in LLAMA.items() if key != field}
    with pytest.raises(GeometryError, match=rf"^some\.json: {field} is missing; "):
        build_geometry(config, "some.json")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "moonbase"}, "model_type is 'moonbase'; docs/plan.md lists the "),
        ({"num_hidden_layers": "32"}, "num_hidden_layers is '32'; it must be a whole number of at least 1"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_key_value_heads": 5}, "num_key_value_heads is 5; it must divide num_attention_heads"),
        ({"hidden_size": 4097}, "head_dim is missing; hidden_size"),
        ({"dtype": "int3"}, "dtype is 'int3'; known are"),
        ({"attention_chunk_size": 8192}, "attention_chunk_size is 8192"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'"),
        ({"sliding_window": 4096, "layer_types": ["full_attention"]}, "layer_types is not a list of one entry per"),
        ({"sliding_window": 4096, "layer_types": ["ring"] * 32}, "layer_types has the unknown kind 'ring'"),
        ({"quantization_config": {"quant_method": "sponge"}}, "quantization_config.quant_method is 'sponge'"),
        ({"quantization_config": "fp8"}, "quantization_config is 'fp8'; it must be an object"),
    ],
)  # fmt: skip
def test_a_wrong_field_gives_one_sentence(change: dict[str, object], said: str) -> None:
    with pytest.raises(GeometryError) as caught:
        build_geometry(LLAMA | change, "some.json")
    assert str(caught.value).startswith(f"some.json: {said}")
    assert "\n" not in str(caught.value)


def test_partial_hybrids_and_indexers_are_refused() -> None:
    deepseek = json.loads((MODELS_DIR / "deepseek-v3.json").read_text())
    with pytest.raises(GeometryError, match="index_n_heads is missing"):
        build_geometry(deepseek | {"index_topk": 2048})
    kimi = json.loads((MODELS_DIR / "kimi-linear-48b-a3b.json").read_text())
    kimi["linear_attn_config"]["kda_layers"].pop()
    with pytest.raises(GeometryError, match=r"linear_attn_config\.full_attn_layers and kda_layers"):
        build_geometry(kimi)
    del kimi["linear_attn_config"]
    with pytest.raises(GeometryError, match="linear_attn_config is missing"):
        build_geometry(kimi)


def test_nested_text_config_names_its_path() -> None:
    nested = {"model_type": "gemma3", "dtype": "bfloat16", "text_config": {"model_type": "gemma3_text"}}
    with pytest.raises(GeometryError, match=r"text_config\.num_hidden_layers is missing"):
        build_geometry(nested)
    assert "not counted" in read_geometry("gemma-3-27b").notes[0]


def test_reading_files(tmp_path, kimi: Geometry) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert read_geometry(tmp_path).parameters_total == PARAMETERS["llama-3.1-8b"]
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(GeometryError, match="holds no JSON object"):
        read_geometry(tmp_path / "list.json")
    (tmp_path / "torn.json").write_text("{")
    with pytest.raises(GeometryError, match="not a readable JSON file"):
        read_geometry(tmp_path / "torn.json")
    with pytest.raises(GeometryError, match="neither a config"):
        read_geometry("no/such-model")
    assert read_geometry("moonshotai/Kimi-Linear-48B-A3B-Instruct") == kimi


def test_unknown_kv_dtype(kimi: Geometry) -> None:
    with pytest.raises(ConfigError, match="kv_cache_dtype: 'int2' is not one of auto, bfloat16"):
        kimi.kv_bytes_per_token("int2")
