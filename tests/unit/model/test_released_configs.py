"""Configurations in the form that models are released with: sizes against the reference classes and the model cards."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from longctx.errors import ConfigError, GeometryError
from longctx.model.geometry import Geometry
from longctx.model.reader import build_geometry, read_geometry
from longctx.plan.hardware import Parallelism, load_hardware
from longctx.plan.parallel_splits import splits
from longctx.plan.system import Settings, System
from longctx.plan.vllm_rules import check_split
from longctx.resources import MODELS_DIR

GIB = 2**30
REAL: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[2] / "data" / "real_configs.json").read_text())


def config(name: str, **changes: Any) -> dict[str, Any]:
    return {**REAL[name]["config"], **changes}


def geometry(name: str, **changes: Any) -> Geometry:
    return build_geometry(config(name, **changes), name)


def without(name: str, field: str) -> dict[str, Any]:
    return {key: value for key, value in config(name).items() if key != field}


@pytest.mark.parametrize("name", sorted(REAL))
def test_parameters_equal_those_of_the_reference_class(name: str) -> None:
    assert geometry(name).parameters_total == REAL[name]["parameters"]


def test_a_windowed_layer_of_cohere_sees_one_token_more() -> None:
    # vLLM 0.32, models/commandr.py and cohere2_moe.py: the window of the spec is sliding_window + 1.
    windows = {layer.attention.window for layer in geometry("Command-R7B").layers if layer.attention}
    assert windows == {None, 4097}


@pytest.mark.parametrize("part", ["llm_config", "language_config"])
def test_the_language_model_of_a_multimodal_file_is_found(part: str) -> None:
    text = config("InternVL3-8B")["llm_config"]
    found = build_geometry({"model_type": "some_chat", part: text, "torch_dtype": "bfloat16"}, "x")
    assert found.parameters_total == REAL["InternVL3-8B"]["parameters"]
    assert build_geometry({"thinker_config": {"text_config": text}}, "x").parameters_total == found.parameters_total


@pytest.mark.parametrize(
    ("name", "billions"),
    [("Mixtral-8x7B", 12.9), ("Qwen3-235B-A22B", 22), ("DeepSeek-V2", 21), ("DeepSeek-V2-Lite", 2.4), ("Kimi-K2", 32),
     ("GLM-4.5", 32), ("GLM-4.5-Air", 12), ("MiniMax-M2", 10), ("gpt-oss-120b", 5.1), ("Granite-4.0-h-small", 9),
     ("Llama-4-Maverick-FP8", 17), ("Nemotron-3-Nano-30B-A3B", 3.2), ("Jamba-Mini", 12)],
)  # fmt: skip
def test_active_parameters_are_near_those_of_the_model_card(name: str, billions: float) -> None:
    assert geometry(name).parameters_active == pytest.approx(billions * 1e9, rel=0.08)


@pytest.mark.parametrize(
    ("name", "elements"),
    [("Llama-3.1-405B-FP8", 2 * 8 * 128 * 126), ("Qwen2.5-72B", 2 * 8 * 128 * 80), ("Kimi-K2", 576 * 61),
     ("GLM-4.5", 2 * 8 * 128 * 92), ("gpt-oss-120b", 2 * 8 * 64 * 18), ("Gemma-2-9b", 2 * 8 * 256 * 21),
     ("OLMo-3-7B", 2 * 32 * 128 * 8), ("Jamba-Mini", 2 * 8 * 128 * 4), ("Nemotron-H-8B", 2 * 8 * 128 * 4),
     ("Nemotron-3-Nano-30B-A3B", 2 * 2 * 128 * 6), ("Falcon-H1-7B", 2 * 2 * 128 * 44), ("Mamba2-2.7B", 0),
     ("Granite-4.0-h-small", 2 * 8 * 128 * 4), ("Llama-4-Maverick-FP8", 2 * 8 * 128 * 12)],
)  # fmt: skip
def test_kv_elements_per_token_count_the_layers_that_see_everything(name: str, elements: int) -> None:
    assert geometry(name).kv_bytes_per_token("fp8") == elements


def test_states_of_mamba_layers() -> None:
    nano = geometry("Nemotron-3-Nano-30B-A3B")  # 23 layers: 64 heads of 64 x 128 FP32, three inputs of 6144 channels
    assert nano.state_bytes() == 23 * (64 * 64 * 128 * 4 + 3 * (64 * 64 + 2 * 8 * 128) * 2)
    falcon = geometry("Falcon-H1-7B")
    assert falcon.state_bytes() == 44 * (3072 * 256 * 2 + 3 * (3072 + 2 * 256) * 2)
    kinds = [layer.kind for layer in falcon.each_layer()]
    assert kinds.count("full") == kinds.count("mamba2") == 44


QUANTISED = {
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 128}, 0.51953125),
    "gptq": ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 1.0),
    "fp8": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1 + 4 / 16384),
    "w4a16": ({"quant_method": "compressed-tensors", "ignore": ["lm_head"], "config_groups": {
        "group_0": {"weights": {"num_bits": 4, "group_size": 32, "type": "int"}}}}, 0.5625),
    "nvfp4": ({"quant_method": "modelopt", "config_groups": {
        "group_0": {"weights": {"num_bits": 4, "group_size": 16, "type": "float"}}}}, 0.5625),
}  # fmt: skip


@pytest.mark.parametrize("scheme", sorted(QUANTISED))
def test_quantised_layers_take_their_bits_and_scales_and_tables_stay_whole(scheme: str) -> None:
    plain = geometry("Qwen2.5-72B")
    quantisation, per_parameter = QUANTISED[scheme]
    found = geometry("Qwen2.5-72B", quantization_config=quantisation)
    matrices = 80 * (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 29568)
    group = quantisation.get("group_size", 1)  # -1: one scale per row, hardly more than none
    rest = (plain.parameters_total - matrices) * 2  # tables, norms and biases
    assert found.weight_bytes == pytest.approx(matrices * per_parameter + rest, rel=1e-6 if group > 0 else 3e-4)


def test_what_a_checkpoint_leaves_unquantised_is_counted_whole() -> None:
    thinking = {
        "quant_method": "compressed-tensors",
        "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32, "type": "int"}}},
    }
    kimi = geometry("Kimi-K2", quantization_config=thinking)
    assert kimi.weight_bytes == pytest.approx(594e9, rel=0.01)  # the size of Kimi K2 Thinking's files
    only_small = {"quant_method": "fp8", "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate", "norm"]}
    everything = geometry("Qwen3-235B-A22B", quantization_config={"quant_method": "fp8"})
    assert geometry("Qwen3-235B-A22B", quantization_config=only_small).weight_bytes == everything.weight_bytes


def test_a_checkpoint_with_an_fp8_cache_asks_for_it_by_auto() -> None:
    fp8 = {"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    assert geometry("Qwen2.5-72B", quantization_config=fp8).kv_format("auto").key_bits == 8
    assert geometry("Qwen2.5-72B").kv_format("auto").key_bits == 16


def test_4_bit_weights_are_bound_by_the_bf16_peak_and_8_bit_ones_by_fp8() -> None:
    def bound(**changes: Any) -> float:
        model = geometry("Qwen2.5-72B", **changes)
        return System(model, load_hardware("H200"), Parallelism(), Settings("bfloat16")).ttft_bound_s(1024)

    assert bound(quantization_config=QUANTISED["awq"][0]) == bound()
    assert bound(quantization_config=QUANTISED["fp8"][0]) == pytest.approx(bound() / 2, rel=0.05)


def test_fp32_checkpoints_and_those_that_name_no_type_are_served_in_16_bits() -> None:
    assert config("Gemma-2-9b")["torch_dtype"] == "float32"
    assert geometry("Gemma-2-9b").weight_bytes == 2 * REAL["Gemma-2-9b"]["parameters"]
    assert build_geometry(without("Gemma-2-9b", "torch_dtype")).weight_bytes == 2 * REAL["Gemma-2-9b"]["parameters"]


@pytest.mark.parametrize(
    ("name", "field", "said"),
    [
        ("DeepSeek-V2-Lite", "q_lora_rank", "q_lora_rank is missing; add it as the model's own config.json"),
        ("Mistral-Nemo", "sliding_window", "sliding_window is missing"),
        ("Mistral-Nemo", "num_key_value_heads", "num_key_value_heads is missing"),
        ("Qwen3-8B", "head_dim", "head_dim is missing"),
        ("Granite-4.0-h-small", "layer_types", "layer_types is missing"),
    ],
)  # fmt: skip
def test_a_default_of_the_class_is_no_substitute_for_a_missing_field(name: str, field: str, said: str) -> None:
    with pytest.raises(GeometryError) as caught:
        build_geometry(without(name, field), "some.json")
    assert str(caught.value).startswith(f"some.json: {said}")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("Llama-3.2-1B", {"num_kv_shared_layers": 8}),
        ("Llama-3.2-1B", {"kv_lora_rank": 512}),
        ("Llama-3.2-1B", {"block_configs": [{"attention": {"no_op": True}}]}),
        ("Mistral-Nemo", {"attention_bias": True}),
        ("Kimi-K2", {"sliding_window": 4096}),
        ("Kimi-K2", {"attention_bias": True}),
        ("Falcon-H1-7B", {"projectors_bias": True}),
        ("MiniMax-M2", {"attn_type_list": [0, 1] * 31}),
        ("MiniMax-M2", {"shared_intermediate_size": 1536}),
    ],
)  # fmt: skip
def test_a_field_that_this_family_is_not_known_to_have_is_named_and_never_ignored(
    name: str, change: dict[str, Any]
) -> None:
    with pytest.raises(GeometryError) as caught:
        build_geometry(config(name, **change), "some.json")
    assert str(caught.value).startswith(f"some.json: {next(iter(change))} is ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 260


def test_fields_without_an_effect_on_sizes_are_no_obstacle() -> None:
    extra = {
        "unsloth_version": "2026.1",
        "rope_scaling": {"factor": 8.0},
        "hidden_act": "silu",
        "num_beam_groups": 1,
        "attn_implementation": "flash_attention_2",
        "layer_norm_eps": 1e-5,
        "mlp_layer_count": 0,
    }
    assert geometry("Llama-3.2-1B", **extra).parameters_total == REAL["Llama-3.2-1B"]["parameters"]


def test_windows_are_off_where_qwen_s_switch_or_a_zero_says_so() -> None:
    for changes in ({"use_sliding_window": None}, {"use_sliding_window": True, "sliding_window": 0}):
        assert geometry("Qwen2.5-72B", **changes).kv_bytes_per_token("fp8") == 2 * 8 * 128 * 80
    on = geometry("Qwen2.5-72B", use_sliding_window=True)
    assert on.kv_bytes_per_token("fp8") == 2 * 8 * 128 * 70
    named = geometry("Qwen3-8B", layer_types=["full_attention"] * 36)
    assert named.kv_bytes_per_token("fp8") == 2 * 8 * 128 * 36


def test_multimodal_files_say_what_is_not_counted() -> None:
    for name in ("Qwen2.5-VL-7B", "Qwen3-VL-30B-A3B", "Mistral-Small-3.1-24B", "Kimi-VL"):
        assert "not counted" in geometry(name).notes[0]
    tied = geometry("Qwen3-VL-30B-A3B", tie_word_embeddings=True)
    assert tied.head_parameters == 0


def test_the_shipped_file_of_kimi_linear_is_read_like_the_released_one() -> None:
    released = json.loads((MODELS_DIR / "kimi-linear-48b-a3b.json").read_text())
    extra = {"num_nextn_predict_layers": 0, "model_max_length": 1048576, "moe_router_activation_func": "sigmoid"}
    assert build_geometry(released | extra).layers == read_geometry("kimi-linear-48b-a3b").layers


def variants(values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield `values` with each field, nested ones too, in turn absent or of a wrong kind."""
    for key, value in values.items():
        yield {k: v for k, v in values.items() if k != key}
        for wrong in (None, -1, "x", [], {"a": 1}, [1]):
            yield {**values, key: wrong}
        if isinstance(value, dict) and key != "vision_config":
            yield from ({**values, key: inner} for inner in variants(value))


