import json
import subprocess
import sys
from pathlib import Path

import pytest
import tinytokenizers
import yaml
from longctx.campaign.campaign import from_dict
from longctx.errors import PromptError
from longctx.prompts import synthetic_model, variants
from longctx.prompts.pretrained import TokenizerSpec
from longctx.prompts.sources import CorpusSpec
from longctx.prompts.tokenizers import load_tokenizer
from longctx.storage import parquet, schemas

SCRIPTS = Path(__file__).parents[3] / "scripts"
FILES = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}


@pytest.fixture
def corpus():
    return CorpusSpec(str(tinytokenizers.corpus_folder()))


def test_the_same_inputs_give_the_same_model(tmp_path, corpus):
    for name in ("a", "b"):
        synthetic_model.make_model(tmp_path / name, {"vocab_size": 600}, corpus)
    files = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    assert set(files) == FILES
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}


def test_the_default_is_a_tiny_llama_whose_parts_agree(tmp_path):
    synthetic_model.make_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["architectures"], config["hidden_size"], config["head_dim"]) == (["LlamaForCausalLM"], 128, 64)
    tokenizer = load_tokenizer(TokenizerSpec(str(tmp_path)))
    assert tokenizer.vocab_size == config["vocab_size"] == 4096
    assert tokenizer.special_ids == {config["bos_token_id"], config["eos_token_id"]}
    assert tokenizer.invertible


def test_geometry_replaces_fields(tmp_path, corpus):
    synthetic_model.make_model(tmp_path, {"vocab_size": 512, "num_hidden_layers": 3}, corpus)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["vocab_size"], config["num_hidden_layers"], config["hidden_size"]) == (512, 3, 128)
    with pytest.raises(PromptError, match="at least 258"):
        synthetic_model.make_model(tmp_path, {"vocab_size": 100}, corpus)


@pytest.mark.parametrize("nested", [False, True])
def test_a_real_geometry_is_kept(tmp_path, corpus, nested):
    real = {"model_type": "kimi_linear", "hidden_size": 2304, "bos_token_id": 163584}
    real |= {"text_config": {"vocab_size": 163_840}} if nested else {"vocab_size": 163_840}
    (tmp_path / "real.json").write_text(json.dumps(real))
    synthetic_model.make_dummy_from_config(tmp_path / "real.json", tmp_path / "m", corpus)
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert {**real, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1} == config
    assert load_tokenizer(TokenizerSpec(str(tmp_path / "m"))).vocab_size <= 163_840


@pytest.mark.parametrize("text", ["{", "[]", '{"hidden_size": 4}'])
def test_a_config_without_vocabulary_is_named(tmp_path, corpus, text):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(PromptError, match=r"bad\.json: not a model's config\.json"):
        synthetic_model.make_dummy_from_config(tmp_path / "bad.json", tmp_path / "m", corpus)


def manifest_of(tmp_path, corpus):
    entries = [{"name": folder.name, "url": "https://example.org/x", "ref": "v1"} for folder in Path(corpus).iterdir()]
    path = tmp_path / "manifest.yaml"
    path.write_text(yaml.safe_dump({"repositories": entries}))
    return path


@pytest.mark.process
def test_the_scripts_go_from_corpus_to_validated_prompt(tmp_path):
    model, stream, path = (str(tmp_path / name) for name in ("model", "stream.parquet", "4Ki.parquet"))
    corpus = str(tinytokenizers.corpus_folder())
    made_of = from_dict(
        {
            "model": {"source": "synthetic", "weights": "dummy", "vocabulary": 600},
            "lengths": ["4Ki"],
            "corpus": {"source": str(manifest_of(tmp_path, corpus)), "folder": corpus},
        }
    )
    steps = [
        ["model.py", "--out", model, *made_of.corpus_arguments, *made_of.model_arguments],
        ["corpus.py", "build", *made_of.corpus_arguments, "--tokenizer", model, "--tokens", "4Ki", "--out", stream],
        ["prompt.py", "--stream", stream, "--tokenizer", model, "--length", "4Ki", "--out", path],
        [
            "validate.py",
            "--prompt",
            path,
            "--tokenizer",
            model,
            "--length",
            "4Ki",
            "--out",
            str(tmp_path / "v.parquet"),
        ],
    ]
    outputs = [
        subprocess.run([sys.executable, str(SCRIPTS / step[0]), *step[1:]], capture_output=True, text=True, check=True)
        for step in steps
    ]
    assert "shorter than 4096 tokens, so it is read" in outputs[1].stderr
    assert len(outputs[2].stderr.splitlines()) == 2
    assert json.loads((tmp_path / "model" / "config.json").read_text())["vocab_size"] == 600
    assert len(variants.read_ids(path)) == 4096
    row = parquet.read_rows(tmp_path / "v.parquet", schemas.VALIDATION)[0]
    assert row["ok"]
    assert row["cycles"] > 1
