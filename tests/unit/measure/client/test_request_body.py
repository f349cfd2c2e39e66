"""The request body: the JSON that any encoder would give, its size known before, never in memory twice."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from longctx.errors import PromptError
from longctx.measure.client import request_body
from longctx.measure.client.request_body import ArrayPrompt, ParquetPrompt, RequestBody, as_prompt

FIELDS = {"model": 'a "quoted" é', "max_tokens": 16, "stream_options": {"include_usage": True}}
ids_arrays = npst.arrays(np.uint32, st.integers(1, 300), elements=st.integers(0, 2**32 - 1))


def joined(made: RequestBody) -> bytes:
    return b"".join(made)


@given(ids=ids_arrays, piece=st.integers(1, 70))
def test_body_is_what_json_would_write(ids: np.ndarray, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_body, "PIECE_IDS", piece)
        made = RequestBody(FIELDS, ArrayPrompt(ids))
        sent = joined(made)
    assert json.loads(sent) == {**FIELDS, "prompt": ids.tolist()}
    assert (len(sent), made.count) == (made.size, len(ids))


@pytest.mark.parametrize("value", [0, 9, 10, 99, 100, 999_999_999, 1_000_000_000, 2**32 - 1])
def test_every_number_of_digits(value: int) -> None:
    made = RequestBody({}, ArrayPrompt(np.array([value] * 3, dtype=np.uint32)))
    assert joined(made) == b'{"prompt":[%d,%d,%d]}' % (value, value, value)
    assert made.size == len(joined(made))


def test_it_can_be_sent_twice() -> None:
    made = RequestBody(FIELDS, ArrayPrompt(np.arange(1000, dtype=np.uint32)))
    assert joined(made) == joined(made)


def test_parquet_in_row_groups(tmp_path: Path) -> None:
    ids = np.arange(1000, dtype=np.uint32)
    pq.write_table(pa.table({"token_ids": ids}), tmp_path / "p.parquet", row_group_size=64)
    assert joined(RequestBody({}, as_prompt(tmp_path / "p.parquet"))) == joined(RequestBody({}, as_prompt(ids)))


def test_an_empty_prompt_is_an_error() -> None:
    with pytest.raises(PromptError, match="no token ids"):
        RequestBody({}, ArrayPrompt(np.array([], dtype=np.uint32)))


MEMORY_PROGRAM = """
import sys
from pathlib import Path
from longctx.measure.client.request_body import RequestBody, as_prompt
path = Path(sys.argv[1])
peak_kib = lambda: int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
RequestBody({}, as_prompt(path.with_name("small.parquet")))
before = peak_kib()
made = RequestBody({"model": "m"}, as_prompt(path))
size = sum(len(part) for part in made)
assert size == made.size
print(made.size // 1024, peak_kib() - before)
"""


def test_memory_does_not_grow_with_the_prompt(tmp_path: Path) -> None:
    """A body of 50 MB must not cost what a copy of it, or of its ids as a list, would."""
    ids = np.full(8 << 20, 99_999, dtype=np.uint32)
    pq.write_table(pa.table({"token_ids": ids}), tmp_path / "p.parquet", row_group_size=1 << 20)
    pq.write_table(pa.table({"token_ids": ids[: 2 << 20]}), tmp_path / "small.parquet", row_group_size=1 << 20)
    scripts = Path(request_body.__file__).parents[3]
    out = subprocess.run(
        [sys.executable, "-c", MEMORY_PROGRAM, str(tmp_path / "p.parquet")],
        env={"PYTHONPATH": str(scripts)},
        capture_output=True,
        text=True,
        check=True,
    )
    size_kib, grown_kib = map(int, out.stdout.split())
    assert grown_kib < size_kib / 2


def test_the_prompt_is_read_lazily() -> None:
    """The second piece is asked for only after the first has been taken."""
    taken: list[int] = []

    class Counting:
        def chunks(self):
            for number in range(4):
                taken.append(number)
                yield np.full(10, number, dtype=np.uint32)

    made = RequestBody({}, Counting())
    taken.clear()
    parts = iter(made)
    next(parts)
    assert taken == []
    next(parts)
    assert taken == [0, 1]
    assert isinstance(as_prompt(Counting()), Counting)
    assert isinstance(as_prompt("x.parquet"), ParquetPrompt)
