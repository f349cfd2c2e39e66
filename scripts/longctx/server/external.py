"""Launcher `external`: a server that somebody else runs. It is asked, never started, stopped or signalled.

Options: url (http://host:port, with or without /v1), api_key_env (name of the variable that holds the key).
"""

import ipaddress
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from longctx.errors import ConfigError, ServerError
from longctx.server import contract, environment, facts
from longctx.server.recipe import Recipe
from longctx.server.running import Server


def connect(recipe: Recipe, options: Mapping[str, Any]) -> Server:
    """Return the server at options['url'], which must serve the recipe's served name or one model only.

    Facts that it doesn't tell are None and their contract entries unproven. ServerError(reason='connection') where
    nobody answers, 'unsupported' where no model list or not the model is there.
    """
    url = str(options["url"]).rstrip("/").removesuffix("/v1")
    api_key = _api_key(options.get("api_key_env"))
    model = _model(url, api_key, recipe.served_name)
    said = facts.collect(url, [], {"launcher": "external", "model": model}, api_key=api_key)
    return Server(
        url=url,
        model=model,
        facts=said.server_facts(),
        host_facts=environment.host_facts() if _is_loopback(url) else environment.no_host_facts(),
        contract=_contract(recipe, said),
        env_json="{}",
        has_metrics=bool(said.get("has_metrics")),
        api_key=api_key,
    )


def _api_key(name: str | None) -> str | None:
    if not name:
        return None
    if not os.environ.get(name):
        raise ConfigError(f"launcher.api_key_env: the environment variable {name} is not set")
    return os.environ[name]


def _model(url: str, api_key: str | None, wanted: str) -> str:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        answer = httpx.get(f"{url}/v1/models", headers=headers, timeout=20.0, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerError(f"launcher.url: no server answers at {url} ({error})", "connection") from error
    if answer.status_code in (401, 403):
        raise ServerError(f"launcher.api_key_env: {url} refuses the key (status {answer.status_code})", "connection")
    try:
        names = [str(model["id"]) for model in answer.json()["data"]] if answer.is_success else []
    except (ValueError, KeyError, TypeError):
        names = []
    if not names:
        raise ServerError(f"launcher.url: {url}/v1/models lists no model (status {answer.status_code})", "unsupported")
    if wanted not in names and len(names) > 1:
        raise ServerError(f"launcher.url: {url} serves {', '.join(names)}, not {wanted}", "unsupported")
    return wanted if wanted in names else names[0]


def _contract(recipe: Recipe, said: facts.Said) -> list[dict[str, Any]]:
    """Return the contract without max_model_len (lengths are held against it one by one); a model may be a path."""
    entries = [entry for entry in contract.check(recipe, said) if entry["setting"] != "max_model_len"]
    for entry in entries:
        if entry["setting"] == "model" and not entry["ok"]:
            entry["ok"] = True if said.get("model") in (recipe.model, recipe.served_name) else None
    return entries


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
