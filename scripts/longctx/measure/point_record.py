"""A point's record: its journal (the truth), what is still missing, and the Parquets assembled from it."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from longctx.campaign.campaign import RESULTS, Campaign
from longctx.campaign.files import journal_path, output_path
from longctx.campaign.identity import changed_settings
from longctx.campaign.point import Point
from longctx.measure.checkpoints import Attempt
from longctx.storage import parquet, schemas
from longctx.storage.journal import Journal, Record
from longctx.storage.locks import exclusive_lock
from longctx.storage.provenance import file_sha256

OUTPUTS = {
    "measurements": ("row", schemas.MEASUREMENTS),
    "servers": ("server", schemas.SERVERS),
    "traces": ("trace", schemas.TRACES),
    "progress": ("progress", schemas.PROGRESS),
}


def is_done(records: Iterable[Record]) -> bool:
    """Whether the last word on the point is that its Parquets were in place."""
    states = [record.kind for record in records if record.kind in ("done", "reopened")]
    return bool(states) and states[-1] == "done"


def journal_rows(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Every attempt's row, oldest first."""
    return [record.data for record in records if record.kind == "row"]


@dataclass(slots=True)
class PointRecord:
    """One point's journal, opened for the current recipe and prompt."""

    campaign: Campaign
    point: Point
    journal: Journal

    @classmethod
    def open(cls, campaign: Campaign, point: Point, prompt_sha256: str | None) -> tuple["PointRecord", str | None]:
        """Open the journal, first setting one aside that belongs to another recipe or prompt.

        Returns the record and a sentence about what could not be kept and why, or None.
        """
        journal = Journal.open(journal_path(campaign, point), campaign.results / "journal" / ".reserve")
        identity = {**campaign.settings(point.mode), "prompt_sha256": prompt_sha256}
        said = None
        if strange := _strangeness(journal, identity, campaign.recipe_hash(point.mode)):
            said = f"{point.name}: measured again, since {strange} (what was there is kept in {journal.archive()})"
        elif journal.damaged:
            said = f"{point.name}: damaged lines of its journal are left out ({journal.damaged})"
        if journal.header is None:
            journal.append(
                "header",
                {"point": point.name, "settings": identity, "recipe_hash": campaign.recipe_hash(point.mode)},
            )
        elif is_done(journal.records):
            journal.append("reopened", {})
        return cls(campaign, point, journal), said

    def rows(self) -> dict[tuple[str, int], dict[str, Any]]:
        """The last attempt of each request, by role and request index."""
        return {(row["role"], row["request_index"]): row for row in journal_rows(self.journal.records)}

    def missing(self) -> list[tuple[str, int]]:
        """Requests without a finished row, in order: never ended, failed, or doubtful with a repetition left."""
        rows, allowed = self.rows(), self.campaign.raw["measure"]["retry_doubtful"]
        return [
            key
            for key in self.campaign.requests(self.point)
            if key not in rows
            or rows[key]["status"] == "failed"
            or (rows[key]["status"] == "doubtful" and self.doubts(*key) <= allowed)
        ]

    def begin(self, identity: Mapping[str, Any]) -> None:
        """Note that a request begins, with disk space held back for its row."""
        self.journal.secure()
        self.journal.append("begin", identity)

    def doubts(self, role: str, index: int) -> int:
        """How many attempts at a request ended as doubtful."""
        keys = ((row["role"], row["request_index"], row["status"]) for row in journal_rows(self.journal.records))
        return sum(key == (role, index, "doubtful") for key in keys)

    def unfinished(self, role: str, index: int) -> list[Attempt]:
        """The attempts since the request's last finished row, oldest first.

        Killed or failed, each of them may have left a checkpoint of what it had prefilled.
        """
        attempts: list[Attempt] = []
        for record in self.journal.records:
            data = record.data
            if (data.get("role"), data.get("request_index")) != (role, index):
                continue
            if record.kind == "begin":
                attempts.append(Attempt())
            elif record.kind == "row" and data["status"] != "failed":
                attempts = []
            elif attempts and record.kind == "row":
                attempts[-1].failed = True
            elif attempts and record.kind == "progress":
                attempts[-1].samples.append(data)
        return attempts

    def assemble(self, names: Iterable[str] = tuple(OUTPUTS)) -> None:
        """Write the point's Parquets: the last attempt of each request, with its trace and progress."""
        metadata = self.campaign.labels | {"recipe_hash": self.campaign.recipe_hash(self.point.mode)}
        for table in names:
            kind, schema = OUTPUTS[table]
            known = [{k: v for k, v in row.items() if k in schema.names} for row in self.final(kind)]
            parquet.write_rows(output_path(self.campaign, self.point, table), schema, known, metadata)

    def done(self) -> None:
        """Note that the Parquets are in place, and what is in them."""
        paths = {table: output_path(self.campaign, self.point, table) for table in OUTPUTS}
        self.journal.append("done", {"sha256": {table: file_sha256(path) for table, path in paths.items()}})

    def final(self, kind: str) -> list[dict[str, Any]]:
        """The rows of one table: those of each request's last attempt; every server start."""
        wanted = set(self.campaign.requests(self.point))
        if kind == "row":
            return [_typed(row) for key, row in self.rows().items() if key in wanted or key[0] == "warmup"]
        if kind == "server":
            return [_typed(row) for row in self.journal.of_kind("server")]
        last: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for record in self.journal.records:
            key = (record.data.get("role", ""), record.data.get("request_index", -1))
            if record.kind == "begin":
                last[key] = []
            elif record.kind == kind and key in last:
                last[key].extend(record.data.get("samples", [record.data]))
        return [
            {"role": role, "request_index": index, "length": self.point.length, "pass_index": self.point.pass_index}
            | row
            for (role, index), rows in last.items()
            for row in rows
        ]


def _typed(row: dict[str, Any]) -> dict[str, Any]:
    """JSON has no time type: give `started_at` its own back."""
    started_at = row.get("started_at")
    return row | {"started_at": datetime.fromisoformat(started_at)} if isinstance(started_at, str) else row


@contextmanager
def exclusive(campaign: Campaign, points: Iterable[Point]) -> Iterator[None]:
    """Hold this host's measuring lock (one server at a time, of all campaigns of this folder) and the points' own ones.

    The latter since a cluster job goes on when its Snakemake is killed, and a new one may start on another node.
    """
    with ExitStack() as stack:
        path = RESULTS / f".measuring-{os.uname().nodename}.lock"
        stack.enter_context(exclusive_lock(path, "another measurement is running on this host"))
        for point in points:
            path = journal_path(campaign, point).with_suffix(".lock")
            stack.enter_context(exclusive_lock(path, f"{point.name} is already being measured"))
        yield


def _strangeness(journal: Journal, identity: Mapping[str, Any], recipe_hash: str) -> str | None:
    """Say in what a journal differs from the recipe and prompt at hand, None where it can be continued."""
    if journal.header is not None:
        changed = list(changed_settings(journal.header["settings"], identity))
        return "; ".join(changed) or None
    known = {
        (row["recipe_hash"], row["prompt_sha256"]) for row in journal_rows(journal.records) if "prompt_sha256" in row
    }
    if known <= {(recipe_hash, identity["prompt_sha256"])}:
        return None
    return "the head of its journal is damaged and its rows are of another recipe or prompt"
