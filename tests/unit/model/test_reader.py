"""A Hugging Face token in ~/hf_token is as good as HF_TOKEN, for the tokenizer's download and for every server."""

import sys
from pathlib import Path
from typing import Any

import pytest
import transformers
from longctx.campaign.config import ServeConfig
from longctx.campaign.recipe import Recipe
from longctx.errors import PromptError
from longctx.model.reader import hub_token
from longctx.processes.launch import Ownership
from longctx.prompts import tokenizers
from longctx.serve.launchers import local

SECRET = "hf_thisMustNeverBeSeen"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    (tmp_path / "hf_token").write_text(f"{SECRET}\n")


def test_the_environment_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    assert hub_token() == "hf_another"


def test_an_empty_file_is_no_token(tmp_path: Path) -> None:
    (tmp_path / "hf_token").write_text("\n")
    assert hub_token() is None


def test_a_tokenizer_is_fetched_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def fetch(source: str, **options: Any) -> None:
        asked.append(options["token"])
        raise OSError("no network in a test")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", fetch)
    with pytest.raises(PromptError, match="no network"):
        tokenizers.load_tokenizer(tokenizers.TokenizerSpec("owner/gated", revision="0" * 40))
    assert asked == [SECRET]


def test_a_local_server_gets_it_and_its_command_line_does_not(tmp_path: Path) -> None:
    owner = Ownership(id="1a2b", campaign="c", run_dir=tmp_path)
    recipe = Recipe(model="owner/gated", served_name="m", max_model_len=1040)
    launch = local.prepare(recipe, ServeConfig(python=sys.executable), owner, "127.0.0.1", 8001)
    assert launch.env["HF_TOKEN"] == SECRET
    assert SECRET not in " ".join(launch.command)
