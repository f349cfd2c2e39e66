"""A JSON schema put to use: its violations in one sentence each, its defaults filled in. It knows no key by itself."""

from collections.abc import Mapping
from typing import Any

import jsonschema


def violation(schema: Mapping[str, Any], value: Mapping[str, Any]) -> str | None:
    """Return one sentence about the first thing that `schema` forbids in `value`, None where all is well."""
    found = jsonschema.Draft202012Validator(schema).iter_errors(dict(value))
    errors = sorted(found, key=lambda error: list(error.path))
    return _sentence(errors[0]) if errors else None


def with_defaults(schema: Mapping[str, Any], value: Any) -> Any:
    """Return `value` with every default of `schema` filled in, recursively."""
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    filled = {}
    for key, part in schema["properties"].items():
        if key in value:
            filled[key] = with_defaults(part, value[key])
        elif "default" in part:
            filled[key] = with_defaults(part, part["default"])
    return filled


def _sentence(error: jsonschema.ValidationError) -> str:
    """Say a violation in one sentence that starts with the path of the key."""
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
    meaning = schema.get("description", "").rstrip(".")
    return f"{where}: {error.message}" + (f" ({meaning})" if meaning else "")
