"""Settings that contradict each other, which the schema alone cannot see."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longctx import resources
from longctx.errors import ConfigError, PromptError
from longctx.lengths import ladder, parse_length
from longctx.resources import ROOT


def check_sense(config: dict[str, Any]) -> None:
    """Refuse what the schema cannot see: settings that contradict each other."""
    for section, name in ((config, ""), (config["decode_only"], "decode_only."), (config["reuse"], "reuse.")):
        lengths(section, name)
    if not (lengths(config, "") or all(lengths(config[m], m) for m in config["modes"] if m != "prefill")):
        raise ConfigError("config key lengths: missing; give lengths: [1Ki, 4Ki] or from: 1Ki and to: 64Ki")
    if "prefill" in config["modes"] and not lengths(config, ""):
        raise ConfigError("config key lengths: missing; mode prefill needs lengths, or from and to")
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
    return int(config["max_new_tokens"] + (config["reuse"]["suffix_tokens"] if mode == "reuse" else 0))


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
    if "decode_only" in config["modes"]:
        raise ConfigError(
            "config key modes: decode_only needs a server started with vLLM's DecodeBenchConnector, which launcher:"
            " external does not start; remove the mode"
        )
    if config["checkpoint"]:
        raise ConfigError("config key checkpoint: launcher: external does not start servers; remove it")


def lengths(section: Mapping[str, Any], name: str) -> list[int]:
    """Return the lengths of a section in ascending order, [] where it gives none."""
    if ("from" in section) != ("to" in section):
        missing = "to" if "from" in section else "from"
        raise ConfigError(f"config key {name}{missing}: missing; from and to go together")
    if "from" in section:
        try:
            return ladder(section["from"], section["to"])
        except ConfigError as error:
            raise ConfigError(f"config keys {name}from and {name}to: {error}") from error
    try:
        return sorted({parse_length(value) for value in section.get("lengths", ())})
    except ConfigError as error:
        raise ConfigError(f"config key {name}lengths: {error}") from error
