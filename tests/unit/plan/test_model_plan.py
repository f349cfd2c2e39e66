"""scripts/plan.py: a model and a GPU, or a campaign's configuration, on the command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from longctx.campaign.campaign import load
from longctx.plan.campaign_plan import plan_campaign
from longctx.resources import MODELS_DIR
from longctx.storage import parquet, schemas

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).parents[3] / "scripts" / "plan.py"


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *args], capture_output=True, text=True, check=False)


def test_a_user_with_a_config_and_a_gpu_name(tmp_path: Path) -> None:
    out, figure = tmp_path / "plan.parquet", tmp_path / "figures" / "kv_footprint.png"
    model = str(MODELS_DIR / "kimi-linear-48b-a3b.json")
    done = run("--model", model, "--gpu", "H200", "--lengths", "1Mi..16Mi", "--out", str(out), "--figure", str(figure))
    assert done.returncode == 0, done.stderr
    for said in ("36.", "16Mi prefill: needs", "campaign: ", "bfloat16", "fp8"):
        assert said in done.stdout
    rows = parquet.read_rows(out, schemas.PLAN)
    assert [row["fits"] for row in rows] == [True, True, True, True, False]
    assert figure.exists()
    assert figure.with_suffix(".svg").exists()


CAMPAIGN = {
    "model": {"source": "moonshotai/Kimi-Linear-48B-A3B-Instruct"},
    "lengths": ["1Ki", "64Ki", "64Mi"],
    "modes": ["prefill", "reuse"],
    "hardware": {"gpu": "MI355X", "count": 8},
    "serve": {
        "tensor_parallel_size": 8,
        "kv_cache_dtype": "fp8_e4m3",
        "gpu_memory_utilization": 0.95,
        "aiter_version": "1",
    },
}


def test_a_campaign_file_on_the_command_line(tmp_path: Path) -> None:
    config, out, text = tmp_path / "c.json", tmp_path / "plan.parquet", tmp_path / "plan.txt"
    config.write_text(json.dumps(CAMPAIGN))
    files = ("--out", str(out), "--text", str(text))
    done = run("--config-file", str(config), *files, "--measured", str(tmp_path / "none"))
    assert done.returncode == 0, done.stderr
    assert "campaign: " in text.read_text()
    assert done.stdout == "", "`snakemake plan` prints the file"
    assert done.stderr.startswith("plan: ")
    rows = parquet.read_rows(out, schemas.PLAN)
    assert rows == list(plan_campaign(load(config)).rows)
    saved = tmp_path / "saved.parquet"
    parquet.write_rows(saved, schemas.PLAN, [row | {"est_hours": 100.0} for row in rows])
    done = run("--config-file", str(config), *files, "--plan", str(saved))
    assert done.returncode == 0, done.stderr
    assert [row["est_hours"] for row in parquet.read_rows(out, schemas.PLAN)] == [100.0] * 6, "rendered, not made again"
    assert "\ncampaign: 600.0 hours\n" in text.read_text()


@pytest.mark.parametrize(
    ("args", "split"),
    [(["--decode-context", "2"], "TP8 DCP2"), (["--pipeline", "2"], "TP4 PP2"), (["--tensor", "2"], "TP2"), ([], "TP8"),
     (["--pipeline", "4", "--decode-context", "2"], "TP2 PP4 DCP2")],
)  # fmt: skip
def test_the_split_that_was_asked_for_is_planned(args: list[str], split: str) -> None:
    done = run("--model", "kimi-linear-48b-a3b", "--gpu", "H200", "--count", "8", "--lengths", "1Ki", *args)
    assert done.stdout.startswith(f"Kimi-Linear-48B-A3B on 8 x H200, {split}, ")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--model", "kimi-linear-48b-a3b"], "--gpu: missing"),
        (["--model", "kimi-linear-48b-a3b", "--gpu", "H900"], "hardware.gpu: 'H900' is not in"),
        (["--model", "no-such", "--gpu", "H200"], "no-such: neither a config.json"),
        (["--model", "kimi-linear-48b-a3b", "--gpu", "H200", "--tensor", "2"], "TP2 needs 2 GPUs and there are 1"),
        (["--model", "kimi-linear-48b-a3b", "--gpu", "H200", "--lengths", "1Ki..3Ki"], "not from: 1Ki times"),
        (
            ["--model", "some/model", "--gpu", "H200"],
            "; fetch it first: hf download some/model --include '*config.json'",
        ),
        (["--model", "kimi-linear-48b-a3b", "--gpu-memory-utilization", "nan"], "'nan' is not above 0 and at most 1"),
        (["--model", "kimi-linear-48b-a3b", "--gpu-memory-utilization", "1.5"], "'1.5' is not above 0 and at most 1"),
        (["--model", "kimi-linear-48b-a3b", "--passes", "0"], "--passes: '0' is not a whole number of at least 1"),
        (
            ["--model", "qwen2.5-7b-1m", "--gpu", "H200", "--count", "8", "--decode-context", "8"],
            "this model has no split of 8 GPUs with --decode-context 8",
        ),
        ([], "one of the arguments --config-file --model is required"),
    ],
)
def test_mistakes_give_one_sentence(args: list[str], said: str) -> None:
    done = run(*args)
    assert done.returncode == 1
    assert said in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
