import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tinytokenizers
from longctx.errors import PromptError
from longctx.prompts import synthetic_model
from longctx.prompts.validation import validate
from longctx.storage import parquet, schemas, token_file
from longctx.storage.token_file import TokenFileWriter

SCRIPTS = Path(__file__).parents[3] / "scripts"
GOOD_TEXT = tinytokenizers.SOURCE * 50


def write(path, ids):
    with TokenFileWriter(path) as out:
        out.write(np.asarray(ids, np.uint32))
        out.metadata |= {"cycles": "1"}
    return path


def good_ids(kind="fast"):
    return tinytokenizers.load(kind).encode(GOOD_TEXT).tolist()


def halved(kind):
    """Ids whose middle is half of an emoji."""
    tokenizer = tinytokenizers.load(kind)
    return [*good_ids(kind), int(tokenizer.encode("😀")[0]), *good_ids(kind)]


def unmerged(kind):
    """Ids that decode to good text but are not what the tokenizer makes of it."""
    letters = [int(tinytokenizers.load(kind).encode(char)[0]) for char in "return"]
    return [*good_ids(kind), *letters, *good_ids(kind)]


@pytest.mark.parametrize("kind", ["fast", "tiktoken", "slow"])
def test_a_good_prompt(tmp_path, kind):
    path = write(tmp_path / "p.parquet", good_ids(kind))
    row = validate(path, tinytokenizers.load(kind), len(good_ids(kind)))
    assert row["ok"]
    assert row["detail"] is None
    assert (row["round_trip"], row["ids_in_range"], row["special_ids"], row["undecodable_ids"]) == (True, True, 0, 0)
    parquet.write_rows(tmp_path / "v.parquet", schemas.VALIDATION, [row])


@pytest.mark.parametrize("kind", ["fast", "tiktoken", "slow"])
@pytest.mark.parametrize(
    ("make", "field", "value", "detail"),
    [
        (lambda kind: good_ids(kind)[:-1], "counted", len(good_ids()) - 1, "ids, not"),
        (lambda kind: [*good_ids(kind)[:-1], 9999], "ids_in_range", False, "outside the vocabulary"),
        (lambda kind: [*good_ids(kind), max(tinytokenizers.load(kind).special_ids)], "special_ids", 1, "1 special ids"),
        (halved, "undecodable_ids", 1, "no whole character"),
        (unmerged, "round_trip", False, "differs from id"),
    ],
)
def test_each_fault_is_found_and_said(tmp_path, kind, make, field, value, detail):
    ids = make(kind)
    path = write(tmp_path / "p.parquet", ids)
    row = validate(path, tinytokenizers.load(kind), len(good_ids(kind)) if field == "counted" else len(ids))
    if field != "counted" or kind == "fast":
        assert row[field] == value
    assert not row["ok"]
    assert detail in row["detail"]


def test_ids_that_their_checksum_is_not_of(tmp_path):
    labels = token_file.read_metadata(write(tmp_path / "p.parquet", good_ids()))
    changed = pa.table({"token_ids": pa.array(good_ids()[::-1], pa.uint32())})
    pq.write_table(changed.replace_schema_metadata(labels), tmp_path / "changed.parquet")
    row = validate(tmp_path / "changed.parquet", tinytokenizers.load("fast"), len(good_ids()))
    assert not row["ok"]
    assert "the file was changed" in row["detail"]


def test_token_ids_of_somebody_else_are_no_prompt(tmp_path):
    pq.write_table(pa.table({"token_ids": pa.array([], pa.uint32())}), tmp_path / "p.parquet")
    with pytest.raises(PromptError, match="no prompt of longctx, its metadata lack sha256 and cycles"):
        validate(tmp_path / "p.parquet", tinytokenizers.load("fast"), 0)


def test_the_first_difference_is_counted_in_ids(tmp_path):
    path = write(tmp_path / "p.parquet", unmerged("fast"))
    detail = validate(path, tinytokenizers.load("fast"), len(unmerged("fast")))["detail"]
    assert f"from id {len(good_ids())} on" in detail


def test_a_smaller_embedding_than_the_vocabulary(tmp_path):
    path = write(tmp_path / "p.parquet", good_ids())
    row = validate(path, tinytokenizers.load("fast"), len(good_ids()), model_vocab_size=max(good_ids()))
    assert row["ids_in_range"] is False


@pytest.mark.process
def test_the_script_knows_the_embedding_from_the_models_own_config(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tinytokenizers.fast_folder(), folder)
    path = write(tmp_path / "p.parquet", good_ids())
    command = [
        sys.executable,
        str(SCRIPTS / "validate.py"),
        "--prompt",
        str(path),
        "--length",
        str(len(good_ids())),
        "--tokenizer",
        str(folder),
        "--out",
        str(tmp_path / "v.parquet"),
    ]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0, "no config.json, nothing to say"
    (folder / "config.json").write_text(json.dumps(synthetic_model.TINY_LLAMA | {"vocab_size": int(max(good_ids()))}))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "an id is outside the vocabulary" in done.stderr


def test_parts_are_checked_across_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr("longctx.storage.token_file.ROW_GROUP_TOKENS", 100)
    monkeypatch.setattr("longctx.prompts.validation._PIECE_TOKENS", 7)
    path = write(tmp_path / "p.parquet", good_ids())
    seen = []
    assert validate(path, tinytokenizers.load("fast"), len(good_ids()), progress=seen.append)["ok"]
    assert seen[-1] == len(good_ids())


@pytest.mark.process
def test_the_script_warns_in_one_sentence_and_its_row_says_that_the_prompt_is_bad(tmp_path):
    path = write(tmp_path / "p.parquet", good_ids())
    command = [
        sys.executable,
        str(SCRIPTS / "validate.py"),
        "--prompt",
        str(path),
        "--length",
        "1Ki",
        "--tokenizer",
        str(tinytokenizers.fast_folder()),
        "--out",
        str(tmp_path / "v.parquet"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1] == f"warning: {path}: the prompt has {len(good_ids())} ids, not 1024"
    assert parquet.read_rows(tmp_path / "v.parquet", schemas.VALIDATION)[0]["ok"] is False
