"""The Hugging Face token and folders, as huggingface_hub finds them, for tokenizers and servers."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers
from longctx.campaign.config import ServeConfig
from longctx.campaign.recipe import Recipe
from longctx.errors import PromptError
from longctx.model.hub import hub_folders, hub_token
from longctx.processes.launch import Ownership
from longctx.prompts import tokenizers
from longctx.prompts.pretrained import TokenizerSpec
from longctx.serve.launchers import local

SECRET = "hf_thisMustNeverBeSeen"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "hf_token").write_text(f"{SECRET}\n")


def test_the_environment_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    assert hub_token() == "hf_another"


@pytest.mark.parametrize(
    "env",
    [
        {"HF_TOKEN": "hf_another\n"},
        {"HF_TOKEN": "  hf_another\r\n"},
        {"HF_TOKEN": "hf_ano\r\nther"},
        {"HF_TOKEN": "", "HUGGING_FACE_HUB_TOKEN": "hf_another\n"},
        {"HUGGING_FACE_HUB_TOKEN": "\thf_another"},
    ],
)
def test_what_stands_around_a_token_is_no_part_of_it(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert hub_token() == "hf_another"
    # The library's own reading of the same variables, without its folders.
    code = "import huggingface_hub; print(huggingface_hub.get_token())"
    child = {**env, "PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    theirs = subprocess.run([sys.executable, "-c", code], env=child, capture_output=True, text=True, check=True)
    assert theirs.stdout == "hf_another\n"


@pytest.mark.parametrize("blank", ["", " ", "\n", "\r\n"])
def test_a_blank_variable_is_no_token(blank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", blank)
    assert hub_token() == SECRET


@pytest.mark.parametrize("content", [b"\n", b"", b"\xff\xfe"])
def test_a_file_without_a_token_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "hf_token").write_bytes(content)
    assert hub_token() is None


def test_a_token_file_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hf_token").unlink()
    (tmp_path / "elsewhere").write_text(f"{SECRET}\r\n")
    monkeypatch.setenv("HF_TOKEN_PATH", "~/elsewhere")
    assert hub_token() == SECRET


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"HF_HUB_CACHE": "/data/hub"},
        {"HUGGINGFACE_HUB_CACHE": "/data/old-hub"},
        {"HF_HUB_CACHE": "/data/hub", "HUGGINGFACE_HUB_CACHE": "/data/old-hub", "HF_HOME": "/data/home"},
        {"HF_HOME": "~/hf", "XDG_CACHE_HOME": "/data/cache"},
        {"XDG_CACHE_HOME": "/data/cache"},
        {"XDG_CACHE_HOME": "/data/cache", "HF_HUB_CACHE": "~/hub"},
        {"HF_HUB_CACHE": "$HOME/hub/"},
        {"HF_HOME": "relative"},
        {"TRANSFORMERS_CACHE": "/data/transformers"},
    ],
)
def test_the_folders_are_those_of_the_library(env: dict[str, str], tmp_path: Path) -> None:
    code = "import json, huggingface_hub.constants as c; print(json.dumps([c.HF_HOME, c.HF_HUB_CACHE]))"
    child = {**env, "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    theirs = subprocess.run([sys.executable, "-c", code], env=child, capture_output=True, text=True, check=True)
    assert hub_folders(env) == tuple(Path(folder).resolve() for folder in json.loads(theirs.stdout))


def test_a_tokenizer_is_fetched_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def fetch(source: str, **options: Any) -> None:
        asked.append(options["token"])
        raise OSError("no network in a test")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", fetch)
    with pytest.raises(PromptError, match="no network"):
        tokenizers.load_tokenizer(TokenizerSpec("owner/gated", revision="0" * 40))
    assert asked == [SECRET]


def test_a_local_server_gets_it_and_its_command_line_does_not(tmp_path: Path) -> None:
    owner = Ownership(id="1a2b", campaign="c", run_dir=tmp_path)
    recipe = Recipe(model="owner/gated", served_name="m", max_model_len=1040)
    launch = local.prepare(recipe, ServeConfig(python=sys.executable), owner, "127.0.0.1", 8001)
    assert launch.env["HF_TOKEN"] == SECRET
    assert SECRET not in " ".join(launch.command)
