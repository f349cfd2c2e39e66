"""A point's record: its journal (the truth), what is still missing, and the Parquets assembled from it."""

import fcntl
import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from longctx import tables
from longctx.checkpoints import Attempt
from longctx.config import RESULTS, Campaign, Point, changed_settings
from longctx.errors import LongctxError
from longctx.journal import Journal, Record, last, read, set_aside

# A measurement whose Snakemake was killed notices that and ends its server first.
ORPHAN_GRACE_S = 60.0
OUTPUTS = {
    "measurements": ("row", tables.MEASUREMENTS),
    "servers": ("server", tables.SERVERS),
    "traces": ("trace", tables.TRACES),
    "progress": ("progress", tables.PROGRESS),
}


def journal_path(campaign: Campaign, point: Point) -> Path:
    return campaign.results / "journal" / f"{point.name}.jsonl"


def output_path(campaign: Campaign, point: Point, table: str) -> Path:
    return campaign.results / table / f"{point.name}.parquet"


def is_done(records: Iterable[Record]) -> bool:
    """Whether the last word on the point is that its Parquets were in place."""
    states = [record.kind for record in records if record.kind in ("done", "reopened")]
    return bool(states) and states[-1] == "done"


def rows_of(records: Iterable[Record]) -> list[dict[str, Any]]:
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
        return {(row["role"], row["request_index"]): row for row in rows_of(self.journal.records)}

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
        keys = ((row["role"], row["request_index"], row["status"]) for row in rows_of(self.journal.records))
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
            tables.write_rows(output_path(self.campaign, self.point, table), schema, known, metadata)

    def done(self) -> None:
        """Note that the Parquets are in place, and what is in them."""
        paths = {table: output_path(self.campaign, self.point, table) for table in OUTPUTS}
        self.journal.append("done", {"sha256": {table: _sha256(path) for table, path in paths.items()}})

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
def only_one(campaign: Campaign, points: Iterable[Point]) -> Iterator[None]:
    """Hold this host's measuring lock (one server at a time, of all campaigns of this folder) and the points' own ones.

    The latter since a cluster job goes on when its Snakemake is killed, and a new one may start on another node.
    """
    with ExitStack() as stack:
        path = RESULTS / f".measuring-{os.uname().nodename}.lock"
        stack.enter_context(_locked(path, "another measurement is running on this host"))
        for point in points:
            path = journal_path(campaign, point).with_suffix(".lock")
            stack.enter_context(_locked(path, f"{point.name} is already being measured"))
        yield


@contextmanager
def _locked(path: Path, what: str) -> Iterator[None]:
    """Hold a lock file, waiting for an orphan to end; LongctxError says what is going on and whose it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+") as file:
        deadline = time.monotonic() + ORPHAN_GRACE_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    file.seek(0)
                    raise LongctxError(f"{what} ({file.read()}); wait for it or end it") from None
                time.sleep(0.2)
            except OSError:
                break  # a disk without locks can't guard anything
        job = os.environ.get("SLURM_JOB_ID")
        holder = f"process {os.getpid()} on {os.uname().nodename}" + (f", SLURM job {job}" if job else "")
        with suppress(OSError):  # a full disk
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), holder.encode())
        yield


def set_aside_deleted(campaign: Campaign) -> list[str]:
    """Set aside the journals of points whose measurement was deleted by hand; return a sentence for each.

    By hand: the point is done and its measurement gone while its server's Parquet is there. (Snakemake deletes a job's
    outputs in their order, measurements last, so what it or a kill leaves never looks like that.)
    """
    said = []
    for point in campaign.points():
        if (
            output_path(campaign, point, "measurements").exists()
            or not output_path(campaign, point, "servers").exists()
        ):
            continue
        path = journal_path(campaign, point)
        if _done(path) is not None:
            said.append(
                f"{point.name}: its measurement was deleted, so it is measured again (what was there is kept in"
                f" {set_aside(path)})"
            )
    return said


def mend(campaign: Campaign) -> list[str]:
    """Write damaged Parquets of done points anew from their journals; return a sentence for each point."""
    said = []
    for point in campaign.points():
        path = journal_path(campaign, point)
        digests = (_done(path) or {}).get("sha256", {})
        files = {table: output_path(campaign, point, table) for table in digests}
        damaged = [table for table, file in files.items() if file.exists() and _sha256(file) != digests[table]]
        if damaged:
            record = PointRecord(campaign, point, Journal(path, read(path)[0]))
            record.assemble(damaged)
            record.done()
            said.append(f"{point.name}: damaged Parquets ({', '.join(damaged)}) were written anew from the journal")
    return said


def _done(path: Path) -> dict[str, Any] | None:
    """Return what the journal says of a done point, None where the point is not done."""
    record = last(path)
    return record.data if record is not None and record.kind == "done" else None


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _strangeness(journal: Journal, identity: Mapping[str, Any], recipe_hash: str) -> str | None:
    """Say in what a journal differs from the recipe and prompt at hand, None where it can be continued."""
    if journal.header is not None:
        changed = list(changed_settings(journal.header["settings"], identity))
        return "; ".join(changed) or None
    known = {(row["recipe_hash"], row["prompt_sha256"]) for row in rows_of(journal.records) if "prompt_sha256" in row}
    if known <= {(recipe_hash, identity["prompt_sha256"])}:
        return None
    return "the head of its journal is damaged and its rows are of another recipe or prompt"