@pytest.mark.parametrize("name", sorted(REAL))
def test_whatever_is_wrong_with_a_field_nothing_but_a_geometry_error_is_raised(name: str) -> None:
    for changed in variants(config(name)):
        with suppress(GeometryError):
            build_geometry(changed, name)


def test_a_split_that_cuts_fp8_blocks_is_refused_as_vllm_does() -> None:
    fp8 = geometry("Qwen3-235B-A22B", quantization_config=QUANTISED["fp8"][0])
    with pytest.raises(
        ConfigError, match="8 leaves 192 of a feed-forward width of 1536 per rank, which is no multiple"
    ):
        check_split(fp8, Parallelism(tensor=8))
    assert next(split.label for split in splits(fp8, 8)) == "TP4 PP2"
    assert next(split.label for split in splits(geometry("Qwen3-235B-A22B"), 8)) == "TP8"
    check_split(read_geometry("deepseek-v3"), Parallelism(tensor=16))


def test_tables_are_tied_only_where_both_parts_of_a_file_agree() -> None:
    model = config("Qwen3-VL-30B-A3B")
    for outer, inner, tied in ((True, True, True), (False, True, False), (True, False, False), (None, True, True)):
        text = {**model["text_config"], "tie_word_embeddings": inner}
        found = build_geometry({**model, "text_config": text, "tie_word_embeddings": outer})
        assert (found.head_parameters == 0) is tied


