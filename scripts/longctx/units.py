"""Numbers for people: tokens, bytes, seconds, rates, counts."""

from longctx.lengths import UNITS, format_length

MIB, GIB = 2**20, 2**30


def format_seconds(seconds: float | None) -> str:
    """Return '0.4 s', '42 s', '3 min 20 s', '2 h 05 min', '1 d 3 h', or '?' for None: a duration while it runs."""
    if seconds is None:
        return "?"
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, whole = divmod(round(seconds), 60)
    hours, days = minutes // 60, minutes // 1440
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60:02} min"
    return f"{minutes} min {whole:02} s" if minutes else f"{whole} s"


def human_seconds(seconds: float | None) -> str:
    """Return '0.08 s', '18.4 s', '12.4 min', '11.2 h' or '—' for None: a result, to about three digits."""
    if seconds is None:
        return "—"
    for limit_s, unit_s, name in ((0.001, 1e-6, "µs"), (0.01, 1e-3, "ms"), (120, 1, "s"), (7200, 60, "min")):
        if abs(seconds) < limit_s:
            return f"{_three_digits(seconds / unit_s)} {name}"
    return f"{_three_digits(seconds / 3600)} h"


def _three_digits(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 9.995 else f"{value:.1f}" if abs(value) < 99.95 else f"{value:,.0f}"


def human_count(count: float) -> str:
    """Return '1.5M' for 1500000: about three digits."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return f"{count:.0f}"


def human_length(tokens: int | None) -> str:
    """Return a length rounded down for reading: '64Ki' where exact, else '9.3Mi'; 'no limit' for None."""
    if tokens is None:
        return "no limit"
    exact = format_length(tokens)
    if tokens < 1024 or exact.endswith(("Mi", "Gi")) or (exact.endswith("Ki") and tokens < 2**20):
        return exact
    unit = next(unit for unit in ("Gi", "Mi", "Ki") if tokens >= UNITS[unit])
    return f"{tokens * 10 // UNITS[unit] / 10:.1f}{unit}"


def human_bytes(size: float) -> str:
    """Return '252 GiB', '5.8 GiB' or '4 MiB'."""
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= 0.999 * unit:
            value = size / unit
            return f"{value:.0f} {name}" if value >= 100 or abs(value - round(value)) < 0.005 else f"{value:.1f} {name}"
    return f"{size:.0f} B"


def in_gib(size_bytes: float | None) -> str:
    """Return '1,234.5' or '0.02': bytes in GiB for a column of that unit, '-' for None."""
    if size_bytes is None:
        return "-"
    return f"{size_bytes / GIB:,.1f}" if size_bytes >= 0.1 * GIB else f"{size_bytes / GIB:.2g}"


def in_tok_s(rate_tok_s: float | None) -> str:
    """Return '1,234' or '12.3': tokens/s for a column of that unit, '-' for None."""
    return "-" if rate_tok_s is None else f"{rate_tok_s:,.0f}" if rate_tok_s >= 100 else f"{rate_tok_s:.1f}"


def human_parameters(count: int) -> str:
    """Return '49.10 billion' or '1.3 million'."""
    return f"{count / 1e9:.2f} billion" if count >= 1e8 else f"{count / 1e6:.1f} million"
