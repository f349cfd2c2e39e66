import io

import pytest
from longctx.progress import lines as lines_module
from longctx.progress.lines import ProgressLine, TerminalLine, prefill_text
from longctx.units import human_count
from patching import replace_in


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_line_is_rewritten_and_cleared() -> None:
    out = Terminal()
    line = TerminalLine(out)
    line.show("a long text")
    line.show("short")
    line.finish()
    assert out.getvalue() == "\ra long text\rshort      \r     \r"


def test_without_a_terminal_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now, out = [0.0], io.StringIO()
    replace_in(monkeypatch, lines_module, "time", monotonic=lambda: now[0])
    line = TerminalLine(out)
    for second in range(150):
        now[0] = second
        line.show(f"at {second}")
    line.finish()
    assert out.getvalue().splitlines() == ["at 0", "at 60", "at 120"]


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
    replace_in(monkeypatch, lines_module, "time", monotonic=lambda: next(now))
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


def test_one_sentence_about_a_prefill() -> None:
    known = {"tokens_done": 32_768, "tokens_total": 65_536, "rate_tok_s": 4096.0, "elapsed_s": 8.0, "eta_s": 24.0}
    assert prefill_text(known) == " 50%, ETA 24 s, 32,768 of 65,536 tokens, 4,096 tok/s, elapsed 8.0 s"
    assert (
        prefill_text({"tokens_done": 120, "tokens_total": 100}) == "100%, ETA ?, 120 of 100 tokens, ? tok/s, elapsed ?"
    )
