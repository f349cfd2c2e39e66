"""Launcher `external`: a server of somebody else. It is asked, but never started, stopped or signalled."""

import ipaddress
import os
from typing import Any
from urllib.parse import urlsplit

import httpx

from longctx.addresses import base_url
from longctx.campaign.config import ExternalConfig
from longctx.campaign.recipe import Recipe
from longctx.errors import ConfigError, ServerError
from longctx.serve import contract, server_facts
from longctx.serve.http import client, get, model_names
from longctx.serve.machine import host
from longctx.serve.server import Server
from longctx.storage.schemas import HOST_FACTS


def connect(recipe: Recipe, options: ExternalConfig) -> Server:
    """Return the server at options.url. Facts that it does not report are None and their contract entries unproven.

    ServerError(reason='connection') where nobody answers or the key is refused, 'unsupported' where no model list or
    not the model is there.
    """
    url, api_key = base_url(str(options.url)), _api_key(options.api_key_env)
    model = _model(url, api_key, options.model)
    report = server_facts.collect(url, [], {"launcher": "external", "model": model}, api_key=api_key)
    facts_of_host = host.host_facts() if _is_loopback(url) else dict.fromkeys(HOST_FACTS)
    return Server(url, model, report.server_facts(), facts_of_host, _contract(recipe, report), "{}", api_key=api_key)


def _api_key(name: str | None) -> str | None:
    if not name:
        return None
    if not (key := os.environ.get(name, "").strip()):
        raise ConfigError(f"external.api_key_env: the environment variable {name} is not set")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"external.api_key_env: the key in {name} has a character that no HTTP header can carry")
    return key


def _model(url: str, api_key: str | None, wanted: str | None) -> str:
    try:
        with client(url, api_key) as http:
            answer = get(http, "/v1/models")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerError(_unreachable(url, error), "connection") from error
    if answer.is_redirect:
        there = answer.headers.get("location", "").removesuffix("/v1/models")
        raise ServerError(f"external.url: {url} redirects to {there or 'nowhere'}; write that address", "connection")
    if answer.status_code in (401, 403):
        key = "the key" if api_key else "requests without a key"
        raise ServerError(f"external.api_key_env: {url} refuses {key} (status {answer.status_code})", "connection")
    if not (names := model_names(answer)):
        raise ServerError(f"external.url: {url}/v1/models lists no model (status {answer.status_code})", "unsupported")
    if wanted is not None and wanted not in names:
        raise ServerError(f"external.model: {url} serves {', '.join(names)}, not {wanted}", "unsupported")
    if wanted is None and len(names) > 1:
        raise ServerError(f"external.model: {url} serves {', '.join(names)}; name one of them", "unsupported")
    return wanted or names[0]


def _unreachable(url: str, error: Exception) -> str:
    if "CERTIFICATE_VERIFY_FAILED" not in str(error):
        return f"external.url: no server answers at {url} ({error})"
    return f"external.url: the certificate of {url} is not trusted ({error}); SSL_CERT_FILE names its authority's file"


def _contract(recipe: Recipe, report: server_facts.ServerReport) -> list[dict[str, Any]]:
    """Return the contract without max_model_len (each length is compared with it later).

    A setting that the recipe leaves at its default was not asked of this server, so any value agrees.
    """
    entries = [entry for entry in contract.check(recipe, report) if entry["setting"] != "max_model_len"]
    for entry in entries:
        default = Recipe.__dataclass_fields__.get(entry["setting"])
        if entry["setting"] == "model" and not entry["ok"]:
            entry["ok"] = True if report.get("model") == recipe.model else None  # it may be a path there
        elif default is not None and default.default == entry["asked"]:
            entry |= {"asked": None, "ok": None if entry["actual"] is None else True}
    return entries


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
