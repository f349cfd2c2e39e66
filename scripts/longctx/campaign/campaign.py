"""A campaign's configuration: validated against the schema, defaults filled in, questions answered.

Keys that belong together (a recipe, a point's requests, a script's arguments) are read here; a module that needs one
value of its own section takes it from `Campaign.raw`, where every key has its default.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import yaml

from longctx.campaign import schema, secrets
from longctx.campaign.checks import check_sense, tokens_after_prompt
from longctx.campaign.identity import OPERATIONAL
from longctx.campaign.mode import COLD_MODE, MODES, RequestKey, campaign_facet
from longctx.campaign.point import Point
from longctx.campaign.recipe import Launcher, Recipe
from longctx.errors import ConfigError
from longctx.lengths import configured_lengths, parse_length
from longctx.resources import ROOT
from longctx.storage.atomic import write_atomic
from longctx.storage.provenance import stable_hash

RESULTS = Path("results")


def validate(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with defaults; ConfigError for the first thing that is wrong with it."""
    secrets.refuse_secrets(config)
    filled = schema.checked(config)
    check_sense(filled)
    return filled


@dataclass(frozen=True, slots=True)
class Campaign:
    """A validated configuration and what follows from it. Paths are relative to the working folder."""

    raw: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.raw["name"])

    @property
    def results(self) -> Path:
        return RESULTS if self.name == "default" else RESULTS / self.name

    @property
    def modes(self) -> tuple[str, ...]:
        return tuple(self.raw["modes"])

    @property
    def passes(self) -> int:
        return int(self.raw["passes"])

    def passes_of(self, mode: str) -> int:
        """How often a mode climbs its ladder: its own `passes`, else the campaign's."""
        return int(self.raw.get(mode, {}).get("passes") or self.passes)

    @property
    def scope(self) -> str:
        """How long one server lives: 'point', 'pass' or 'campaign', which an external one always does."""
        return "campaign" if self.raw["launcher"] == "external" else str(self.raw["serve"]["scope"])

    def lengths(self, mode: str = COLD_MODE) -> list[int]:
        """Prompt lengths of a mode in tokens, ascending."""
        own = campaign_facet(mode).section(self.raw)
        return configured_lengths(own, f"{mode}.") or configured_lengths(self.raw, "")

    def all_lengths(self) -> list[int]:
        return sorted({length for mode in self.modes for length in self.lengths(mode)})

    def points(self, mode: str | None = None) -> list[Point]:
        """Every rung and pass, short rungs first."""
        modes = [mode] if mode else self.modes
        return sorted(Point(n, p, m) for m in modes for n in self.lengths(m) for p in range(1, self.passes_of(m) + 1))

    def repeats(self, length: int) -> int:
        """Cold requests per pass at this length."""
        repeats = self.raw["repeats"]
        return int(repeats["count"]) if length <= parse_length(repeats["up_to"]) else 1

    def requests(self, point: Point) -> list[RequestKey]:
        """The (role, request_index) that a point must have; index 0 is the first one."""
        requests = campaign_facet(point.mode).requests(self.raw, self.repeats(point.length))
        return [(str(role), index) for role, index in requests]  # plain: Snakemake compares them with earlier runs'

    def tokens_after_prompt(self, mode: str) -> int:
        """Tokens that a request adds to its prompt: the answer, and the query before it where the mode has one."""
        return tokens_after_prompt(self.raw, mode)

    @property
    def caching(self) -> bool:
        """Whether the servers of cold prompts keep prefixes: asked for, or since checkpoints need it."""
        return bool(self.raw["serve"]["prefix_caching"] or self.raw["checkpoint"])

    @property
    def synthetic_weights(self) -> bool:
        return bool(self.raw["model"]["weights"] == "dummy")

    @property
    def model_name(self) -> str:
        """What the model is called in requests, rows and figures."""
        model = self.raw["model"]
        source = str(model["source"])
        if source == "synthetic":
            source = Path(model["geometry"]).stem if model["geometry"] else "tiny-llama"
        elif Path(source).expanduser().is_dir():
            source = Path(source).expanduser().resolve().name
        return f"{source}-random-weights" if self.synthetic_weights else source

    @property
    def model_path(self) -> str:
        """What vLLM is asked to load: a folder or a Hugging Face id."""
        source = str(self.raw["model"]["source"])
        if source == "synthetic":
            return str(self.results / "model")
        return str(Path(source).expanduser()) if Path(source).expanduser().is_dir() else source

    @property
    def tokenizer_arguments(self) -> list[str]:
        """Command-line arguments of the scripts that need the model's tokenizer."""
        model = self.raw["model"]
        revision = ["--revision", model["revision"]] if model["revision"] else []
        return ["--tokenizer", self.model_path, *revision, *["--trust-remote-code"][: model["trust_remote_code"]]]

    @property
    def corpus_arguments(self) -> list[str]:
        """Command-line arguments that name the corpus: 'stdlib', a folder, or a manifest with its folder."""
        corpus = self.raw["corpus"]
        if str(corpus["source"]).endswith((".yaml", ".yml")):
            return ["--corpus", corpus["folder"], "--manifest", corpus["source"]]
        return ["--corpus", corpus["source"]]

    @property
    def image_arguments(self) -> list[str]:
        """Command-line arguments of scripts/image.py."""
        options = self.raw["container"]
        arguments = ["--image", str(options["image"])]
        arguments += ["--engine", options["engine"]] if options["engine"] else []
        arguments += ["--containerfile", options["containerfile"]] if options["containerfile"] else []
        return arguments + [f"--build-arg={name}={value}" for name, value in options["build_args"].items()]

    @property
    def model_arguments(self) -> list[str]:
        """Command-line arguments of scripts/model.py for a synthetic model."""
        model = self.raw["model"]
        if model["geometry"]:
            return ["--from-config", str(ROOT / model["geometry"])]
        geometry = {
            "hidden_size": model["hidden_size"],
            "num_hidden_layers": model["layers"],
            "num_attention_heads": model["heads"],
            "num_key_value_heads": model["kv_heads"],
            "vocab_size": model["vocabulary"],
        }
        return ["--geometry", orjson.dumps(geometry).decode()]

    def settings(self, mode: str) -> dict[str, Any]:
        """Every setting that changes this mode's numbers: the identity of its recipe."""
        raw = self.raw
        chosen: dict[str, Any] = {"mode": mode, "max_new_tokens": raw["max_new_tokens"], "model": raw["model"]}
        for key in ("serve", "corpus", "prompt", "measure"):
            chosen[key] = {k: v for k, v in raw[key].items() if k not in OPERATIONAL.get(key, ())}
        chosen["launcher"] = raw["launcher"]
        if raw["launcher"] != "local":
            chosen[raw["launcher"]] = raw[raw["launcher"]]
        chosen["checkpoint"] = raw["checkpoint"] is not None
        return chosen | campaign_facet(mode).identity(raw)

    def plan_settings(self) -> dict[str, Any]:
        """Every setting that the plan depends on."""
        keys = (
            "modes",
            "passes",
            "repeats",
            "max_new_tokens",
            *(mode.value for mode in MODES if mode in self.raw),
            "model",
            "launcher",
            "serve",
            "hardware",
            "checkpoint",
        )
        return {key: self.raw[key] for key in keys} | {"lengths": {mode: self.lengths(mode) for mode in self.modes}}

    def recipe_hash(self, mode: str) -> str:
        """16 hex digits that differ where any of `settings` does."""
        return stable_hash(self.settings(mode))

    def recipe(self, mode: str, length: int, checkpoint_dir: Path | None = None) -> Recipe:
        """What to serve so that prompts up to `length` tokens fit."""
        model, serve = self.raw["model"], self.raw["serve"]
        taken = {field: serve[field] for field in Recipe.__dataclass_fields__ if field in serve}
        taken["prefix_caching"] = self.caching or campaign_facet(mode).needs_prefix_caching
        taken["extra_args"] = (*serve["extra_args"], *self._position_override(length + serve["headroom_tokens"]))
        taken["versions"] = {k: serve[f"{k}_version"] for k in ("vllm", "aiter") if serve[f"{k}_version"]}
        taken["env"] = self._server_env()
        return Recipe(
            model=self.model_path,
            served_name=self.model_name,
            tokenizer=None,
            max_model_len=length + serve["headroom_tokens"],
            revision=model["revision"],
            trust_remote_code=model["trust_remote_code"],
            load_format="dummy" if self.synthetic_weights else "auto",
            prompt_tokens_details=True,
            kv_transfer_config=self._kv_transfer(mode, checkpoint_dir),
            **taken,
        )

    def _position_override(self, max_model_len: int) -> tuple[str, ...]:
        """The tiny Llama has no limit of its own: a rotary table just long enough, or its start costs gigabytes."""
        if self.raw["model"]["source"] != "synthetic" or self.raw["model"]["geometry"]:
            return ()
        return ("--hf-overrides", orjson.dumps({"max_position_embeddings": max_model_len}).decode())

    def _server_env(self) -> dict[str, str]:
        env = {key: str(value) for key, value in self.raw["serve"]["env"].items()}
        if gib := self.raw["serve"]["cpu_kv_cache_gib"]:
            env.setdefault("VLLM_CPU_KVCACHE_SPACE", f"{gib:g}")
        if self.raw["checkpoint"]:
            # vLLM 0.25.1 finds no block of an earlier process unless both hash alike.
            env.setdefault("PYTHONHASHSEED", "0")
        return env

    def _kv_transfer(self, mode: str, checkpoint_dir: Path | None) -> dict[str, Any] | None:
        own = campaign_facet(mode).kv_transfer_config(self.raw)
        if own is not None or checkpoint_dir is None:
            return own
        extra = {
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": int(self.raw["checkpoint"]["cpu_gib"] * 2**30),
            "secondary_tiers": [{"type": "fs", "root_dir": str(checkpoint_dir)}],
        }
        return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}

    def launcher(self) -> Launcher:
        """Who starts the server, with the options of that launcher's own section."""
        kind = str(self.raw["launcher"])
        options = {"python": self.raw["serve"]["python"]} if kind == "local" else dict(self.raw[kind])
        return Launcher(kind=kind, options=options)

    @property
    def labels(self) -> dict[str, str]:
        """What the metadata of its Parquets says: the campaign's name, and which configuration made the file."""
        return {"campaign": self.name, "config_hash": stable_hash(self.raw)}

    def save(self) -> Path:
        """Write the configuration to a file named by its content, so that no running job sees another's."""
        path = self.results / ".config" / f"{self.labels['config_hash']}.json"
        if not path.exists():
            write_atomic(path, orjson.dumps(self.raw, option=orjson.OPT_INDENT_2))
        return path


def from_dict(config: Mapping[str, Any]) -> Campaign:
    """Validate a configuration (as Snakemake merged it) and return its campaign."""
    return Campaign(validate(config))


def load(path: Path | str) -> Campaign:
    """Read a configuration that `Campaign.save` wrote, or any YAML one."""
    try:
        config = yaml.safe_load(Path(path).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: not a readable configuration ({error})") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: not a configuration; expected keys such as lengths and model")
    return from_dict(config)
