"""A point's record: its journal, the requests still missing, and the Parquets assembled from it."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from longctx.campaign.campaign import RESULTS, Campaign
from longctx.campaign.files import journal_path, output_path
from longctx.campaign.mode import RequestKey
from longctx.campaign.point import Point
from longctx.measure.checkpoints import Attempt
from longctx.measure.client.ttft_itl import Chunk
from longctx.measure.remeasure import find_difference
from longctx.measure.salt import choose_salt
from longctx.storage import parquet, schemas
from longctx.storage.atomic import replacing
from longctx.storage.journal import Journal, Record, read
from longctx.storage.locks import exclusive_lock
from longctx.storage.provenance import file_sha256
from longctx.storage.rows import MeasurementRow
from longctx.storage.schemas import Role, Status

OUTPUTS = {
    "measurements": ("row", schemas.MEASUREMENTS),
    "servers": ("server", schemas.SERVERS),
    "traces": ("trace", schemas.TRACES),
    "progress": ("progress", schemas.PROGRESS),
}


def is_done(records: Iterable[Record]) -> bool:
    """Return whether the last state in the journal is that the point's Parquets were in place."""
    states = [record.kind for record in records if record.kind in ("done", "reopened")]
    return states[-1:] == ["done"]


def past_rows(campaign: Campaign, point: Point) -> list[dict[str, Any]]:
    """Return every attempt's row, oldest first, with the columns that its version of longctx had."""
    return [record.data for record in read(journal_path(campaign, point))[0] if record.kind == "row"]


