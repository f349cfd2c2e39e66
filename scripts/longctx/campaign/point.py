"""A point: one length in one pass of one mode."""

import re
from dataclasses import dataclass

from longctx.campaign.mode import COLD_MODE, MODES
from longctx.errors import ConfigError
from longctx.lengths import format_length, parse_length

# The run of a point as files name it; its groups: the mode, the pass.
RUN_PATTERN = f"(?:({'|'.join(MODES[1:])})-)?pass([1-9][0-9]*)"


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """One rung in one pass of one mode; `run` is its file name."""

    length: int
    pass_index: int
    mode: str = COLD_MODE.value

    @property
    def label(self) -> str:
        return format_length(self.length)

    @property
    def run(self) -> str:
        return f"pass{self.pass_index}" if self.mode == COLD_MODE else f"{self.mode}-pass{self.pass_index}"

    @property
    def name(self) -> str:
        return f"{self.label}/{self.run}"


def parse_point(name: str) -> Point:
    """Return the point that '64Ki/pass2' names, or '64Ki/MODE-pass2' for other modes than the cold one."""
    match = re.fullmatch(f"([^/]+)/{RUN_PATTERN}", name)
    if not match:
        runs = " or ".join(f"LENGTH/{mode}-passN" for mode in MODES[1:])
        raise ConfigError(f"point {name!r}: write LENGTH/passN, {runs}")
    return Point(parse_length(match[1]), int(match[3]), match[2] or COLD_MODE.value)
