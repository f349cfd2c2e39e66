"""A secret in a configuration is refused before anything is written, and the message does not repeat it."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from longctx.campaign.campaign import from_dict
from longctx.campaign.config import ServeConfig
from longctx.campaign.recipe import Recipe
from longctx.campaign.secrets import refuse_secrets
from longctx.errors import ConfigError
from longctx.processes.launch import Ownership
from longctx.serve.launchers import local

ROOT = Path(__file__).parents[3]
VALUE = "s3cretWord"


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"serve": {"env": {"HF_TOKEN": VALUE}}}, "serve.env.HF_TOKEN"),
        ({"serve": {"env": {"my_api_key": VALUE}}}, "serve.env.my_api_key"),
        ({"container": {"build_args": {"PIP_PASSWORD": VALUE}}}, "container.build_args.PIP_PASSWORD"),
        ({"serve": {"env": {"NOTE": f"hf_{VALUE}"}}}, "serve.env.NOTE"),
        ({"serve": {"extra_args": ["--seed", "--api-key", VALUE]}}, "serve.extra_args.1"),
        ({"serve": {"extra_args": [f"--hf-token={VALUE}"]}}, "serve.extra_args.0"),
        ({"external": {"url": f"https://me:{VALUE}@llm.example"}}, "external.url"),
        ({"external": {"api_key_env": f"sk-{VALUE}"}}, "external.api_key_env"),
        ({"max_new_tokens": f"hf_{VALUE}"}, "max_new_tokens"),
    ],
)
def test_it_is_refused_by_its_key_and_not_repeated(given: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        from_dict({"lengths": ["1Ki"], **given})
    assert str(refused.value).startswith(f"config key {key}: ")
    assert VALUE not in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        {"env": {"VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE": 163840, "TOKENIZERS_PARALLELISM": "false"}},
        {"extra_args": ["--seed", "7", "--api-key-like"], "url": "http://127.0.0.1:8000/v1"},
        {"pass_env": ["HF_TOKEN"], "api_key_env": "VLLM_API_KEY", "env": {"A_TOKEN": ""}},
    ],
)
def test_names_and_numbers_are_no_secrets(given: dict[str, Any]) -> None:
    refuse_secrets(given)


@pytest.mark.parametrize("path", [ROOT / "config.yaml", *sorted((ROOT / "workflow" / "campaigns").glob("*.yaml"))])
def test_no_campaign_of_ours_holds_one(path: Path) -> None:
    refuse_secrets(yaml.safe_load(path.read_text()))


def test_a_key_for_a_server_of_others_is_not_given_to_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM would answer 401 to everybody without it, our own question for its models included."""
    monkeypatch.setenv("VLLM_API_KEY", VALUE)
    monkeypatch.setenv("HF_TOKEN", "kept")
    recipe, owner = Recipe(model="m", served_name="m", max_model_len=1), Ownership("c", Path("/tmp"))
    launch = local.prepare(recipe, ServeConfig(), owner, "127.0.0.1", 1)
    assert "VLLM_API_KEY" not in launch.env
    assert launch.env["HF_TOKEN"] == "kept"
