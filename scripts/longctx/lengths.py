"""Context lengths as people write them: '64Ki' is 65536 tokens."""

import re

from longctx.errors import ConfigError

UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
LONGEST = 1 << 42  # far beyond every model, and every product with bytes per token fits 64 bits
# What `format_length` writes, for Snakemake's wildcards; people may write leading zeros too.
NAME_PATTERN = f"[1-9][0-9]*({'|'.join(unit for unit in UNITS if unit)})?"


def parse_length(value: str | int) -> int:
    """Return the tokens in '64Ki', '2Mi', '1536' or 1536; ConfigError if it isn't a whole number from 1 to LONGEST."""
    match = re.fullmatch(r"([0-9]+)(Ki|Mi|Gi)?", str(value)) if not isinstance(value, bool) else None
    if not match or not match[1].strip("0"):
        raise ConfigError(f"length {value!r} is not a positive whole number of tokens; write 4096, 4Ki or 2Mi")
    digits = match[1].lstrip("0")
    if len(digits) > len(str(LONGEST)) or (tokens := int(digits) * UNITS[match[2] or ""]) > LONGEST:
        raise ConfigError(f"length {str(value)[:40]} is more than {format_length(LONGEST)} tokens")
    return tokens


def format_length(tokens: int) -> str:
    """Return the shortest exact name: 65536 -> '64Ki', 1000 -> '1000'."""
    unit = next((unit for unit in ("Gi", "Mi", "Ki") if tokens % UNITS[unit] == 0), "")
    return f"{tokens // UNITS[unit]}{unit}"


def ladder(first: str | int, last: str | int) -> list[int]:
    """Return the lengths from `first` doubling up to `last`, both included where reached exactly."""
    low, high = parse_length(first), parse_length(last)
    if low > high:
        raise ConfigError(f"from: {first} is greater than to: {last}; swap them")
    doublings = (high // low).bit_length() - 1
    if low << doublings != high:
        raise ConfigError(f"to: {last} is not from: {first} times a power of two; list the lengths instead")
    return [low << n for n in range(doublings + 1)]
