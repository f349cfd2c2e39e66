"""The table of faults in tests/README.md names tests that exist."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
CASES = (*range(1, 9), 10, 11, 12, 16, 17, 19, 20, 22, 23, *range(27, 32))


def test_every_case_names_tests_that_exist() -> None:
    text = (TESTS / "README.md").read_text()
    assert tuple(int(number) for number in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)) == CASES
    tests = {
        name for path in TESTS.rglob("test_*.py") for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    }
    named = re.findall(r"`(test_\w+)`", text)
    assert [name for name in named if name not in tests] == []
    assert len(named) > len(CASES)
