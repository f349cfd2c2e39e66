"""The table of faults in tests/README.md names tests that exist."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
CASES = (*range(1, 9), 10, 11, 12, 16, 17, 19, 20, 22, 23, *range(27, 32))


def test_every_case_names_tests_that_exist() -> None:
    text = (TESTS / "README.md").read_text()
    assert tuple(int(number) for number in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)) == CASES
    file, found = "", 0
    for named, test in re.findall(r"`([\w/]+\.py)?::(\w+)`", text):
        file = named or file
        assert f"\ndef {test}(" in (TESTS / file).read_text(), f"{file}::{test}"
        found += 1
    assert found > len(CASES)
