"""Settings that contradict each other, and files that a configuration names and that do not exist."""

from collections.abc import Iterator
from pathlib import Path

from longctx import resources
from longctx.addresses import ascii_url, base_url
from longctx.campaign import extra_args
from longctx.campaign.config import CampaignConfig, configured_lengths
from longctx.campaign.mode import COLD_MODE, MODES, campaign_facet
from longctx.errors import ConfigError, PromptError
from longctx.redaction import printable


def check_settings(config: CampaignConfig) -> None:
    """Raise ConfigError for the first setting that contradicts another one or names a file that is not there."""
    for faults in (_mode_faults, _file_faults, _server_faults):
        for fault in faults(config):
            raise ConfigError(f"config key {fault}")


def _mode_faults(config: CampaignConfig) -> Iterator[str]:
    sections = {mode: campaign_facet(mode).section(config) for mode in MODES}
    own = {mode: configured_lengths(section, f"{mode}.") for mode, section in sections.items() if section}
    if not configured_lengths(config, "") and not all(own[mode] for mode in config.modes if mode != COLD_MODE):
        yield "lengths: missing; give lengths: [1Ki, 4Ki] or from: 1Ki and to: 64Ki"
    for mode in config.modes:
        campaign_facet(mode).check(config)


def _file_faults(config: CampaignConfig) -> Iterator[str]:
    """Yield what is wrong with the model, the prompt shape and the manifest; the corpus itself may come later."""
    model, source = config.model, config.model.source
    if model.trust_remote_code and not (model.revision or Path(source).is_dir()):
        yield "model.revision: missing; trust_remote_code runs the repository's code, so pin its commit"
    if source == "synthetic" and model.weights == "real":
        yield "model.weights: a synthetic model has no weights; write weights: random"
    looks_like_path = source.startswith((".", "/", "~")) or source.count("/") > 1
    if looks_like_path and not Path(source).expanduser().is_dir():
        yield f"model.source: the folder {source} does not exist"
    if model.geometry and not (resources.ROOT / model.geometry).is_file():
        yield f"model.geometry: the file {model.geometry} does not exist"
    if not (source == "synthetic" or "/" in source or looks_like_path or Path(source).is_dir()):
        yield f"model.source: {source!r} is neither 'synthetic', an existing folder nor a Hugging Face id (owner/name)"
    try:
        resources.shape_folder(config.prompt.shape)
    except PromptError as error:
        yield f"prompt.shape: {error}"
    manifest = config.corpus.source
    if manifest.endswith((".yaml", ".yml")) and not Path(manifest).is_file():
        yield f"corpus.source: the manifest {manifest} does not exist"


def _server_faults(config: CampaignConfig) -> Iterator[str]:
    yield from extra_args.faults(config.serve.extra_args)
    if config.launcher == "container" and not config.container.image:
        yield "container.image: missing; launcher: container needs an image"
    if config.launcher == "external" and not config.external.url:
        yield "external.url: missing; launcher: external needs the server's address"
    if url := config.external.url:
        try:
            ascii_url(base_url(url))
        except ValueError as error:
            yield f"external.url: {printable(url)!r} is no address of a server: {error}"
    if config.launcher == "external" and config.checkpoint:
        yield "checkpoint: launcher: external does not start servers; remove it"
    if config.checkpoint and config.serve.cpu_kv_cache_gib:
        yield "checkpoint: vLLM offloads KV blocks on GPUs only; remove it for a CPU server"
    room = config.serve.headroom_tokens
    need = config.max_new_tokens + max(campaign_facet(mode).suffix_tokens(config) for mode in config.modes)
    if room < need:
        told = f"{room} tokens cannot hold the {need} tokens that follow a prompt; raise it to {need} or more"
        yield f"serve.headroom_tokens: {told}"
