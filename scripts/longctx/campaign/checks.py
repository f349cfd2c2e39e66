"""Settings that contradict each other, and files that a configuration names and that do not exist."""

from pathlib import Path

from longctx import resources
from longctx.campaign.config import CampaignConfig, configured_lengths
from longctx.campaign.mode import COLD_MODE, MODES, campaign_facet
from longctx.errors import ConfigError, PromptError
from longctx.resources import ROOT


def check_settings(config: CampaignConfig) -> None:
    """Raise ConfigError for the first setting that contradicts another one or names a file that is not there."""
    _check_lengths(config)
    for mode in config.modes:
        campaign_facet(mode).check(config)
    _check_model(config)
    _check_prompt(config)
    _check_server(config)
    need = config.max_new_tokens + max(campaign_facet(mode).suffix_tokens(config) for mode in config.modes)
    if config.serve.headroom_tokens < need:
        raise ConfigError(
            f"config key serve.headroom_tokens: {config.serve.headroom_tokens} tokens cannot hold the"
            f" {need} tokens that follow a prompt; raise it to {need} or more"
        )


def _check_lengths(config: CampaignConfig) -> None:
    sections = {mode: campaign_facet(mode).section(config) for mode in MODES}
    own = {mode: configured_lengths(section, f"{mode}.") for mode, section in sections.items() if section}
    if not configured_lengths(config, "") and not all(own[mode] for mode in config.modes if mode != COLD_MODE):
        raise ConfigError("config key lengths: missing; give lengths: [1Ki, 4Ki] or from: 1Ki and to: 64Ki")


def _check_model(config: CampaignConfig) -> None:
    model = config.model
    if model.trust_remote_code and not (model.revision or Path(model.source).is_dir()):
        raise ConfigError(
            "config key model.revision: missing; trust_remote_code runs the repository's code, so pin its commit"
        )
    if model.source == "synthetic" and model.weights == "real":
        raise ConfigError("config key model.weights: a synthetic model has no weights; write weights: dummy")
    looks_like_path = model.source.startswith((".", "/", "~")) or model.source.count("/") > 1
    if looks_like_path and not Path(model.source).expanduser().is_dir():
        raise ConfigError(f"config key model.source: the folder {model.source} does not exist")
    if model.geometry and not (ROOT / model.geometry).is_file():
        raise ConfigError(f"config key model.geometry: the file {model.geometry} does not exist")
    is_hub_id = model.source.count("/") == 1
    if not (model.source == "synthetic" or looks_like_path or is_hub_id or Path(model.source).is_dir()):
        raise ConfigError(
            f"config key model.source: {model.source!r} is neither 'synthetic', an existing folder nor a"
            " Hugging Face id (owner/name)"
        )


def _check_prompt(config: CampaignConfig) -> None:
    """Refuse a prompt shape or a manifest that is not there; the corpus itself may come later."""
    try:
        resources.shape_folder(config.prompt.shape)
    except PromptError as error:
        raise ConfigError(f"config key prompt.shape: {error}") from error
    manifest = config.corpus.source
    if manifest.endswith((".yaml", ".yml")) and not Path(manifest).is_file():
        raise ConfigError(f"config key corpus.source: the manifest {manifest} does not exist")


def _check_server(config: CampaignConfig) -> None:
    if config.launcher == "container" and not config.container.image:
        raise ConfigError("config key container.image: missing; launcher: container needs an image")
    if config.launcher == "external" and not config.external.url:
        raise ConfigError("config key external.url: missing; launcher: external needs the server's address")
    if config.launcher == "external" and config.checkpoint:
        raise ConfigError("config key checkpoint: launcher: external does not start servers; remove it")
    if config.checkpoint and config.serve.cpu_kv_cache_gib:
        raise ConfigError("config key checkpoint: vLLM offloads KV blocks on GPUs only; remove it for a CPU server")
