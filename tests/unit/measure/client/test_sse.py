"""Server-sent events, cut by the network wherever it likes."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from longctx.measure.client import sse
from longctx.measure.client.sse import ServerSentEvent, SseParser

LINE_END = sse._LINE_END

TEXT = (
    ': hello\ndata: {"text": "é – 日本"}\n\nevent: x\nid: 7\ndata: first\ndata: second\n\n'
    ":\n\ndata:tight\n\ndata: [DONE]\n\n"
)
EVENTS = [('{"text": "é – 日本"}', ""), ("first\nsecond", "x"), ("tight", ""), ("[DONE]", "")]


def data(events: list[ServerSentEvent]) -> list[str]:
    return [event.data for event in events]


@given(cuts=st.lists(st.integers(0, 400), max_size=30), end=st.sampled_from(["\n", "\r\n", "\r"]))
def test_any_cut_and_any_line_end(cuts: list[int], end: str) -> None:
    raw = TEXT.replace("\n", end).encode()
    edges = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    parser = SseParser()
    found = [event for a, b in itertools.pairwise(edges) for event in parser.feed(raw[a:b])]
    assert found + parser.end() == EVENTS


def test_byte_by_byte() -> None:
    parser = SseParser()
    assert [event for byte in TEXT.encode() for event in parser.feed(bytes([byte]))] == EVENTS


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_an_event_is_there_with_its_last_line_end(end: bytes) -> None:
    """Also where CR alone ends lines: waiting for a possible LF would make every token as late as the next one."""
    parser = SseParser()
    for text in (b"a", b"b"):
        assert data(parser.feed(b"data: " + text + end + end[:1])) == [text.decode()]
        assert parser.feed(end[1:]) == []
    assert parser.end() == []


def test_line_ends_of_several_kinds_in_one_stream() -> None:
    raw = b"data: 1\r\n\r\ndata: 2\n\ndata: 3\r\r: note\rdata: 4\r\n\ndata: 5\n\r\n"
    for step in range(1, len(raw)):
        parser, found = SseParser(), []
        for at in range(0, len(raw), step):
            found += parser.feed(raw[at : at + step])
        assert data(found + parser.end()) == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1e"])
def test_only_cr_and_lf_end_lines(character: str) -> None:
    assert data(SseParser().feed(f"data: a{character}b\n\n".encode())) == [f"a{character}b"]


def test_names_of_events() -> None:
    parser = SseParser()
    assert parser.feed(b"event: error\ndata: why\n\n") == [("why", "error")]
    assert parser.feed(b"data: a\n\n") == [("a", "")], "the name is that of one event"
    assert parser.feed(b"event: error\n\n") == [("", "error")], "an error without a word is one"
    assert parser.feed(b"event: ping\n\n") == []
    assert parser.feed(b'error: {"code": 500}\n\n') == [('{"code": 500}', "error")], "llama.cpp"


def test_a_last_event_without_its_blank_line() -> None:
    parser = SseParser()
    assert parser.feed(b"data: [DONE]") == []
    assert data(parser.end()) == ["[DONE]"]
    assert parser.end() == []


@pytest.mark.parametrize("raw", [b"\xef\xbb\xbfdata: a\n\n", b"data: a\n\n"])
def test_byte_order_mark(raw: bytes) -> None:
    assert data(SseParser().feed(raw)) == ["a"]


def test_bytes_that_are_not_utf8_do_not_stop_the_stream() -> None:
    assert data(SseParser().feed(b"data: \xff\n\ndata: b\n\n")) == ["�", "b"]


def test_a_line_of_many_reads_is_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte in one event must not cost the square of its reads while the clock runs."""

    class Counted:
        searched = 0

        def search(self, text: bytes) -> object:
            self.searched += len(text)
            return LINE_END.search(text)

        def split(self, text: bytes) -> list[bytes]:
            self.searched += len(text)
            return LINE_END.split(text)

    counted = Counted()
    monkeypatch.setattr(sse, "_LINE_END", counted)
    parser = SseParser()
    parser.feed(b"data: ")
    assert not any(parser.feed(b"x" * 1000) for _ in range(1000))
    assert [len(event.data) for event in parser.feed(b"\n\n")] == [1_000_000]
    assert counted.searched < 3_000_000
