"""The configuration's schema: how texts are read, what is refused in one sentence, and the defaults filled in."""

import math
from collections.abc import Mapping
from typing import Any

import jsonschema
import yaml

from longctx.errors import ConfigError
from longctx.resources import SCHEMA_PATH

_KINDS = {
    "array": "a list", "object": "a section of keys", "integer": "a whole number", "number": "a number",
    "boolean": "true or false", "string": "a text", "null": "null",
}  # fmt: skip
# What YAML reads from a text that stands alone.
_SCALARS = {"integer", "number", "boolean", "null"}


def _finite(types: Any, value: Any) -> bool:
    """Whether it is a number in JSON, which the jobs read: .inf and .nan would be null there."""
    return bool(types.is_type(value, "integer")) or (isinstance(value, float) and math.isfinite(value))


_TYPES = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine("number", _finite)
_extended: Any = jsonschema.validators.extend  # jsonschema gives it no types
_VALIDATOR = _extended(jsonschema.Draft202012Validator, type_checker=_TYPES)


def checked(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with every default; ConfigError for the first thing that the schema refuses."""
    schema: dict[str, Any] = yaml.safe_load(SCHEMA_PATH.read_text())
    given = _as_meant(schema, config)
    errors = sorted(_VALIDATOR(schema).iter_errors(given), key=lambda e: list(e.path))
    if errors:
        raise ConfigError(_sentence(errors[0]))
    filled: dict[str, Any] = _with_defaults(schema, given)
    return filled


def _as_meant(schema: Mapping[str, Any], value: Any) -> Any:
    """Return `value` with its texts as the numbers, truths and nulls that `schema` wants there.

    Snakemake reads what is inside a dictionary or list of --config as text: {'cpu_gib': 8} arrives as {'cpu_gib': '8'}.
    """
    if isinstance(value, Mapping):
        known, others = schema.get("properties", {}), schema.get("additionalProperties") or {}
        return {key: _as_meant(known.get(key, others), part) for key, part in value.items()}
    if isinstance(value, list):
        return [_as_meant(schema.get("items", {}), part) for part in value]
    kinds = _kinds(schema)
    if "string" in kinds:
        if "number" in kinds and _is(value, "number"):
            return str(value)  # a server's variable is a text: 1 and '1' are one recipe
        return None if "null" in kinds and value == "null" else value
    read = _as_yaml(value) if isinstance(value, str) else value
    return read if any(_is(read, kind) for kind in kinds & _SCALARS) else value


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    """The kinds that a part of the schema names; none for a length, whose two ways of writing are read by itself."""
    if "enum" in schema:
        return {"null" if choice is None else "string" for choice in schema["enum"]}
    kinds = schema.get("type", [])
    return {kinds} if isinstance(kinds, str) else set(kinds)


def _is(value: Any, kind: str) -> bool:
    return bool(_TYPES.is_type(value, kind))


def _as_yaml(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return text


def _with_defaults(schema: Mapping[str, Any], value: Any) -> Any:
    """Return `value` with every default of `schema` filled in, recursively."""
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    filled = {}
    for key, part in schema["properties"].items():
        if key in value:
            filled[key] = _with_defaults(part, value[key])
        elif "default" in part:
            filled[key] = _with_defaults(part, part["default"])
    return filled


def _sentence(error: jsonschema.ValidationError) -> str:
    """Say a schema violation in one sentence that starts with the path of the key."""
    path = ".".join(str(part) for part in error.absolute_path)
    schema: dict[str, Any] = error.schema if isinstance(error.schema, dict) else {}
    where = f"config key {path}" if path else "config"
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = list(schema.get("properties", {}))
        unknown = [f"{path}.{key}" if path else key for key in error.instance if key not in known]
        return f"config key {', '.join(unknown)}: unknown; known here: {', '.join(known)}"
    if error.validator == "required":
        return f"{where}: {error.message.replace(' is a required property', ' is missing')}"
    if error.validator in ("anyOf", "pattern") and schema.get("title") == "length":
        return f"{where}: {error.instance!r} is not a length; write tokens as 4096, 4Ki or 2Mi"
    said = _wrong_kind(error) if error.validator == "type" else error.message
    if error.validator == "minItems":
        said = "is empty; give one entry or more"
    meaning = schema.get("description", "").rstrip(".")
    return f"{where}: {said}" + (f" ({meaning})" if meaning else "")


def _wrong_kind(error: jsonschema.ValidationError) -> str:
    """Say what kind of value is wanted, and how a single one becomes a list."""
    wanted: Any = error.validator_value
    kinds = [wanted] if isinstance(wanted, str) else list(wanted)
    said = f"{error.instance!r} is not {' or '.join(_KINDS[kind] for kind in kinds)}"
    single = isinstance(error.instance, (str, int, float)) and not isinstance(error.instance, bool)
    return f"{said}; write [{error.instance}]" if kinds == ["array"] and single else said