@dataclass(slots=True)
class PointRecord:
    """One point's journal, opened for the current recipe and prompt."""

    campaign: Campaign
    point: Point
    journal: Journal

    @classmethod
    def open(cls, campaign: Campaign, point: Point, prompt_sha256: str | None) -> tuple["PointRecord", str | None]:
        """Open the journal, one of another recipe or prompt set aside; the sentence says what could not be kept."""
        journal = Journal.open(journal_path(campaign, point), campaign.results / "journal" / ".reserve")
        identity = {**campaign.settings(point.mode), "prompt_sha256": prompt_sha256}
        recipe, sentence = campaign.recipe_hash(point.mode), None
        if difference := find_difference(campaign, point, journal, prompt_sha256):
            kept = f"what was there is kept in {journal.archive()}"
            sentence = f"{point.name}: measured again, since {difference} ({kept})"
        elif journal.damaged:
            sentence = f"{point.name}: damaged lines of its journal are left out ({journal.damaged})"
        if journal.header is None:
            salt = {"prompt_salt": choose_salt(campaign, point)}
            journal.append("header", {"point": point.name, "settings": identity, "recipe_hash": recipe} | salt)
        elif is_done(journal.records):
            journal.append("reopened", {})
        return cls(campaign, point, journal), sentence

    @classmethod
    def restore(cls, campaign: Campaign, point: Point) -> bool:
        """Write a lost journal anew from the point's Parquets; return whether it was lost and they are all there.

        Parquets of another recipe give a journal without a header: its rows say whose they are.
        """
        path = journal_path(campaign, point)
        files = {table: output_path(campaign, point, table) for table in OUTPUTS}
        if read(path)[0] or not all(file.exists() for file in files.values()):
            return False
        tables = {table: parquet.read_rows(files[table], schema) for table, (_, schema) in OUTPUTS.items()}
        rows, recipe = tables["measurements"], campaign.recipe_hash(point.mode)
        prompts = {row["prompt_sha256"] for row in rows if row["prompt_sha256"]}
        with replacing(path) as temporary:
            record = cls(campaign, point, Journal(temporary))
            if {row["recipe_hash"] for row in rows} == {recipe} and len(prompts) == 1:
                identity = {**campaign.settings(point.mode), "prompt_sha256": prompts.pop()}
                header = {"point": point.name, "settings": identity, "recipe_hash": recipe}
                record.journal.append("header", header | {"prompt_salt": rows[0].get("prompt_salt")})
            for server in tables["servers"]:
                record.journal.append("server", server)
            for row in rows:
                key = (row["role"], row["request_index"])
                record.begin(key)
                for sample in _samples_of(key, tables["progress"]):
                    record.add_progress(key, sample)
                record.journal.append("trace", _labels(key) | {"samples": _samples_of(key, tables["traces"])})
                record.journal.append("row", row)
            record.done()
        return True

    @property
    def prompt_salt(self) -> str | None:
        """The salt of the point's prompts; None where they are sent as they are."""
        return (self.journal.header or {}).get("prompt_salt")

    @property
    def labels(self) -> dict[str, Any]:
        """The columns that say which point of which recipe it is."""
        recipe = self.campaign.recipe_hash(self.point.mode)
        return {"campaign": self.campaign.name, "recipe_hash": recipe, **asdict(self.point)}

    def rows(self) -> dict[RequestKey, dict[str, Any]]:
        """Return the last attempt of each request, by role and request index."""
        return {(row["role"], row["request_index"]): row for row in self.journal.of_kind("row")}

    def requests(self) -> list[RequestKey]:
        """Return the requests that the point must have: the campaign's, then those that were added."""
        added = [(entry["role"], entry["request_index"]) for entry in self.journal.of_kind("added")]
        return list(dict.fromkeys([*self.campaign.requests(self.point), *added]))

    def add_requests(self, keys: Iterable[RequestKey]) -> None:
        """Note requests that the measured rows call for: from now on the point must have them."""
        for key in keys:
            self.journal.append("added", _labels(key))

    def was_done(self) -> bool:
        """Return whether the point's Parquets were in place once."""
        return any(record.kind == "done" for record in self.journal.records)

    def missing(self) -> list[RequestKey]:
        """Return the requests without a finished row, in order: never ended, failed, or doubtful and to be repeated."""
        allowed = self.campaign.config.measure.retry_doubtful
        finished = {
            key
            for key, row in self.rows().items()
            if row["status"] == Status.OK or (row["status"] == Status.DOUBTFUL and self.doubts(*key) > allowed)
        }
        return [key for key in self.requests() if key not in finished]

    def doubts(self, role: str, index: int) -> int:
        """Return how many attempts at a request ended as doubtful."""
        doubtful = (row for row in self.journal.of_kind("row") if row["status"] == Status.DOUBTFUL)
        return sum((row["role"], row["request_index"]) == (role, index) for row in doubtful)

    def begin(self, key: RequestKey) -> None:
        """Note that a request begins, and hold disk space back for its row."""
        self.journal.secure()
        self.journal.append("begin", _labels(key))

    def add_progress(self, key: RequestKey, sample: dict[str, Any]) -> None:
        """Note a sample of schemas.PROGRESS."""
        self.journal.append("progress", _labels(key) | sample)

    def finish(self, key: RequestKey, chunks: Sequence[Chunk], row: MeasurementRow, facts: dict[str, Any]) -> None:
        """Note when a request's tokens arrived, and its row with the facts of its server."""
        trace = [{"elapsed_s": c.elapsed_s, "tokens": c.tokens, "total_tokens": c.total} for c in chunks]
        self.journal.append("trace", _labels(key) | {"samples": trace})
        self.add_row(row, facts)

    def add_row(self, row: MeasurementRow, facts: dict[str, Any]) -> None:
        """Note a row."""
        self.journal.append("row", asdict(row) | facts)

    def unfinished(self, role: str, index: int) -> list[Attempt]:
        """Return a request's attempts since its last finished row, oldest first; each may have left a checkpoint."""
        attempts: list[Attempt] = []
        for record in self.journal.records:
            data = record.data
            if (data.get("role"), data.get("request_index")) != (role, index):
                continue
            if record.kind == "begin":
                attempts.append(Attempt())
            elif record.kind == "row" and data["status"] != Status.FAILED:
                attempts = []
            elif attempts and record.kind == "row":
                attempts[-1].failed = True
            elif attempts and record.kind == "progress":
                attempts[-1].samples.append(data)
        return attempts

    def assemble(self, names: Iterable[str] = tuple(OUTPUTS)) -> None:
        """Write the point's Parquets: the last attempt of each request, with its trace and progress."""
        metadata = self.campaign.labels | {"recipe_hash": self.labels["recipe_hash"]}
        for table in names:
            kind, schema = OUTPUTS[table]
            rows = [{name: row[name] for name in schema.names if name in row} for row in self.final(kind)]
            parquet.write_rows(output_path(self.campaign, self.point, table), schema, rows, metadata)

    def done(self) -> None:
        """Note that the Parquets are in place, with their hashes."""
        paths = {table: output_path(self.campaign, self.point, table) for table in OUTPUTS}
        self.journal.append("done", {"sha256": {table: file_sha256(path) for table, path in paths.items()}})

    def final(self, kind: str) -> list[dict[str, Any]]:
        """Return the rows of one table: those of each request's last attempt; every server start."""
        if kind == "row":
            requests = set(self.requests())
            return [_typed(row) for key, row in self.rows().items() if key in requests or key[0] == Role.WARMUP]
        if kind == "server":
            return [_typed(row) for row in self.journal.of_kind("server")]
        last: dict[RequestKey, list[dict[str, Any]]] = {}
        for record in self.journal.records:
            key = (record.data.get("role", ""), record.data.get("request_index", -1))
            if record.kind == "begin":
                last[key] = []
            elif record.kind == kind and key in last:
                last[key].extend(record.data.get("samples", [record.data]))
        labels = {"length": self.point.length, "pass_index": self.point.pass_index}
        return [_labels(key) | labels | row for key, rows in last.items() for row in rows]


def _samples_of(key: RequestKey, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a request's rows of traces or progress, without the columns that name it."""
    labels = ("role", "request_index", "length", "pass_index")
    mine = (row for row in rows if (row["role"], row["request_index"]) == key)
    return [{name: value for name, value in row.items() if name not in labels} for row in mine]


def _labels(key: RequestKey) -> dict[str, Any]:
    return {"role": key[0], "request_index": key[1]}


def _typed(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with `started_at` as a time again, which JSON keeps as text."""
    started_at = row.get("started_at")
    return row | {"started_at": datetime.fromisoformat(started_at)} if isinstance(started_at, str) else row


@contextmanager
def exclusive(campaign: Campaign, points: Iterable[Point]) -> Iterator[None]:
    """Hold this host's measuring lock (one server at a time, for all campaigns of this folder) and the points' locks.

    Points have their own: a cluster job outlives its Snakemake, and a new one may start on another node.
    """
    locks = {RESULTS / f".measuring-{os.uname().nodename}.lock": "another measurement is running on this host"}
    for point in points:
        locks[journal_path(campaign, point).with_suffix(".lock")] = f"{point.name} is already being measured"
    with ExitStack() as stack:
        for path, held in locks.items():
            stack.enter_context(exclusive_lock(path, held))
        yield
