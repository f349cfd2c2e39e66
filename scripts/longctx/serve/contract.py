"""The contract: the settings that were asked of a server against those that it reports.

An entry is {setting, asked, actual, source, ok}; ok is None where the server does not report the setting ('unproven').
"""

import os
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion

from longctx.campaign.recipe import Recipe
from longctx.errors import ConfigError, ServerError
from longctx.serve.server_facts import PARALLEL, ServerReport


def check(recipe: Recipe, report: ServerReport) -> list[dict[str, Any]]:
    """Return one entry for each setting that the recipe asks for; a setting left to vLLM's default has none."""
    entries = [_entry(setting, asked, report) for setting, asked in _asked(recipe).items() if asked is not None]
    return entries + [_version_entry(package, wanted, report) for package, wanted in sorted(recipe.versions.items())]


def enforce(entries: list[dict[str, Any]]) -> None:
    """Raise ServerError(reason='contract') naming each contradicted setting, what was asked and what is."""
    if contradicted := [entry for entry in entries if entry["ok"] is False]:
        listed = "; ".join(f"{e['setting']} asked {e['asked']}, is {e['actual']} ({e['source']})" for e in contradicted)
        raise ServerError(f"the server runs with other settings than were asked for: {listed}", "contract")


def _asked(recipe: Recipe) -> dict[str, Any]:
    """Return the asked value of each setting, None where it is left to vLLM."""
    several = recipe.tensor_parallel_size > 1  # on one rank vLLM turns custom all-reduce off: nothing to reduce
    return {
        "model": recipe.model,
        "max_model_len": recipe.max_model_len,
        **{size: getattr(recipe, size) for size in PARALLEL},
        "kv_cache_dtype": None if recipe.kv_cache_dtype == "auto" else recipe.kv_cache_dtype,
        "attention_backend": recipe.attention_backend,
        "cudagraph_mode": "NONE" if recipe.enforce_eager else recipe.cudagraph_mode,
        **{name: getattr(recipe, name) for name in ("max_num_seqs", "max_num_batched_tokens", "prefix_caching")},
        "load_format": None if recipe.load_format == "auto" else recipe.load_format,
        "disable_custom_all_reduce": not recipe.custom_all_reduce if several else None,
        "kv_connector": (recipe.kv_transfer_config or {}).get("kv_connector"),
    }


def _entry(setting: str, asked: Any, report: ServerReport) -> dict[str, Any]:
    fact = "root" if setting == "model" else setting
    actual, source = report.get(fact), report.sources.get(fact, "unproven")
    if setting == "model" and os.path.isdir(asked) and actual is not None:
        asked, actual = os.path.abspath(asked), os.path.abspath(actual)  # a container is given absolute folders
    ok = None if actual is None else _same(asked, actual)
    return {"setting": setting, "asked": asked, "actual": actual, "source": source, "ok": ok}


def _same(asked: Any, actual: Any) -> bool:
    if not isinstance(asked, str):
        return bool(asked == actual)
    first, second = ("fp8_e4m3" if text.casefold() == "fp8" else text.casefold() for text in (asked, str(actual)))
    return first == second


def _version_entry(package: str, wanted: str, report: ServerReport) -> dict[str, Any]:
    """Compare a version with a specifier ('==0.25.1', '>=0.1.19.post2'); local parts like +cpu are ignored."""
    entry = _entry(f"{package}_version", wanted, report)
    try:
        specifiers = SpecifierSet(wanted if wanted[:1] in "=<>!~" else f"=={wanted}", prereleases=True)
    except InvalidSpecifier as error:
        raise ConfigError(f"versions.{package}: {wanted!r} is not a version like 0.25.1 or >=0.25.1") from error
    try:
        ok = None if entry["actual"] is None else specifiers.contains(str(entry["actual"]).split("+")[0])
    except InvalidVersion:
        ok = None
    return entry | {"ok": ok}
