"""The journal: what was appended comes back, whatever a kill, a power cut, a bad disk or a full one did to the file."""

import errno
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from longctx.storage import journal
from longctx.storage.journal import RESERVE_BYTES, Journal, JournalError, Record, read

NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
DATA = st.dictionaries(st.text(max_size=8), VALUES, max_size=4)
ENTRIES = st.lists(st.tuples(st.sampled_from(["header", "begin", "row", "trace"]), DATA), min_size=1, max_size=6)
# Each one waits for the disk several times.
few = settings(max_examples=40, deadline=None)
Entries = list[tuple[str, dict[str, Any]]]


def written(entries: Entries, path: Path) -> list[Record]:
    opened = Journal.open(path)
    for kind, data in entries:
        opened.append(kind, data)
    return opened.records


def in_folder(check: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check(Path(folder) / "64Ki" / "pass1.jsonl")


@few
@given(ENTRIES)
def test_what_is_appended_comes_back(entries: Entries) -> None:
    def check(path: Path) -> None:
        records = written(entries, path)
        assert read(path) == (records, 0)
        assert journal.last(path) == records[-1]
        assert [(record.kind, record.data) for record in records] == entries

    in_folder(check)


def test_a_text_that_utf8_cannot_hold_loses_no_row(tmp_path: Path) -> None:
    """Half a surrogate pair in a server's words: the row is written, and read as it was kept."""
    data = {"detail": "bad \ud83d half", "log_lines": ("\udcff",), "facts": {"version \ude00": ["\ud800"]}}
    records = written([("row", data)], tmp_path / "pass1.jsonl")
    assert records[0].data["detail"] == "bad \ufffd half"
    assert read(tmp_path / "pass1.jsonl") == (records, 0)


@few
@given(ENTRIES, st.data())
def test_a_write_cut_short_loses_that_record_only(entries: Entries, data: st.DataObject) -> None:
    def check(path: Path) -> None:
        records = written(entries, path)
        content = path.read_bytes()
        cut = data.draw(st.integers(0, len(content)), "cut")
        path.write_bytes(content[:cut])
        whole = content[:cut].count(b"\n")
        assert read(path) == (records[:whole], 0)
        again = Journal.open(path)
        assert again.records == records[:whole]
        again.append("row", {"after": "the cut"})
        assert read(path) == ([*records[:whole], Record("row", {"after": "the cut"})], 0)

    in_folder(check)


@few
@given(ENTRIES, st.data())
def test_a_changed_byte_loses_its_lines_and_is_counted(entries: Entries, data: st.DataObject) -> None:
    def check(path: Path) -> None:
        records = written(entries, path)
        content = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, len(content) - 2), "at")
        content[at] ^= data.draw(st.integers(1, 255), "bits")
        path.write_bytes(content)
        found, damaged = read(path)
        assert damaged >= 1
        assert all(record in records for record in found)
        # A line whose newline was hit takes the next one with it.
        assert len(found) >= len(records) - 2

    in_folder(check)


def test_a_journal_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert read(tmp_path / "none.jsonl") == ([], 0)
    assert Journal.open(tmp_path / "none.jsonl").header is None
    assert journal.last(tmp_path / "none.jsonl") is None
    assert not (tmp_path / "none.jsonl").exists()


def test_zeros_behind_the_last_record_are_a_write_that_never_ended(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    records = written([("row", {"a": 1})], path)
    with open(path, "ab") as file:
        file.write(bytes(4096))
    assert journal.last(path) is None
    assert Journal.open(path).records == records
    assert path.read_bytes().endswith(b"\n")


def test_a_record_and_a_new_file_s_name_are_on_disk_when_append_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "1Ki" / "pass1.jsonl", []
    really = os.fsync

    def fsync(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        really(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    journal = Journal.open(path)
    journal.append("header", {})
    assert synced == [str(path), str(path.parent), str(tmp_path)]
    synced.clear()
    journal.append("row", {})
    assert synced == [str(path)]


def test_numbers_of_numpy_are_written(tmp_path: Path) -> None:
    written([("row", {"ttft_s": np.float64(1.5)})], tmp_path / "p.jsonl")
    assert read(tmp_path / "p.jsonl")[0][0].data == {"ttft_s": 1.5}


def test_archived_journals_keep_their_content_and_never_replace_each_other(tmp_path: Path) -> None:
    opened = Journal.open(tmp_path / "pass1.jsonl")
    for number in (1, 2):
        opened.append("row", {"number": number})
        target = opened.archive()
        assert target == tmp_path / "superseded" / f"pass1.{number}.jsonl"
        assert read(target)[0] == [Record("row", {"number": number})]
        assert opened.records == []
        assert not (tmp_path / "pass1.jsonl").exists()


LIMITED = """
import resource, sys
from pathlib import Path
from longctx.storage.journal import Journal, JournalError
opened = Journal.open(Path(sys.argv[1]))
opened.append("row", {"number": 1})
limit = Path(sys.argv[1]).stat().st_size + 40
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
try:
    opened.append("row", {"text": "x" * 1000})
except JournalError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
opened.append("row", {"number": 2})
"""


@pytest.mark.process
def test_a_record_half_written_is_taken_back(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    path = tmp_path / "p.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(Path(journal.__file__).parents[2])},
    )
    assert done.stdout == (
        f"cannot write the journal {path}: File too large; free space or fix the folder, then run the same command"
        " again: finished rows are kept\n"
    )
    assert [record.data for record in read(path)[0]] == [{"number": 1}, {"number": 2}]


class FullDisk:
    """Stands in for `journal._write`: full while `reserve` exists."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, reserve: Path) -> None:
        self.real, self.reserve = journal._write, reserve
        monkeypatch.setattr(journal, "_write", self)

    def __call__(self, path: Path, line: bytes) -> None:
        if self.reserve.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        self.real(path, line)


@pytest.fixture
def reserved(tmp_path: Path) -> Journal:
    opened = Journal.open(tmp_path / "64Ki" / "pass1.jsonl", tmp_path / ".reserve")
    opened.secure()
    return opened


def test_space_is_held_back_once(reserved: Journal) -> None:
    assert reserved.reserve is not None
    assert reserved.reserve.stat().st_size == RESERVE_BYTES
    assert reserved.reserve.stat().st_blocks * 512 >= RESERVE_BYTES
    before = reserved.reserve.stat().st_mtime_ns
    reserved.secure()
    assert reserved.reserve.stat().st_mtime_ns == before


@pytest.mark.parametrize("kind", ["trace", "row"])
def test_what_a_request_gave_takes_the_space_held_back(
    reserved: Journal, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    FullDisk(monkeypatch, reserved.path.parents[1] / ".reserve")
    reserved.append(kind, {"kept": True})
    assert read(reserved.path)[0] == [Record(kind, {"kept": True})]


@pytest.mark.parametrize("kind", ["progress", "begin", "server", "done"])
def test_nothing_else_takes_it(reserved: Journal, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    FullDisk(monkeypatch, reserved.path.parents[1] / ".reserve")
    with pytest.raises(JournalError, match=r"No space left on device; free space"):
        reserved.append(kind, {})
    assert reserved.reserve is not None
    assert reserved.reserve.exists()
    assert reserved.records == []


def test_a_request_does_not_begin_without_space_for_its_row(tmp_path: Path) -> None:
    opened = Journal.open(tmp_path / "p.jsonl", tmp_path / "folder")
    (tmp_path / "folder").mkdir()
    with pytest.raises(JournalError, match="cannot write the journal"):
        opened.secure()
