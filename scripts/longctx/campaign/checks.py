"""Settings that contradict each other, which the schema alone cannot see."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longctx import resources
from longctx.campaign.mode import COLD_MODE, MODES, campaign_facet
from longctx.errors import ConfigError, PromptError
from longctx.lengths import configured_lengths
from longctx.resources import ROOT


def check_sense(config: dict[str, Any]) -> None:
    """Refuse what the schema cannot see: settings that contradict each other."""
    common = configured_lengths(config, "")
    own = {mode: configured_lengths(campaign_facet(mode).section(config), f"{mode}.") for mode in MODES}
    if not (common or all(own[mode] for mode in config["modes"] if mode != COLD_MODE)):
        raise ConfigError("config key lengths: missing; give lengths: [1Ki, 4Ki] or from: 1Ki and to: 64Ki")
    for mode in config["modes"]:
        campaign_facet(mode).check(config)
    model = config["model"]
    if model["trust_remote_code"] and not (model["revision"] or Path(model["source"]).is_dir()):
        raise ConfigError(
            "config key model.revision: missing; trust_remote_code runs the repository's code, so pin its commit"
        )
    if model["source"] == "synthetic" and model["weights"] == "real":
        raise ConfigError("config key model.weights: a synthetic model has no weights; write weights: dummy")
    _check_model_exists(model)
    _check_prompt(config)
    if config["launcher"] == "container" and not config["container"]["image"]:
        raise ConfigError("config key container.image: missing; launcher: container needs an image")
    if config["launcher"] == "external":
        _check_external(config)
    if config["checkpoint"] and config["launcher"] != "external" and config["serve"]["cpu_kv_cache_gib"]:
        raise ConfigError("config key checkpoint: vLLM offloads KV blocks on GPUs only; remove it for a CPU server")
    need = max(tokens_after_prompt(config, mode) for mode in config["modes"])
    if config["serve"]["headroom_tokens"] < need:
        raise ConfigError(
            f"config key serve.headroom_tokens: {config['serve']['headroom_tokens']} tokens cannot hold the"
            f" {need} tokens that follow a prompt; raise it to {need} or more"
        )


def tokens_after_prompt(config: Mapping[str, Any], mode: str) -> int:
    return int(config["max_new_tokens"]) + campaign_facet(mode).suffix_tokens(config)


def _check_model_exists(model: Mapping[str, Any]) -> None:
    source = model["source"]
    looks_like_path = source.startswith((".", "/", "~")) or source.count("/") > 1
    if looks_like_path and not Path(source).expanduser().is_dir():
        raise ConfigError(f"config key model.source: the folder {source} does not exist")
    if model["geometry"] and not (ROOT / model["geometry"]).is_file():
        raise ConfigError(f"config key model.geometry: the file {model['geometry']} does not exist")
    if source != "synthetic" and not looks_like_path and not Path(source).is_dir() and source.count("/") != 1:
        raise ConfigError(
            f"config key model.source: {source!r} is neither 'synthetic', an existing folder nor a Hugging Face id"
            " (owner/name)"
        )


def _check_prompt(config: Mapping[str, Any]) -> None:
    """Refuse a prompt shape or a manifest that is not there; the corpus itself may come later."""
    try:
        resources.shape_folder(config["prompt"]["shape"])
    except PromptError as error:
        raise ConfigError(f"config key prompt.shape: {error}") from error
    manifest = str(config["corpus"]["source"])
    if manifest.endswith((".yaml", ".yml")) and not Path(manifest).is_file():
        raise ConfigError(f"config key corpus.source: the manifest {manifest} does not exist")


def _check_external(config: Mapping[str, Any]) -> None:
    if not config["external"]["url"]:
        raise ConfigError("config key external.url: missing; launcher: external needs the server's address")
    if config["checkpoint"]:
        raise ConfigError("config key checkpoint: launcher: external does not start servers; remove it")
