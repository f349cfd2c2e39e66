"""The GPU table and the splits that vLLM allows."""

import pytest
from longctx.errors import ConfigError
from longctx.model.reader import read_geometry
from longctx.plan.hardware import Parallelism, load_hardware, read_gpus
from longctx.plan.vllm_rules import check_split
from longctx.resources import GPUS_CSV

GIB = 2**30
KIMI = read_geometry("kimi-linear-48b-a3b")


def test_the_gpu_table() -> None:
    gpus = {gpu.name: gpu for gpu in read_gpus()}
    assert gpus["H200"].hbm_bytes == int(140.4 * GIB)
    assert gpus["MI355X"].bf16_flops == 2516.6e12
    assert gpus["A100"].fp8_flops is None
    assert gpus["H200"].fp4_flops is None
    assert gpus["B200"].fp4_flops == 9000e12
    asked = {"B300", "GB200", "GB300", "MI350X", "H20", "RTX PRO 6000", "GB10", "L40S", "A100"}
    assert asked <= set(gpus)
    assert all(gpu.source and gpu.vendor in ("amd", "nvidia") for gpu in gpus.values())
    assert load_hardware("mi355x", 8).count == 8


def test_a_narrower_product_is_faster_where_the_chip_has_units_for_it() -> None:
    for gpu in read_gpus():
        peaks = gpu.peak_flops
        assert peaks["fp8"] == (gpu.fp8_flops or peaks["bf16"])
        assert peaks["fp4"] == (gpu.fp4_flops or peaks["bf16"])
        assert gpu.fp8_flops is None or 1.9 <= gpu.fp8_flops / gpu.bf16_flops <= 2.1, gpu.name
        assert gpu.fp4_flops is None or gpu.fp8_flops, gpu.name
        assert gpu.fp4_flops is None or 1.9 <= gpu.fp4_flops / (gpu.fp8_flops or 0) <= 3.2, gpu.name


@pytest.mark.parametrize("wrong", ["-80", "0", "nan", "inf", ""])
def test_a_gpu_s_line_has_numbers_above_zero(tmp_path, wrong: str) -> None:  # type: ignore[no-untyped-def]
    head = "gpu,vendor,hbm_gib,hbm_tb_s,bf16_tflops,fp8_tflops,source"
    (tmp_path / "gpus.csv").write_text(f"{head}\nMine,nvidia,80,{wrong},100,,datasheet\n")
    with pytest.raises(ConfigError, match=f"hbm_tb_s of 'Mine' is '{wrong}'; it must be a number above 0"):
        load_hardware("mine", path=tmp_path / "gpus.csv")


def test_unknown_or_broken_hardware(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=r"hardware\.gpu: 'H900' is not in gpus\.csv; known are MI355X"):
        load_hardware("H900")
    with pytest.raises(ConfigError, match=r"hardware\.count: is 0"):
        load_hardware("H200", 0)
    lines = GPUS_CSV.read_text().replace("989.5", "much")
    (tmp_path / "gpus.csv").write_text(lines)
    with pytest.raises(ConfigError, match="bf16_tflops of 'H200' is 'much'; it must be a number above 0"):
        read_gpus(tmp_path / "gpus.csv")


def test_parallelism_is_checked() -> None:
    assert Parallelism(tensor=8, decode_context=4, pipeline=2).gpus == 16
    assert (Parallelism().label, Parallelism(tensor=8, decode_context=8).label) == ("1 GPU", "TP8 DCP8")
    with pytest.raises(ConfigError, match="decode_context_parallel_size: 3 does not divide"):
        Parallelism(tensor=8, decode_context=3)
    with pytest.raises(ConfigError, match="tensor_parallel_size: is 0"):
        Parallelism(tensor=0)
    with pytest.raises(ConfigError, match="does not divide the 28 attention heads"):
        check_split(read_geometry("qwen2.5-7b-1m"), Parallelism(tensor=8))
    with pytest.raises(ConfigError, match="needs at least 64 TP ranks"):
        check_split(read_geometry("llama-3.1-8b"), Parallelism(tensor=8, decode_context=8))
    with pytest.raises(ConfigError, match="exceeds the 27 layers"):
        check_split(KIMI, Parallelism(pipeline=28))
