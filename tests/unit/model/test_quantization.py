"""Quantised checkpoints: which matrices their files name, what these take, what `auto` means for the cache."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from longctx.errors import GeometryError
from longctx.model.geometry import Geometry
from longctx.model.reader import build_geometry, read_config, read_geometry
from longctx.plan.hardware import Parallelism, load_hardware
from longctx.plan.system import Settings, System
from longctx.plan.text import heading
from longctx.prompts.sources import CorpusSpec
from longctx.prompts.synthetic_model import make_dummy_from_config
from longctx.resources import MODELS_DIR

DEEPSEEK: dict[str, Any] = json.loads((MODELS_DIR / "deepseek-v3.json").read_text())
BF16 = {key: value for key, value in DEEPSEEK.items() if key not in ("quantization_config", "longctx_name")}
# As NVIDIA's DeepSeek-V3.1-NVFP4 has it: of latent attention only the output projection is quantised.
LATENT = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
NVFP4 = {
    "producer": {"name": "modelopt", "version": "0.22.1"},
    "quantization": {
        "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16,
        "exclude_modules": ["lm_head", *(f"model.layers.{i}.self_attn.{name}" for i in range(61) for name in LATENT)],
    },
}  # fmt: skip


TESTS = Path(__file__).parents[2]
RELEASED, PYTHON = TESTS / "data" / "released", TESTS.parent / ".venv-vllm" / "bin" / "python"
# What vLLM 0.32 allocates (tests/countbytes.py), for released files and for released files with other schemes.
COUNTED: dict[str, dict[str, Any]] = json.loads((TESTS / "data" / "quantised.json").read_text())


def files(name: str) -> dict[str, Any]:
    """Return the files of a counted checkpoint: the content of config.json, and of hf_quant_config.json or None."""
    source = RELEASED / COUNTED[name]["model"]
    config, beside = json.loads((source / "config.json").read_text()), source / "hf_quant_config.json"
    config |= {key: COUNTED[name][key] for key in ("quantization_config",) if key in COUNTED[name]}
    return {"config": config, "beside": json.loads(beside.read_text()) if beside.exists() else None}


@pytest.mark.parametrize("name", sorted(COUNTED))
def test_bytes_and_cache_are_those_that_vllm_allocates(name: str, tmp_path: Path) -> None:
    found = files(name)
    try:
        model = read_geometry(folder(tmp_path, found["config"], found["beside"]))
    except GeometryError as error:
        pytest.skip(f"a family that the planner does not know: {error}")
    # vLLM keeps some routers in FP32, and quantises a router that a file does not leave out: less than 0.2 %.
    assert model.weight_bytes == pytest.approx(COUNTED[name]["bytes"], rel=2e-3)
    assert model.kv_format("auto").key_bits == {"auto": 16, "fp8_e4m3": 8}[COUNTED[name]["kv_cache_dtype"]]


# What stands before 'layers' in these checkpoints.
NVFP4_RELEASED = {
    "nvidia--DeepSeek-V3.1-NVFP4": "model.", "nvidia--GLM-5-NVFP4": "model.", "nvidia--GLM-5.2-NVFP4": "model.",
    "nvidia--Gemma-4-26B-A4B-NVFP4": "model.language_model.", "nvidia--Kimi-K2.5-NVFP4": "language_model.model.",
    "nvidia--Kimi-K2.6-NVFP4": "language_model.model.", "nvidia--MiniMax-M2.5-NVFP4": "model.",
    "nvidia--MiniMax-M2.7-NVFP4": "model.", "nvidia--Qwen3.5-122B-A10B-NVFP4": "model.language_model.",
    "nvidia--Qwen3.5-397B-A17B-NVFP4": "model.language_model.", "nvidia--Qwen3.6-27B-NVFP4": "model.language_model.",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-vllm")
def test_each_matrix_of_released_nvfp4_checkpoints_has_the_bits_that_vllm_s_rules_give() -> None:
    ours, asked = {}, {}
    for name, prefix in NVFP4_RELEASED.items():
        model = read_geometry(RELEASED / name)
        rules, bits = model.quantization, {}
        for index, layer in enumerate(model.each_layer()):
            for matrix in (*layer.mixer.matrices, *layer.ffn.matrices):
                module = f"{prefix}layers.{index}.{rules.names(matrix.name)[0]}"
                bits[module] = rules.scheme(index, matrix).bits
        quantization = read_config(RELEASED / name / "config.json")["quantization_config"]
        ours[name], asked[name] = bits, {"quantization": quantization, "modules": list(bits)}
    command = [str(PYTHON), str(TESTS / "countbytes.py"), "--rules"]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, timeout=600, check=True)
    assert json.loads(done.stdout) == ours


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-vllm")
def test_the_stored_bytes_are_those_of_the_installed_vllm() -> None:
    given = json.dumps({name: files(name) for name in COUNTED})
    command = [str(PYTHON), str(TESTS / "countbytes.py")]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=600, check=True)
    kept = ("bytes", "kv_cache_dtype")
    assert json.loads(done.stdout) == {name: {key: entry[key] for key in kept} for name, entry in COUNTED.items()}


def folder(path: Path, config: dict[str, Any], quantization: dict[str, Any] | None = None) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    if quantization is not None:
        (path / "hf_quant_config.json").write_text(json.dumps(quantization))
    return path


def with_quantization(quantization: dict[str, Any], base: dict[str, Any] = BF16) -> Geometry:
    return build_geometry(base | {"quantization_config": quantization}, "a model")


def test_an_nvfp4_checkpoint_is_counted_by_its_own_file(tmp_path: Path) -> None:
    model = read_geometry(folder(tmp_path, BF16, NVFP4))
    hidden, heads = 7168, 128
    experts = 58 * 256 * 3 * hidden * 2048
    others = 61 * hidden * heads * 128 + 58 * 3 * hidden * 2048 + 3 * 3 * hidden * 18432
    quantised = experts + others
    plain = model.parameters_total - quantised
    assert model.weight_bytes == pytest.approx(quantised * (0.5 + 1 / 16) + 2 * plain, rel=1e-5)
    assert model.weight_bytes / 2**30 == pytest.approx(360, abs=1)
    assert model.kv_format("auto").key_bits == 8


def test_the_attention_beside_nvfp4_experts_of_deepseek_v4_stays_in_fp8() -> None:
    config = json.loads((RELEASED / "nvidia--DeepSeek-V4-Flash-NVFP4" / "config.json").read_text())
    plain = {key: value for key, value in config.items() if key not in ("quantization_config", "expert_dtype")}
    model, whole = build_geometry(config), build_geometry(plain)
    experts = sum(layer.count * layer.ffn.experts for layer in whole.layers)
    blocks = sum(layer.count * m.parameters for layer in whole.layers for m in layer.mixer.matrices)
    shared = sum(layer.count * m.parameters for layer in whole.layers for m in layer.ffn.matrices) - experts
    eight_bit = (blocks + shared) * (1 + 4 / 128**2)
    rest = 2 * (whole.parameters_total - experts - blocks - shared)
    assert model.weight_bytes == pytest.approx(experts * 0.5625 + eight_bit + rest, rel=1e-4)


def test_the_plan_says_what_the_cache_becomes_by_auto(tmp_path: Path) -> None:
    model = read_geometry(folder(tmp_path, BF16, NVFP4))
    system = System(model, load_hardware("H200", 8), Parallelism(8), Settings("auto"))
    assert heading(system)[0].endswith("KV cache auto (fp8, as the checkpoint asks)")
    assert heading(replace(system, geometry=build_geometry(BF16)))[0].endswith("KV cache auto")


def test_config_json_comes_first_as_in_vllm(tmp_path: Path) -> None:
    fp8 = DEEPSEEK["quantization_config"]
    model = read_geometry(folder(tmp_path, BF16 | {"quantization_config": fp8}, NVFP4))
    assert model.weight_bytes == read_geometry("deepseek-v3").weight_bytes
    assert model.kv_format("auto").key_bits == 16


def test_the_layers_of_a_mixed_checkpoint_may_stand_in_the_other_file(tmp_path: Path) -> None:
    layers = {f"model.layers.{i}.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16} for i in range(3, 61)}
    mixed = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
    beside = {"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}}
    read = read_geometry(folder(tmp_path, BF16 | {"quantization_config": mixed}, beside))
    embedded = with_quantization(mixed | {"quantized_layers": layers})
    experts = 58 * 256 * 3 * 7168 * 2048
    assert read.weight_bytes == embedded.weight_bytes
    assert read.weight_bytes == pytest.approx(experts * 0.5625 + 2 * (read.parameters_total - experts), rel=1e-5)


def test_a_synthetic_model_keeps_the_quantization(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text("words and more words\n" * 500)
    small = BF16 | {"vocab_size": 300}
    source = folder(tmp_path / "real", small, NVFP4)
    make_dummy_from_config(source / "config.json", tmp_path / "made", CorpusSpec(str(tmp_path / "corpus")))
    assert read_geometry(tmp_path / "made").weight_bytes == read_geometry(source).weight_bytes


def test_the_first_names_of_awq_s_fields_are_read() -> None:
    # vLLM 0.32, auto_awq.py: ["w_bit", "bits"] and ["q_group_size", "group_size"].
    old = {"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "zero_point": True, "version": "GEMM"}
    new = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}
    sizes = [build_geometry(BF16 | {"quantization_config": fields}).weight_bytes for fields in (old, new)]
    assert sizes[0] == sizes[1] < build_geometry(BF16).weight_bytes / 3


def test_a_name_that_promises_a_quantization_is_doubted(tmp_path: Path) -> None:
    plain = read_geometry(folder(tmp_path / "Big-NVFP4", BF16))
    assert any("hf_quant_config.json missing" in note for note in plain.notes)
    assert not any("missing" in note for note in read_geometry(folder(tmp_path / "Big", BF16)).notes)
    assert not any("missing" in note for note in read_geometry(folder(tmp_path / "Big-FP4", BF16, NVFP4)).notes)


def test_a_file_that_leaves_nothing_out_is_pointed_at() -> None:
    short = with_quantization({"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}})
    assert any("names no module that it leaves out" in note for note in short.notes)
    assert short.head_bytes == 2 * short.head_parameters


QUARK_MXFP4 = {
    "quant_method": "quark",
    "global_quant_config": {
        "weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"},
        "input_tensors": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "is_dynamic": True},
    },
    "layer_quant_config": {},
    "layer_type_quant_config": {},
    "exclude": ["lm_head", "re:.*self_attn.*"],
    "export": {"kv_cache_group": []},
}  # fmt: skip
FP8_TENSOR = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False}


def test_quark_s_global_and_layer_schemes() -> None:
    plain = build_geometry(BF16)
    attention = sum(layer.count * layer.mixer.parameters for layer in plain.layers)
    matrices = sum(m.parameters * layer.count for layer in plain.layers for m in layer.ffn.matrices)
    rest = plain.parameters_total - matrices
    assert with_quantization(QUARK_MXFP4).weight_bytes == pytest.approx(matrices * 4.25 / 8 + 2 * rest)
    projections = sum(m.parameters * layer.count for layer in plain.layers for m in layer.mixer.matrices)
    layers = {"*self_attn*": {"weight": FP8_TENSOR, "input_tensors": FP8_TENSOR}}
    mixed = with_quantization(QUARK_MXFP4 | {"exclude": ["lm_head"], "layer_quant_config": layers})
    assert attention > projections
    expected = matrices * 4.25 / 8 + projections + 2 * (rest - projections)
    assert mixed.weight_bytes == pytest.approx(expected, rel=1e-7)


def test_products_run_in_fp4_only_where_weights_and_activations_have_4_bits() -> None:
    def products(**changes: Any) -> dict[str, float]:
        return with_quantization(QUARK_MXFP4 | changes).linear_flops(1)

    weights = QUARK_MXFP4["global_quant_config"]["weight"]  # type: ignore[index]
    assert products()["fp4"] > 0.5 * sum(products().values())
    only = products(global_quant_config={"weight": weights, "input_tensors": None})
    assert (only["fp4"], only["fp8"]) == (0, 0)
    fp8 = products(global_quant_config={"weight": weights, "input_tensors": FP8_TENSOR})
    assert (fp8["fp4"], fp8["fp8"]) == (0, products()["fp4"])


def test_fp4_products_are_bound_by_the_fp4_peak_where_there_is_one() -> None:
    model = with_quantization(QUARK_MXFP4)
    b200 = System(model, load_hardware("B200", 8), Parallelism(8), Settings("bfloat16"))
    linear, attention = model.linear_flops(1024), model.attention_flops(1024)
    expected = ((linear["bf16"] + attention) / 2250e12 + linear["fp4"] / 9000e12) / 8
    assert b200.ttft_bound_s(1024) == pytest.approx(expected, rel=1e-6)


def test_a_chip_without_fp4_units_is_bound_by_bf16() -> None:
    h200 = System(with_quantization(QUARK_MXFP4), load_hardware("H200", 8), Parallelism(8), Settings("bfloat16"))
    plain = System(build_geometry(BF16), load_hardware("H200", 8), Parallelism(8), Settings("bfloat16"))
    assert h200.ttft_bound_s(1024) == plain.ttft_bound_s(1024)


@pytest.mark.parametrize(
    ("quantization", "said"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method is 'bitsandbytes'; known are fp8, "),
        ({"quantization": {"quant_algo": "INT3"}}, "quant_algo is 'INT3'; known are FP8, "),
        (
            QUARK_MXFP4 | {"global_quant_config": {"weight": {"dtype": "fp5"}}},
            "global_quant_config.weight.dtype is 'fp5'",
        ),
        ({"quant_method": "quark"}, "global_quant_config is missing"),
        ({"quant_algo": "MIXED_PRECISION"}, "quantized_layers is missing"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size is [128]; it must be two sizes"),
    ],
)
def test_what_is_not_known_is_named(quantization: dict[str, Any], said: str) -> None:
    with pytest.raises(GeometryError) as caught:
        with_quantization(quantization)
    assert f"quantization_config.{said}" in str(caught.value)
