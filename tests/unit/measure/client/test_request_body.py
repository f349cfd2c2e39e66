"""The request body: the JSON that any encoder would give, its size known before, its text never whole in memory."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from longctx.errors import PromptError
from longctx.measure.client import request_body
from longctx.measure.client.request_body import RequestBody

FIELDS = {"model": 'a "quoted" é', "max_tokens": 16, "stream_options": {"include_usage": True}}
ids_arrays = npst.arrays(np.uint32, st.integers(1, 300), elements=st.integers(0, 2**32 - 1))


def joined(made: RequestBody) -> bytes:
    return b"".join(made)


@given(ids=ids_arrays, piece=st.integers(1, 70))
def test_body_is_what_json_would_write(ids: np.ndarray, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_body, "PIECE_IDS", piece)
        made = RequestBody.encode(FIELDS, ids)
        sent = joined(made)
    assert json.loads(sent) == {**FIELDS, "prompt": ids.tolist()}
    assert len(sent) == made.size


@pytest.mark.parametrize("value", [0, 9, 10, 99, 100, 999_999_999, 1_000_000_000, 2**32 - 1])
def test_every_number_of_digits(value: int) -> None:
    made = RequestBody.encode({}, np.array([value] * 3, dtype=np.uint32))
    assert joined(made) == b'{"prompt":[%d,%d,%d]}' % (value, value, value)
    assert made.size == len(joined(made))


def test_it_can_be_sent_twice() -> None:
    made = RequestBody.encode(FIELDS, np.arange(1000, dtype=np.uint32))
    assert joined(made) == joined(made)


def test_an_empty_prompt_is_an_error() -> None:
    with pytest.raises(PromptError, match="no token ids"):
        RequestBody.encode({}, np.array([], dtype=np.uint32))


MEMORY_PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from longctx.measure.client.request_body import RequestBody
peak_kib = lambda: int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
ids = np.full(8 << 20, 99_999, dtype=np.uint32)
list(RequestBody.encode({}, ids[: 1 << 19]))
before = peak_kib()
made = RequestBody.encode({"model": "m"}, ids)
size = sum(len(part) for part in made)
assert size == made.size
print(made.size // 1024, peak_kib() - before)
"""


@pytest.mark.process
def test_memory_does_not_grow_with_the_prompt() -> None:
    """A body of 50 MB must not cost its own size, or that of its ids as a list."""
    scripts = Path(request_body.__file__).parents[3]
    out = subprocess.run(
        [sys.executable, "-c", MEMORY_PROGRAM],
        env={"PYTHONPATH": str(scripts)},
        capture_output=True,
        text=True,
        check=True,
    )
    size_kib, grown_kib = map(int, out.stdout.split())
    assert grown_kib < size_kib / 4


def test_the_text_is_made_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first piece is encoded before the request begins, each other one when it is to be sent."""
    monkeypatch.setattr(request_body, "PIECE_IDS", 10)
    encoded: list[int] = []
    join = request_body._join_ids

    def counting(ids: np.ndarray) -> bytes:
        encoded.append(int(ids[0]))
        return join(ids)

    monkeypatch.setattr(request_body, "_join_ids", counting)
    parts = iter(RequestBody.encode({}, np.arange(35, dtype=np.uint32)))
    assert encoded == [0]
    next(parts)
    assert encoded == [0]
    next(parts)
    assert encoded == [0, 10]
    assert b"".join(parts) == b",20,21,22,23,24,25,26,27,28,29,30,31,32,33,34]}"
