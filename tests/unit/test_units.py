"""Numbers for people."""

import re

import pytest
from longctx import lengths, units

MI, GIB = 2**20, 2**30


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "?"), (0.44, "0.4 s"), (42.4, "42 s"), (200, "3 min 20 s"), (7500, "2 h 05 min"), (97300, "1 d 3 h")],
)
def test_a_running_duration(seconds: float | None, text: str) -> None:
    assert units.format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "—"), (5e-6, "5.00 µs"), (0.0042, "4.20 ms"), (0.08, "0.08 s"), (18.44, "18.4 s"), (744, "12.4 min"),
     (40171.67, "11.2 h"), (3.6e6, "1,000 h")],
)  # fmt: skip
def test_a_result_in_seconds(seconds: float | None, text: str) -> None:
    assert units.human_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(999, "999"), (1500, "1.5k"), (1_500_000, "1.5M"), (2e9, "2.0G"), (0, "0")]
)
def test_counts(count: float, text: str) -> None:
    assert units.human_count(count) == text


@pytest.mark.parametrize(
    ("tokens", "text"),
    [(65536, "64Ki"), (64 * MI, "64Mi"), (770579, "752.5Ki"), (5825 * 1024, "5.6Mi"), (1010000, "986.3Ki"),
     (None, "no limit"), (1000, "1000")],
)  # fmt: skip
def test_lengths_are_short(tokens: int | None, text: str) -> None:
    assert units.human_length(tokens) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(252 * GIB, "252 GiB"), (5.8 * GIB, "5.8 GiB"), (4 * MI, "4 MiB"), (2**40, "1 TiB"), (0.9995 * GIB, "1 GiB"),
     (1536, "1.5 KiB"), (12, "12 B")],
)  # fmt: skip
def test_sizes(size: float, text: str) -> None:
    assert units.human_bytes(size) == text


def test_cells_of_a_column_with_its_unit_in_the_header() -> None:
    assert [units.in_gib(size) for size in (None, 1234.5 * GIB, 0.1 * GIB, 0.02 * GIB)] == [
        "-",
        "1,234.5",
        "0.1",
        "0.02",
    ]
    assert [units.in_tok_s(rate) for rate in (None, 1234.4, 99.94)] == ["-", "1,234", "99.9"]
    assert [units.human_parameters(count) for count in (49_120_000_000, 1_300_000)] == ["49.12 billion", "1.3 million"]


@pytest.mark.parametrize("tokens", [1, 999, 1024, 65536, 3 << 20, 1 << 30, 1536 << 20, 3 << 40])
def test_every_name_of_a_length_matches_the_pattern_of_names(tokens: int) -> None:
    name = lengths.format_length(tokens)
    assert re.fullmatch(lengths.NAME_PATTERN, name)
    assert lengths.parse_length(name) == tokens