def test_step_is_read_in_its_publisher_s_fields_too() -> None:
    """Lists are longer by the MTP layers there, and windowed layers have more heads (counted by transformers 5.19)."""
    path = Path(__file__).parents[2] / "data" / "released" / "stepfun-ai--Step-3.7-Flash" / "config.json"
    values = json.loads(path.read_text())
    renamed = {"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_top_k",
               "num_key_value_heads": "num_attention_groups"}  # fmt: skip
    published = {renamed.get(key, key): value for key, value in values.items() if key != "first_k_dense_replace"}
    published["moe_layers_enum"] = ",".join(map(str, range(3, 45)))
    published["layer_types"] = [*values["layer_types"], *["sliding_attention"] * 3]
    assert build_geometry(published).layers == build_geometry(values).layers
    other = {"attention_type": "sliding_attention", "num_attention_heads": 96, "num_attention_groups": 8}
    model = build_geometry(published | {"attention_other_setting": other})
    assert model.parameters_total == 196_956_130_368
    with pytest.raises(GeometryError, match=r"other_setting\.num_attention_groups is 4; known is 8"):
        build_geometry(published | {"attention_other_setting": {**other, "num_attention_groups": 4}})


def test_kimi_linear_is_read_as_transformers_writes_it() -> None:
    released = json.loads((MODELS_DIR / "kimi-linear-48b-a3b.json").read_text())
    linear = released["linear_attn_config"]
    kinds = ["full_attention" if i + 1 in linear["full_attn_layers"] else "linear_attention" for i in range(27)]
    saved = {key: value for key, value in released.items() if key != "linear_attn_config"} | {
        "layer_types": kinds, "linear_num_heads": linear["num_heads"], "linear_head_dim": linear["head_dim"],
        "linear_conv_kernel_dim": linear["short_conv_kernel_size"],
    }  # fmt: skip
    assert build_geometry(saved).layers == build_geometry(released).layers
