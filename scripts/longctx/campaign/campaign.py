"""A campaign: its points, its recipes and their identity, and the arguments of the scripts that it runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import yaml

from longctx.campaign.checks import check_settings
from longctx.campaign.config import CampaignConfig, Launcher, configured_lengths, parse_config
from longctx.campaign.mode import COLD_MODE, MODES, RequestKey, campaign_facet
from longctx.campaign.point import Point
from longctx.campaign.recipe import OPERATIONAL, Recipe, serve_settings
from longctx.campaign.secrets import refuse_secrets
from longctx.errors import ConfigError
from longctx.lengths import parse_length
from longctx.resources import ROOT
from longctx.storage.atomic import write_atomic
from longctx.storage.provenance import stable_hash

RESULTS = Path("results")


@dataclass(frozen=True, slots=True)
class Campaign:
    """A validated configuration and what follows from it. Paths are relative to the working folder."""

    config: CampaignConfig

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def results(self) -> Path:
        return RESULTS if self.name == "default" else RESULTS / self.name

    @property
    def modes(self) -> tuple[str, ...]:
        return tuple(mode.value for mode in self.config.modes)

    def passes_of(self, mode: str) -> int:
        """Return how often a mode climbs its ladder: its own `passes`, else the campaign's."""
        section = campaign_facet(mode).section(self.config)
        return (section and section.passes) or self.config.passes

    @property
    def scope(self) -> str:
        """How long one server lives: 'point', 'pass' or 'campaign', which an external one always does."""
        return "campaign" if self.config.launcher == "external" else self.config.serve.scope

    def lengths(self, mode: str = COLD_MODE) -> list[int]:
        """Return the prompt lengths of a mode in tokens, ascending."""
        section = campaign_facet(mode).section(self.config)
        return (section and configured_lengths(section, f"{mode}.")) or configured_lengths(self.config, "")

    def all_lengths(self) -> list[int]:
        return sorted({length for mode in self.modes for length in self.lengths(mode)})

    def points(self, mode: str | None = None) -> list[Point]:
        """Return every rung and pass, short rungs first."""
        modes = [mode] if mode else self.modes
        return sorted(Point(n, p, m) for m in modes for n in self.lengths(m) for p in range(1, self.passes_of(m) + 1))

    def repeats(self, length: int) -> int:
        """Return the number of cold requests per pass at this length."""
        return self.config.repeats.count if length <= parse_length(self.config.repeats.up_to) else 1

    def requests(self, point: Point) -> list[RequestKey]:
        """Return the (role, request_index) that a point must have; index 0 is the first one."""
        facet, length = campaign_facet(point.mode), point.length
        requests = facet.requests(self.config, self.repeats(length), length, point.pass_index)
        return [(str(role), index) for role, index in requests]  # plain: Snakemake compares them with earlier runs'

    def tokens_after_prompt(self, mode: str) -> int:
        """Return the tokens that a request adds to its prompt: the answer, and the mode's query before it."""
        return self.config.max_new_tokens + campaign_facet(mode).suffix_tokens(self.config)

    @property
    def synthetic_weights(self) -> bool:
        return self.config.model.weights != "real"

    @property
    def model_name(self) -> str:
        """The model's name in requests, rows and figures."""
        model = self.config.model
        name, folder = model.source, Path(model.source).expanduser()
        if model.source == "synthetic":
            name = Path(model.geometry).stem if model.geometry else "tiny-llama"
        elif folder.is_dir():
            name = folder.resolve().name
        return f"{name}-random-weights" if self.synthetic_weights else name

    @property
    def model_path(self) -> str:
        """What vLLM is asked to load: a folder or a Hugging Face id."""
        source = self.config.model.source
        if source == "synthetic":
            return str(self.results / "model")
        return str(Path(source).expanduser()) if Path(source).expanduser().is_dir() else source

    @property
    def tokenizer_arguments(self) -> list[str]:
        """Command-line arguments of the scripts that need the model's tokenizer."""
        model, arguments = self.config.model, ["--tokenizer", self.model_path]
        arguments += ["--revision", model.revision] if model.revision else []
        return arguments + (["--trust-remote-code"] if model.trust_remote_code else [])

    @property
    def corpus_arguments(self) -> list[str]:
        """Command-line arguments that name the corpus: 'packages', 'stdlib', a folder, or a manifest and a folder."""
        corpus = self.config.corpus
        if corpus.source.endswith((".yaml", ".yml")):
            return ["--corpus", corpus.folder, "--manifest", corpus.source]
        return ["--corpus", corpus.source]

    @property
    def image_arguments(self) -> list[str]:
        """Command-line arguments of scripts/image.py."""
        container = self.config.container
        arguments = ["--image", str(container.image)]
        arguments += ["--engine", container.engine] if container.engine else []
        arguments += ["--containerfile", container.containerfile] if container.containerfile else []
        return arguments + [f"--build-arg={name}={value}" for name, value in container.build_args.items()]

    @property
    def model_arguments(self) -> list[str]:
        """Command-line arguments of scripts/model.py for a synthetic model."""
        model = self.config.model
        if model.geometry:
            return ["--from-config", str(ROOT / model.geometry)]
        geometry = {"hidden_size": model.hidden_size, "num_hidden_layers": model.layers}
        geometry |= {"num_attention_heads": model.heads, "num_key_value_heads": model.kv_heads}
        geometry["vocab_size"] = model.vocabulary
        return ["--geometry", orjson.dumps(geometry).decode()]

    def settings(self, mode: str) -> dict[str, Any]:
        """Return every setting that changes this mode's numbers: the identity of its recipe."""
        config, raw = self.config, self.config.plain()
        chosen: dict[str, Any] = {"mode": mode, "max_new_tokens": config.max_new_tokens, "model": raw["model"]}
        for key in ("serve", "corpus", "prompt", "measure"):
            chosen[key] = {name: value for name, value in raw[key].items() if name not in OPERATIONAL.get(key, ())}
        chosen["launcher"] = config.launcher
        if config.launcher != "local":
            chosen[config.launcher] = raw[config.launcher]
        chosen["checkpoint"] = config.checkpoint is not None
        return chosen | campaign_facet(mode).identity(config)

    def plan_settings(self) -> dict[str, Any]:
        """Return every setting that the plan depends on."""
        raw = self.config.plain()
        modes = [mode.value for mode in MODES if mode in raw]
        keys = ["modes", "passes", "repeats", "max_new_tokens", *modes, "model", "launcher", "serve", "hardware"]
        chosen = {key: raw[key] for key in [*keys, "checkpoint"]}
        return chosen | {"lengths": {mode: self.lengths(mode) for mode in self.modes}}

    def recipe_hash(self, mode: str) -> str:
        """Return 16 hex digits that differ where any of `settings` does."""
        return stable_hash(self.settings(mode))

    def recipe(self, mode: str, length: int, checkpoint_dir: Path | None = None) -> Recipe:
        """Return what to serve so that prompts up to `length` tokens fit."""
        settings = serve_settings(self.config, mode, length, checkpoint_dir)
        return Recipe(self.model_path, self.model_name, **settings)

    def launcher(self) -> Launcher:
        """Return the section of who starts the server: local, container or external."""
        config = self.config
        sections: dict[str, Launcher] = {"container": config.container, "external": config.external}
        return sections.get(config.launcher, config.serve)

    @property
    def labels(self) -> dict[str, str]:
        """The metadata of its Parquets: the campaign's name, and the hash of the configuration that made the file."""
        return {"campaign": self.name, "config_hash": stable_hash(self.config.plain())}

    @property
    def config_file(self) -> Path:
        """Where `save` writes: a file named by its content, so that no running job sees another's."""
        return self.results / ".config" / f"{self.labels['config_hash']}.json"

    def save(self) -> Path:
        """Write the configuration to `config_file`."""
        if not self.config_file.exists():
            write_atomic(self.config_file, orjson.dumps(self.config.plain(), option=orjson.OPT_INDENT_2))
        return self.config_file


def from_dict(config: Mapping[str, Any]) -> Campaign:
    """Return the campaign of a configuration as Snakemake merged it; ConfigError for the first thing that is wrong."""
    refuse_secrets(config)
    parsed = parse_config(config)
    check_settings(parsed)
    return Campaign(parsed)


def load(path: Path | str) -> Campaign:
    """Return the campaign of a file that `Campaign.save` wrote, or of a YAML file; ConfigError as `from_dict`."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        config = orjson.loads(text) if Path(path).suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: not a readable configuration ({error})") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: not a configuration; expected keys such as lengths and model")
    return from_dict(config)
