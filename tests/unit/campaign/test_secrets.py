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
GITHUB = "ghp_0123456789abcdefghijKLMNOPQRSTUVWXYZ"
AWS = "AKIAIOSFODNN7EXAMPLE"


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"serve": {"env": {"HF_TOKEN": VALUE}}}, "serve.env.HF_TOKEN"),
        ({"serve": {"env": {"my_api_key": VALUE}}}, "serve.env.my_api_key"),
        ({"serve": {"env": {"my_api_key": f"{VALUE}="}}}, "serve.env.my_api_key"),
        ({"container": {"build_args": {"PIP_PASSWORD": VALUE}}}, "container.build_args.PIP_PASSWORD"),
        ({"serve": {"env": {"NOTE": f"hf_{VALUE}"}}}, "serve.env.NOTE"),
        ({"serve": {"extra_args": ["--seed", "--api-key", VALUE]}}, "serve.extra_args.1"),
        ({"serve": {"extra_args": [f"--hf-token={VALUE}"]}}, "serve.extra_args.0"),
        ({"external": {"url": f"https://me:{VALUE}@llm.example"}}, "external.url"),
        ({"external": {"api_key_env": f"sk-{VALUE}"}}, "external.api_key_env"),
        ({"max_new_tokens": f"hf_{VALUE}"}, "max_new_tokens"),
        ({"container": {"extra_args": [f"--env=GH_TOKEN={GITHUB}"]}}, "container.extra_args.0"),
        ({"container": {"extra_args": ["--rm", f"--env=GH_TOKEN={VALUE}"]}}, "container.extra_args.1"),
        ({"container": {"extra_args": ["-e", f"DB_PASSWORD={VALUE}"]}}, "container.extra_args.1"),
        ({"container": {"extra_args": [f"-eDB_PASSWORD={VALUE}"]}}, "container.extra_args.0"),
        ({"container": {"extra_args": [f"--env NOTE=github_pat_{VALUE}"]}}, "container.extra_args.0"),
        ({"container": {"extra_args": [f"--creds=me:{VALUE}"]}}, "container.extra_args.0"),
        ({"container": {"build_args": {"AITER_REPO": f"https://x:{VALUE}@github.com/ROCm/aiter.git"}}}, "container.bu"),
        ({"container": {"build_args": {"NOTE": AWS}}}, "container.build_args.NOTE"),
        ({"container": {"mounts": [f"s3://{VALUE}@bucket:/data"]}}, "container.mounts.0"),
        ({"container": {"image": f"https://me:{VALUE}@registry.example/vllm:1"}}, "container.image"),
        ({"serve": {"env": {"PIP_INDEX_URL": f"https://{VALUE}@pypi.example/simple"}}}, "serve.env.PIP_INDEX_URL"),
        ({"serve": {"extra_args": ["--ssl-keyfile-password", VALUE]}}, "serve.extra_args.0"),
        ({"serve": {"extra_args": [f"--api_key={VALUE}"]}}, "serve.extra_args.0"),
        ({"serve": {"extra_args": [f'--kv-transfer-config={{"api_key": "{VALUE}"}}']}}, "serve.extra_args.0"),
        ({"serve": {"extra_args": [f"Authorization: Bearer {VALUE}"]}}, "serve.extra_args.0"),
        ({"external": {"url": f"http://h/?api_key={VALUE}"}}, "external.url"),
        ({"external": {"url": f"http://h/v1?model=m&access_token={VALUE}"}}, "external.url"),
        ({"external": {"url": f"https://h/?X-Amz-Signature={VALUE}"}}, "external.url"),
        ({"external": {"url": f"http://{VALUE}@h"}}, "external.url"),
        ({"external": {"url": f"http://me:p@{VALUE}@h:8000"}}, "external.url"),
        ({"external": {"model": f"sk-proj-{VALUE}"}}, "external.model"),
        ({"compare": [f"https://h/summary.parquet?sig={VALUE}"]}, "compare.0"),
        ({"compare": {"a": f"s3://key:{VALUE}@bucket/summary.parquet"}}, "compare.a"),
        ({"serve": {"env": {f"ghp_{VALUE}": "1"}}}, "serve.env.[secret]"),
        ({f"hf_{VALUE}": 1}, "[secret]"),
        ({"serve": {"env": {"DB_PASS": VALUE}}}, "serve.env.DB_PASS"),
        ({"serve": {"env": {"GITHUB_PAT": VALUE}}}, "serve.env.GITHUB_PAT"),
        ({"serve": {"env": {"BASIC_AUTH": f"me:{VALUE}"}}}, "serve.env.BASIC_AUTH"),
        ({"serve": {"extra_args": [f"--token={VALUE}"]}}, "serve.extra_args.0"),
        ({"serve": {"extra_args": ["--client-secret", VALUE]}}, "serve.extra_args.0"),
        ({"serve": {"extra_args": ["--header", f"X-API-Key: {VALUE}"]}}, "serve.extra_args.1"),
        ({"serve": {"extra_args": [f'--kv-transfer-config={{"a": {{"token": "{VALUE}"}}}}']}}, "serve.extra_args.0"),
        ({"serve": {"extra_args": [f'{{"client_secret": "{VALUE}"}}']}}, "serve.extra_args.0"),
        ({"external": {"url": f"http://me:a/{VALUE}@h:8000"}}, "external.url"),
        ({"external": {"url": f"https://h/api?code={VALUE}"}}, "external.url"),
        ({"external": {"model": f"gsk_{VALUE}0123456789"}}, "external.model"),
        ({"external": {"model": f"sk_live_{VALUE}"}}, "external.model"),
        ({"container": {"build_args": {"A": f"dckr_oat_{VALUE}"}}}, "container.build_args.A"),
        ({"container": {"build_args": {"A": f"hvs.{VALUE}"}}}, "container.build_args.A"),
        ({"container": {"build_args": {"A": f"glrt-{VALUE}"}}}, "container.build_args.A"),
        ({"container": {"build_args": {"A": f"https://hooks.slack.com/services/T0/B0/{VALUE}"}}}, "container.build"),
    ],
)
def test_it_is_refused_by_its_key_and_not_repeated(given: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        from_dict({"lengths": ["1Ki"], **given})
    assert str(refused.value).startswith(f"config key {key}")
    assert "\n" not in str(refused.value)
    assert not [secret for secret in (VALUE, GITHUB, AWS) if secret in str(refused.value)]


@pytest.mark.parametrize(
    "given",
    [
        {"env": {"VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE": 163840, "TOKENIZERS_PARALLELISM": "false"}},
        {"extra_args": ["--seed", "7", "--api-key-like"], "url": "http://127.0.0.1:8000/v1"},
        {"extra_args": ["--env=HF_TOKEN", "-e", "HF_HOME=/data", "--env=TOKENIZERS_PARALLELISM=false"]},
        {
            "extra_args": [
                "--ssl-keyfile=/etc/ssl/key.pem",
                "--max-num-batched-tokens=131072",
                "--served-model-name=key",
            ]
        },
        {"extra_args": ["--hf-overrides", '{"bos_token": "<|begin_of_text|>", "eos_token_id": 128001}']},
        {"extra_args": ["--secret", "id=pip,src=/etc/pip.conf", "--env=VLLM_MAX_TOKENS=163840", "task-force-of-five"]},
        {
            "build_args": {
                "AITER_REPO": "ssh://git@github.com/ROCm/aiter.git",
                "BASE": "docker.io/vllm/vllm@sha256:" + "0" * 64,
            }
        },
        {"build_args": {"A": "git+ssh://git@github.com/x.git"}, "mounts": ["~/data:/data:ro", "/a@b:/c"]},
        {
            "url": "http://[::1]:8000/v1",
            "compare": ["results/a/summary.parquet?x=1", "https://h/x.csv?design=12345678"],
        },
        {"model": "xai-org/grok-2", "url": "http://h:8000/a@b", "env": {"VLLM_HOST_IP": "127.0.0.1"}},
        {"extra_args": ["--hf-overrides", '{"image_token": "<|image_pad|>", "tokenizer_class": "PreTrained"}']},
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
