import io

import pytest
from longctx.progress.lines import ProgressLine
from longctx.units import human_count


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_elsewhere_only_a_start_and_an_end_line():
    out = io.StringIO()
    with ProgressLine("corpus", 4_000_000, out=out) as progress:
        for done in range(0, 4_000_001, 100_000):
            progress(done)
    lines = out.getvalue().splitlines()
    assert lines[0] == "corpus (4.0M tokens) …"
    assert lines[1].startswith("corpus: 4.0M of 4.0M tokens, ")
    assert len(lines) == 2


def test_on_a_terminal_one_line_moves(monkeypatch):
    now = iter(range(1000))
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    out = Terminal()
    with ProgressLine("corpus", out=out) as progress:
        progress(500)
        progress(2500)
    assert out.getvalue().count("\n") == 1
    assert "corpus: 500 tokens" in out.getvalue()
    assert "2.5k tokens" in out.getvalue()


def test_an_error_is_not_an_end():
    out = io.StringIO()
    with pytest.raises(KeyError), ProgressLine("corpus", out=out):
        raise KeyError
    assert out.getvalue().endswith("(stopped)\n")


def test_counts_for_people():
    assert [human_count(n) for n in (7, 1500, 2_500_000, 3e9)] == ["7", "1.5k", "2.5M", "3.0G"]
