"""A campaign's configuration: a mistake is one sentence that names its key; schema, default and code agree."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import orjson
import pytest
import yaml
from longctx.campaign import recipe
from longctx.campaign.campaign import Campaign, from_dict, load
from longctx.campaign.config import CampaignConfig, ServeConfig
from longctx.campaign.config_types import Section
from longctx.campaign.point import Point, parse_point
from longctx.campaign.recipe import Recipe, changed_settings
from longctx.errors import ConfigError
from longctx.measure.mode import MEASURED_VARIANTS
from longctx.measure.warmup import MINIMUM
from longctx.prompts import builder
from makeschema import SCHEMA_PATH, schema_text
from pydantic.fields import FieldInfo
from shipped import CAMPAIGNS, ROOT, command_files, read_campaign

SYNTHETIC = {"source": "synthetic", "weights": "dummy"}


def campaign(**changes: Any) -> Campaign:
    return from_dict({"model": SYNTHETIC, "lengths": ["1Ki", "4Ki"]} | changes)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"lenghts": [1024]}, "lenghts: unknown; known here: name, lengths, from, to"),
    ({"serve": {"tensor_paralel_size": 8}}, "serve.tensor_paralel_size: unknown; known here: scope, python"),
    ({"container": {"img": "x"}}, "container.img: unknown; known here: engine, image"),
    ({"model": {"source": "synthetic", "weight": "dummy"}}, "model.weight: unknown"),
    ({"model": {}}, "model: 'source' is missing"),
    ({"lengths": []}, "lengths: is empty; give one entry or more"),
    ({"lengths": None, "model": SYNTHETIC}, "lengths: "),
    ({"lengths": ["4KB"]}, "lengths.0: '4KB' is not a length; write tokens as 4096, 4Ki or 2Mi"),
    ({"lengths": ["1Ki", "4 Ki"]}, "lengths.1: '4 Ki' is not a length"),
    ({"lengths": [0]}, "lengths.0: 0 is not a length"),
    ({"lengths": [-1024]}, "lengths.0: -1024 is not a length"),
    ({"lengths": [1024.5]}, "lengths.0: 1024.5 is not a length"),
    ({"lengths": ["4097Gi"]}, "lengths.0: '4097Gi' is not a length; write tokens as 4096, 4Ki or 2Mi, at most 4096Gi"),
    ({"lengths": [1 << 63]}, "lengths.0: 9223372036854775808 is not a length"),
    ({"lengths": ["9" * 5000]}, "lengths.0: '99"),
    ({"lengths": ["0Ki"]}, "lengths.0: '0Ki' is not a length"),
    ({"from": "64Ki", "to": "1Ki"}, "s from and to: "),
    ({"from": "1Ki"}, "to: missing; from and to go together"),
    ({"to": "1Ki"}, "from: missing; from and to go together"),
    ({"from": "1kb", "to": "4Ki"}, "from: '1kb' is not a length"),
    ({"reuse": {"from": "1Ki"}, "modes": ["reuse"]}, "reuse.to: missing"),
    ({"passes": 0}, "passes: 0 is less than the minimum of 1 (How often the whole ladder is climbed"),
    ({"passes": "three"}, "passes: 'three' is not a whole number (How often"),
    ({"passes": "0"}, "passes: 0 is less than the minimum of 1 (How often the whole ladder is climbed"),
    ({"passes": "2.5"}, "passes: '2.5' is not a whole number (How often"),
    ({"passes": "true"}, "passes: 'true' is not a whole number (How often"),
    ({"reuse": {"passes": "[2"}}, "reuse.passes: '[2' is not a whole number or null (Its own"),
    ({"reuse": "{passes: 2}"}, "reuse: '{passes: 2}' is not a mapping (The reuse mode)"),
    ({"compare": "[x.csv]"}, "compare: '[x.csv]' is not a list"),
    ({"serve": {"enforce_eager": "1"}}, "serve.enforce_eager: '1' is not true or false (No compilation"),
    ({"checkpoint": {"dir": "/x", "cpu_gib": "8 GiB"}}, "checkpoint.cpu_gib: '8 GiB' is not a number (CPU memory"),
    ({"checkpoint": {"dir": 8}}, "checkpoint.dir: 8 is not a string"),
    ({"measure": {"stall_s": float("inf")}}, "measure.stall_s: inf is not a number (No growth"),
    ({"measure": {"stall_s": ".nan"}}, "measure.stall_s: nan is not a number (No growth"),
    ({"serve": {"env": "{A: 1}"}}, "serve.env: '{A: 1}' is not a mapping (Environment"),
    ({"serve": {"env": {"A": float("inf")}}}, "serve.env.A: inf is not a string (Environment"),
    ({"serve": {"env": {"A": True}}}, "serve.env.A: True is not a string (Environment"),
    ({"lengths": ["1Ki", "x"]}, "lengths.1: 'x' is not a length"),
    ({"modle": {}, "model": {}}, "modle: unknown; known here: name, lengths"),
    ({"passes": True}, "passes: True is not a whole number (How often"),
    ({"repeats": 5}, "repeats: 5 is not a mapping (Cold requests"),
    ({"repeats": {"count": 5, "up_to": "64K"}}, "repeats.up_to: '64K' is not a length"),
    ({"modes": ["prefil"]}, "modes.0: 'prefil' is not one of 'prefill', 'reuse', 'decode_only' or 'sampled'"),
    ({"modes": []}, "modes: is empty; give one entry or more (What is measured"),
    ({"modes": ["reuse", "reuse"]}, "modes: "),
    ({"max_new_tokens": 0}, "max_new_tokens: 0 is less than the minimum of 1"),
    ({"name": "a/b"}, "name: 'a/b' does not match"),
    ({"name": ".."}, "name: '..' does not match"),
    ({"launcher": "ssh"}, "launcher: 'ssh' is not one of 'local', 'container' or 'external' (Who"),
    ({"serve": {"kv_cache_dtype": "int4"}}, "serve.kv_cache_dtype: 'int4' is not one of"),
    ({"serve": {"gpu_memory_utilization": 95}}, "serve.gpu_memory_utilization: 95 is greater than the maximum of 1"),
    ({"serve": {"headroom_tokens": 16}}, "serve.headroom_tokens: 16 tokens cannot hold the 128 tokens that follow"),
    ({"hardware": {"count": 8}}, "hardware: 'gpu' is missing"),
    ({"model": {"source": "/no/such/folder"}}, "model.source: the folder /no/such/folder does not exist"),
    ({"model": {"source": "kimi"}}, "model.source: 'kimi' is neither 'synthetic', an existing folder nor a Hugging"),
    ({"model": {"source": "synthetic"}}, "model.weights: a synthetic model has no weights; write weights: random"),
    ({"model": SYNTHETIC | {"geometry": "no.json"}}, "model.geometry: the file no.json does not exist"),
    ({"model": {"source": "a/b", "geometry": "x.json"}}, "model.geometry: the file x.json does not exist"),
    ({"model": {"source": "a/b", "trust_remote_code": True}}, "model.revision: missing; trust_remote_code runs"),
    ({"launcher": "container"}, "container.image: missing; launcher: container needs an image"),
    ({"launcher": "external"}, "external.url: missing; launcher: external needs the server's address"),
    ({"launcher": "external", "external": {"url": "host:8000"}}, "external.url: 'host:8000' does not match"),
    (
        {"launcher": "external", "external": {"url": "http://h:1"}, "modes": ["decode_only"]},
        "modes: decode_only needs a server started with vLLM's DecodeBenchConnector",
    ),
    (
        {"launcher": "external", "external": {"url": "http://h:1"}, "checkpoint": {"dir": "/x"}},
        "checkpoint: launcher: external does not start servers; remove it",
    ),
    (
        {"checkpoint": {"dir": "/x"}, "serve": {"cpu_kv_cache_gib": 2}},
        "checkpoint: vLLM offloads KV blocks on GPUs only; remove it for a CPU server",
    ),
    ({"checkpoint": {"cpu_gib": 8}}, "checkpoint: 'dir' is missing"),
    ({"measure": {"warmup_max": MINIMUM - 1}}, f"measure.warmup_max: 2 is less than the minimum of {MINIMUM}"),
    ({"compare": "x.csv"}, "compare: 'x.csv' is not a list; write [x.csv] (Other runs"),
    ({"lengths": "4Ki"}, "lengths: '4Ki' is not a list; write [4Ki]"),
    ({"model": None}, "model: None is not a mapping (What is served)"),
    ({"hardware": []}, "hardware: [] is not a mapping or null (What the plan"),
    ({"prompt": {"shape": "reprot"}}, "prompt.shape: prompt shape 'reprot' is neither built in (plain, report) nor"),
    ({"corpus": {"source": "no.yaml"}}, "corpus.source: the manifest no.yaml does not exist"),
    ({"measure": {"stall_s": -1}}, "measure.stall_s: -1 is less than or equal to the minimum of 0"),
]


@pytest.mark.parametrize(
    ("changes", "said"), BAD, ids=[said.partition(":")[0] + f" {n}" for n, (_, said) in enumerate(BAD)]
)
def test_a_mistake_is_one_sentence_with_the_path_of_the_key(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        campaign(**changes)
    text = str(caught.value)
    assert text.startswith(f"config key{'' if said.startswith('s ') else ' '}{said}")
    assert "\n" not in text


# What stands inside a dictionary or list of --config comes as text; beside it what a file would say.
AS_TEXT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"passes": "2"}, {"passes": 2}),
    ({"passes": "2.0"}, {"passes": 2}),
    ({"reuse": {"passes": "2", "queries": "8"}}, {"reuse": {"passes": 2, "queries": 8}}),
    ({"reuse": {"passes": "null"}}, {"reuse": {"passes": None}}),
    ({"reuse": {"passes": ""}}, {"reuse": {"passes": None}}),
    ({"decode_only": {"fill_std": "0.5"}}, {"decode_only": {"fill_std": 0.5}}),
    ({"serve": {"enforce_eager": "true", "max_num_seqs": "2"}}, {"serve": {"enforce_eager": True, "max_num_seqs": 2}}),
    ({"serve": {"gpu_memory_utilization": ".9"}}, {"serve": {"gpu_memory_utilization": 0.9}}),
    ({"serve": {"attention_backend": "null"}}, {"serve": {"attention_backend": None}}),
    ({"serve": {"cudagraph_mode": "null"}}, {"serve": {"cudagraph_mode": None}}),
    ({"serve": {"cudagraph_mode": "NONE"}}, {"serve": {"cudagraph_mode": "NONE"}}),
    ({"serve": {"env": {"A": "1", "B": "1.5"}}}, {"serve": {"env": {"A": 1, "B": 1.5}}}),
    ({"checkpoint": {"dir": "/x", "cpu_gib": "8"}}, {"checkpoint": {"dir": "/x", "cpu_gib": 8}}),
    ({"checkpoint": "null", "hardware": "null"}, {"checkpoint": None, "hardware": None}),
    ({"model": SYNTHETIC | {"layers": "3"}}, {"model": SYNTHETIC | {"layers": 3}}),
]


@pytest.mark.parametrize(("text", "file"), AS_TEXT, ids=str)
def test_a_text_is_what_yaml_reads_where_no_text_is_wanted(text: dict[str, Any], file: dict[str, Any]) -> None:
    assert orjson.dumps(campaign(**text).config.plain()) == orjson.dumps(campaign(**file).config.plain())
    for mode in ("prefill", "reuse", "decode_only"):
        assert campaign(**text).recipe_hash(mode) == campaign(**file).recipe_hash(mode)


TEXTS: list[dict[str, Any]] = [
    {"model": {"source": "a/b", "revision": "1234"}},
    {"serve": {"vllm_version": "0.25", "python": "true", "extra_args": ["--seed", "8", "null"]}},
    {"serve": {"env": {"A": "010", "B": "true", "C": "null"}}},
    {"container": {"image": "0.25", "shm_size": "64", "build_args": {"JOBS": "8"}, "ulimits": ["1024"]}},
    {"checkpoint": {"dir": "8"}},
    {"compare": ["8"]},
    {"name": "2024"},
]


@pytest.mark.parametrize("given", TEXTS, ids=str)
def test_a_text_stays_one_where_a_text_is_wanted(given: dict[str, Any]) -> None:
    raw = campaign(**given).config.plain()
    for key, value in given.items():
        assert raw[key] == (raw[key] | value if isinstance(value, dict) else value)


def test_lengths_are_the_same_in_text_and_number() -> None:
    text, number = campaign(lengths=["1024", "4Ki"]), campaign(lengths=[1024, "4Ki"])
    assert text.points() == number.points()
    assert text.plan_settings() == number.plan_settings()


def test_a_missing_model_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^config: 'model' is missing$"):
        from_dict({"lengths": [1024]})


@pytest.mark.parametrize("modes", [["prefill"], ["decode_only"], ["reuse", "decode_only"]])
def test_lengths_are_needed(modes: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"^config key lengths: missing"):
        from_dict({"model": SYNTHETIC, "modes": modes})


def test_a_mode_may_bring_its_own_lengths() -> None:
    found = from_dict({"model": SYNTHETIC, "modes": ["decode_only"], "decode_only": {"from": "1Ki", "to": "4Ki"}})
    assert found.lengths("decode_only") == [1024, 2048, 4096]


@pytest.mark.parametrize("text", ["lengths: [", "- a list", ""])
def test_a_file_that_is_no_configuration_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=str(path)):
        load(path)
    with pytest.raises(ConfigError, match=r"none\.yaml: not a readable configuration"):
        load(tmp_path / "none.yaml")


def keys(model: type[Section], path: str = "") -> Iterator[tuple[str, type[Section], FieldInfo]]:
    """Yield every key of a model: its path, its section and its field."""
    for name, field in model.model_fields.items():
        yield f"{path}{field.alias or name}", model, field
        inner = section_of(field)
        if inner is not None:
            yield from keys(inner, f"{path}{field.alias or name}.")


def section_of(field: FieldInfo) -> type[Section] | None:
    choices = get_args(field.annotation) or (field.annotation,)
    return next((kind for kind in choices if isinstance(kind, type) and issubclass(kind, Section)), None)


KEYS = list(keys(CampaignConfig))


@pytest.mark.parametrize(("key", "field"), [(key, field) for key, _, field in KEYS], ids=[key for key, *_ in KEYS])
def test_every_key_is_described(key: str, field: FieldInfo) -> None:
    section = section_of(field)
    description = (section.__doc__ if section else field.description) or ""
    assert description.endswith((".", ")")), key
    assert len(description.split()) > 1


SECTIONS = [section for key, _, field in KEYS if (section := section_of(field))]


@pytest.mark.parametrize("section", [CampaignConfig, *SECTIONS], ids=lambda section: section.__name__)
def test_every_section_is_frozen_and_refuses_unknown_keys(section: type[Section]) -> None:
    assert section.model_config["extra"] == "forbid"
    assert section.model_config["frozen"] is True


WITH_DEFAULT = [
    (key, model, field)
    for key, model, field in KEYS
    if not (field.is_required() or section_of(field) or key.endswith(("lengths", "from", "to")))
]
REQUIRED = {"model": SYNTHETIC, "source": "a/b", "gpu": "H200", "dir": "/c"}


@pytest.mark.parametrize(("key", "model", "field"), WITH_DEFAULT, ids=[key for key, *_ in WITH_DEFAULT])
def test_every_default_keeps_its_own_bounds(key: str, model: type[Section], field: FieldInfo) -> None:
    required = {name: REQUIRED[name] for name, field in model.model_fields.items() if field.is_required()}
    model.model_validate(required | {key.rpartition(".")[2]: field.get_default()})


def test_the_json_schema_is_the_one_of_the_models() -> None:
    assert SCHEMA_PATH.read_text() == schema_text(), "make it again: .venv/bin/python tests/makeschema.py"


def test_the_default_campaign_is_valid_and_explains_each_line() -> None:
    path = ROOT / "config.yaml"
    found = load(path)
    assert found.name == "default"
    assert found.synthetic_weights
    for line in path.read_text().splitlines():
        key = line.partition(":")[0].strip()
        if (
            line
            and not line.startswith("#")
            and key not in ("model", "serve", "python", "kv_cache_dtype", "start_timeout_s")
        ):
            assert "#" in line, line


@pytest.mark.parametrize("path", CAMPAIGNS, ids=[path.stem for path in CAMPAIGNS])
def test_every_campaign_file_is_valid_by_the_command_that_it_gives(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    files = command_files(path)
    assert files[-1] == path
    read_campaign(*files)


def test_every_recipe_field_is_asked_for() -> None:
    """A key of `serve` that no recipe takes would do nothing."""
    operational = {"scope", "cpu_kv_cache_gib", "headroom_tokens", "aiter_version", "vllm_version"}
    assert set(ServeConfig.model_fields) - set(Recipe.__dataclass_fields__) == operational | set(
        recipe.OPERATIONAL["serve"]
    )


@pytest.mark.parametrize("section", ["serve", "measure", "corpus", "prompt"])
def test_every_key_is_either_operational_or_part_of_the_recipe(section: str) -> None:
    settings = campaign().settings("prefill")
    for key in campaign().config.plain()[section]:
        assert (key in settings[section]) != (key in recipe.OPERATIONAL.get(section, ())), key


IN_RECIPE: list[dict[str, Any]] = [
    {"serve": {"max_num_seqs": 2}},
    {"max_new_tokens": 64},
    {"prompt": {"shape": "plain"}},
    {"corpus": {"source": "/x"}},
    {"measure": {"warmup_max": 5}},
]
NOT_IN_RECIPE: list[dict[str, Any]] = [
    {"passes": 9},
    {"lengths": ["2Ki"]},
    {"repeats": {"count": 2}},
    {"name": "other"},
    {"compare": ["x"]},
    {"modes": ["reuse", "prefill"]},
    {"decode_only": {"fill_mean": 1}},
    {"serve": {"python": "p", "start_timeout_s": 1, "contract": "warn"}},
    {"measure": {"stall_s": 1, "retry_doubtful": 0}},
]


@pytest.mark.parametrize("changes", IN_RECIPE)
def test_what_changes_numbers_changes_the_recipe(changes: dict[str, Any]) -> None:
    assert campaign(**changes).recipe_hash("prefill") != campaign().recipe_hash("prefill")


@pytest.mark.parametrize("changes", NOT_IN_RECIPE)
def test_what_changes_no_number_keeps_the_recipe(changes: dict[str, Any]) -> None:
    assert campaign(**changes).recipe_hash("prefill") == campaign().recipe_hash("prefill")


def test_every_measure_of_the_tiny_llama_reaches_the_script_that_makes_it() -> None:
    sizes = {"hidden_size": 256, "layers": 3, "heads": 4, "kv_heads": 2, "vocabulary": 512}
    (flag, text) = campaign(model=SYNTHETIC | sizes).model_arguments
    assert flag == "--geometry"
    assert sorted(json.loads(text).values()) == sorted(sizes.values())


def test_no_warm_up_takes_a_prompt_of_a_measured_request() -> None:
    most = yaml.safe_load(schema_text())["$defs"]["MeasureConfig"]["properties"]["warmup_max"]["maximum"]
    # The last variants are the warm-ups': `warmup_max` small ones and one for the long prefill. A repetition of a
    # doubtful request takes a variant from the second MEASURED_VARIANTS.
    assert builder.MIN_VARIANTS - (most + 1) >= 2 * MEASURED_VARIANTS


def test_modes_are_recipes_of_their_own() -> None:
    found = campaign()
    assert len({found.recipe_hash(mode) for mode in ("prefill", "reuse", "decode_only")}) == 3


def test_points_go_up_the_ladder_pass_by_pass() -> None:
    found = campaign(passes=2, modes=["prefill", "decode_only"], decode_only={"lengths": ["2Ki"]})
    assert [point.name for point in found.points("prefill")] == ["1Ki/pass1", "1Ki/pass2", "4Ki/pass1", "4Ki/pass2"]
    assert [point.name for point in found.points("decode_only")] == ["2Ki/decode_only-pass1", "2Ki/decode_only-pass2"]
    assert found.all_lengths() == [1024, 2048, 4096]


def test_requests_of_a_point() -> None:
    found = campaign(repeats={"count": 3, "up_to": "1Ki"}, reuse={"queries": 2})
    assert found.requests(Point(1024, 1)) == [("cold", 0), ("repeat", 1), ("repeat", 2)]
    assert found.requests(Point(4096, 1)) == [("cold", 0)]
    assert found.requests(Point(1024, 1, "reuse")) == [("cold", 0), ("reuse", 1), ("reuse", 2)]
    assert found.requests(Point(1024, 1, "decode_only")) == [("decode_only", 0)]


@pytest.mark.parametrize("name", ["64Ki/pass2", "3000/reuse-pass1", "1Mi/decode_only-pass12"])
def test_a_point_is_its_name(name: str) -> None:
    assert parse_point(name).name == name


@pytest.mark.parametrize("name", ["64Ki", "64Ki/pass0", "64Ki/warm-pass1", "x/pass1", "64Ki/pass1/", "/pass1"])
def test_a_name_that_is_no_point_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        parse_point(name)


def test_changed_settings_are_named_by_their_path() -> None:
    old, new = (
        campaign().settings("prefill"),
        campaign(serve={"max_num_seqs": 2}, max_new_tokens=64).settings("prefill"),
    )
    assert list(changed_settings(old, new)) == ["max_new_tokens: 128 -> 64", "serve.max_num_seqs: 1 -> 2"]
    assert list(changed_settings(old, old)) == []


def test_a_saved_configuration_is_the_same_campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = campaign(serve={"env": {"A": "1"}})
    path = found.save()
    assert load(path) == found
    before = path.stat().st_mtime_ns
    assert found.save() == path
    assert path.stat().st_mtime_ns == before
    assert campaign(passes=9).save() != path


def test_checkpoints_are_in_the_recipe() -> None:
    found = from_dict({"model": {"source": "a/b"}, "lengths": [1024], "checkpoint": {"dir": "/c", "cpu_gib": 2}})
    recipe = found.recipe("prefill", 1024, Path("/c/point"))
    assert recipe.prefix_caching
    assert recipe.prompt_tokens_details
    assert recipe.env["PYTHONHASHSEED"] == "0"
    assert recipe.kv_transfer_config == {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": 2 * 2**30,
            "secondary_tiers": [{"type": "fs", "root_dir": "/c/point"}],
        },
    }
