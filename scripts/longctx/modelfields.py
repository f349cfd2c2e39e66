"""Strict access to a config.json: each read names its field, and nothing absent turns into a number."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from longctx.errors import GeometryError

REQUIRED = object()
_DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4}


@dataclass(frozen=True, slots=True)
class Fields:
    """A config.json's text part; `where` is its path inside the file, `name` the model's name for messages."""

    values: Mapping[str, Any]
    name: str
    where: str = ""

    def fail(self, field: str, problem: str, mend: str) -> GeometryError:
        """Return the error, to be raised, that names model and field."""
        return GeometryError(f"{self.name or 'config.json'}: {self.where}{field} {problem}; {mend}")

    def count(self, *names: str, default: Any = REQUIRED, at_least: int = 1) -> int:
        """Return the whole number under the first of `names` that is there and not null."""
        value = self.get(*names, default=default)
        if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
            raise self.fail(names[0], f"is {value!r}", f"it must be a whole number of at least {at_least}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false as the file says, `default` where it says nothing."""
        value = self.get(name, default=default)
        if not isinstance(value, bool):
            raise self.fail(name, f"is {value!r}", "it must be true or false")
        return value

    def strings(self, name: str, length: int, allowed: Mapping[str, Any]) -> list[str]:
        """Return a list of `length` strings, each a key of `allowed`."""
        value = self.get(name)
        if not isinstance(value, list) or len(value) != length:
            raise self.fail(name, "is not a list of one entry per layer", f"give {length} entries")
        for entry in value:
            if entry not in allowed:
                raise self.fail(name, f"has the unknown kind {entry!r}", f"known are {', '.join(allowed)}")
        return value

    def get(self, *names: str, default: Any = REQUIRED) -> Any:
        """Return the first of `names` that is there and not null, else `default`, else GeometryError."""
        for name in names:
            if self.values.get(name) is not None:
                return self.values[name]
        if default is REQUIRED:
            raise self.fail(names[0], "is missing", "add it as the model's own config.json has it")
        return default

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def inner(self, name: str) -> "Fields":
        """Return the object under `name` as Fields of its own."""
        value = self.get(name)
        if not isinstance(value, Mapping):
            raise self.fail(name, f"is {value!r}", "it must be an object")
        return Fields(value, self.name, f"{self.where}{name}.")

    def refuse(self, name: str, why: str) -> None:
        """Raise if `name` is set: a field that changes the geometry in a way nobody taught this planner."""
        if self.values.get(name):
            raise self.fail(name, f"is {self.values[name]!r}", f"{why}, which the planner does not know")

    def dtype_bytes(self) -> int:
        """Return the bytes of the model's dtype (`dtype`, formerly `torch_dtype`)."""
        value = str(self.get("dtype", "torch_dtype")).removeprefix("torch.")
        if value not in _DTYPE_BYTES:
            raise self.fail("dtype", f"is {value!r}", f"known are {', '.join(_DTYPE_BYTES)}")
        return _DTYPE_BYTES[value]


def weight_bytes(fields: Fields, dtype_bytes: int) -> tuple[float, float]:
    """Return (bytes per layer parameter, bytes per expert parameter) from `quantization_config`.

    FP8 has one FP32 scale per 128 x 128 block where `weight_block_size` says so, MXFP4 one byte per 32 elements.
    """
    if not fields.has("quantization_config"):
        return dtype_bytes, dtype_bytes
    quantisation = fields.inner("quantization_config")
    method = quantisation.get("quant_method")
    if method == "fp8":
        block = quantisation.get("weight_block_size", default=None)
        scaled = 1.0 if block is None else 1.0 + 4.0 / (block[0] * block[1])
        return scaled, scaled
    if method == "mxfp4":
        return dtype_bytes, 4.25 / 8
    raise quantisation.fail(
        "quant_method", f"is {method!r}", "known are fp8 and mxfp4; plan with the unquantised config"
    )
