"""What the models of a configuration share: kinds of values, how texts are read, sentences about mistakes."""

import math
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pydantic
import yaml
from pydantic import BaseModel, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from longctx.errors import ConfigError
from longctx.lengths import parse_length

# What is said of a value, by pydantic's type of error.
_FAULTS = {
    "bool_type": "is not true or false",
    "dict_type": "is not a mapping",
    "finite_number": "is not a number",
    "float_type": "is not a number",
    "int_type": "is not a whole number",
    "model_type": "is not a mapping",
    "string_type": "is not a string",
    "tuple_type": "is not a list",
    "enum": "is not one of {expected}",
    "literal_error": "is not one of {expected}",
    "greater_than": "is less than or equal to the minimum of {gt:g}",
    "greater_than_equal": "is less than the minimum of {ge:g}",
    "less_than_equal": "is greater than the maximum of {le:g}",
    "string_pattern_mismatch": "does not match {pattern!r}",
    "string_too_short": "is empty",
    "too_short": "is empty; give one entry or more",
}
_UNKNOWN_KEY = ("extra_forbidden", "invalid_key")


class Section(BaseModel, frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True):
    """A mapping of the configuration: frozen, unknown keys refused, no value converted except texts."""

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _read_text(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        """Return a text as the number, truth or null that its field wants."""
        # Snakemake reads what is inside a dictionary or list of --config as text: {'cpu_gib': 8} arrives as '8'.
        kinds = _kinds(cls.model_fields[str(info.field_name)].annotation)
        if kinds & {str, Literal}:
            return None if value == "null" and NoneType in kinds else value
        scalar = _read_yaml(value) if isinstance(value, str) else value
        if isinstance(scalar, float) and scalar.is_integer() and int in kinds:
            return int(scalar)
        wanted = (kinds | {int} if float in kinds else kinds) & {int, float, bool, NoneType}
        return scalar if type(scalar) in wanted else value

    def plain(self) -> dict[str, Any]:
        """Return the section as JSON has it: defaults filled in, keys in the order of the schema, no absent length."""
        return self.model_dump(mode="json", by_alias=True)


def _kinds(annotation: Any) -> set[Any]:
    """Return the types that an annotation allows; Literal, tuple and dict stand without their arguments."""
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        return set().union(*map(_kinds, get_args(annotation)))
    return _kinds(get_args(annotation)[0]) if origin is Annotated else {origin or annotation}


def _read_yaml(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return text


def _check_length(value: Any) -> Any:
    try:
        parse_length(value)
    except ConfigError:
        raise PydanticCustomError(
            "length", "is not a length; write tokens as 4096, 4Ki or 2Mi, at most 4096Gi"
        ) from None
    return value


def _check_only(value: Any, check: pydantic.ValidatorFunctionWrapHandler) -> Any:
    check(value)
    return value


def _number_to_text(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return str(value) if is_number else value


# A number as written: 8 and 8.0 have two hashes.
AS_WRITTEN = pydantic.WrapValidator(_check_only), pydantic.PlainSerializer(lambda value: value)
Texts = Annotated[tuple[str, ...], Field(strict=False)]
# A server's variable is a text: 1 and '1' are one recipe.
Variables = dict[str, Annotated[str, pydantic.BeforeValidator(_number_to_text)]]
_JsonLength = Annotated[int, Field(ge=1)] | Annotated[str, Field(pattern="^[0-9]+(Ki|Mi|Gi)?$")]
_AS_LENGTH = pydantic.PlainValidator(_check_length, json_schema_input_type=_JsonLength)
Length = Annotated[int | str, _AS_LENGTH]
# A ladder's keys that are absent stay out of what is saved.
LadderEnd = Annotated[int | str | None, _AS_LENGTH, Field(exclude_if=lambda end: end is None)]
Lengths = Annotated[tuple[Length, ...], Field(strict=False, min_length=1, exclude_if=lambda lengths: not lengths)]


def first_mistake(error: ValidationError, model: type[Section]) -> str:
    """Return one sentence about a mistake in a configuration, of unknown keys first. It starts with the key's path."""
    problems = error.errors(include_url=False)
    first = next((problem for problem in problems if problem["type"] in _UNKNOWN_KEY), problems[0])
    *parents, key = map(str, first["loc"])
    section, field = _locate(model, first["loc"])
    if first["type"] in _UNKNOWN_KEY:
        beside = [p["loc"] for p in problems if p["type"] in _UNKNOWN_KEY and p["loc"][:-1] == first["loc"][:-1]]
        unknown = ", ".join(".".join(map(str, path)) for path in beside)
        known = ", ".join(field.alias or name for name, field in section.model_fields.items())
        return f"config key {unknown}: unknown; known here: {known}"
    if first["type"] == "missing":
        where = f"config key {'.'.join(parents)}" if parents else "config"
        return f"{where}: {key!r} is missing"
    return f"config key {'.'.join([*parents, key])}: {_fault(first, section, field)}"


def _locate(model: type[Section], path: tuple[int | str, ...]) -> tuple[type[Section], FieldInfo | None]:
    """Return the innermost section on a path, and its field there."""
    section, field = model, None
    for part in path:
        field = next((field for name, field in section.model_fields.items() if (field.alias or name) == part), None)
        kinds = _kinds(field.annotation) if field else set()
        inner = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)
        if inner is None:
            break
        section = inner
    return section, field


def _fault(problem: ErrorDetails, section: type[Section], field: FieldInfo | None) -> str:
    """Say what is wrong with a value, what its key means, and how a single value becomes a list."""
    kind, value = problem["type"], problem["input"]
    fault = _FAULTS[kind].format(**problem.get("ctx", {})) if kind in _FAULTS else problem["msg"]
    if kind != "too_short":
        fault = f"{value!r} {fault}"
    if kind.endswith(("_type", "_error")) and field is not None and NoneType in _kinds(field.annotation):
        fault += " or null"
    if kind == "tuple_type" and isinstance(value, str | int | float) and not isinstance(value, bool):
        fault += f"; write [{value}]"
    meaning = (field and field.description) or section.__doc__ or ""
    return fault if kind == "length" else f"{fault} ({meaning.rstrip('.')})"
