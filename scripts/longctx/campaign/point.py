"""A point: one length in one pass of one mode."""

import re
from dataclasses import dataclass

from longctx.errors import ConfigError
from longctx.lengths import format_length, parse_length


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """One rung in one pass of one mode; `run` is its file name."""

    length: int
    pass_index: int
    mode: str = "prefill"

    @property
    def label(self) -> str:
        return format_length(self.length)

    @property
    def run(self) -> str:
        return f"pass{self.pass_index}" if self.mode == "prefill" else f"{self.mode}-pass{self.pass_index}"

    @property
    def name(self) -> str:
        return f"{self.label}/{self.run}"


def parse_point(name: str) -> Point:
    """Return the point that '64Ki/reuse-pass2' names."""
    match = re.fullmatch(r"([^/]+)/(?:(decode_only|reuse)-)?pass([1-9]\d*)", name)
    if not match:
        raise ConfigError(f"point {name!r}: write LENGTH/passN, LENGTH/reuse-passN or LENGTH/decode_only-passN")
    return Point(parse_length(match[1]), int(match[3]), match[2] or "prefill")
