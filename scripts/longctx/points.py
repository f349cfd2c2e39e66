"""A point's record: its journal (the truth), what is still missing, and the Parquets assembled from it."""

import fcntl
import os
import time
from collections.abc import Container, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from longctx import tables
from longctx.config import Campaign, Point, changed_settings
from longctx.errors import LongctxError
from longctx.journal import Journal, Record, read

# A measurement whose Snakemake was killed notices that and ends its server first.
ORPHAN_GRACE_S = 60.0
REMEASURE_VARIABLE = "LONGCTX_REMEASURE"
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


@dataclass(slots=True)
class PointRecord:
    """One point's journal, opened for the current recipe and prompt."""

    campaign: Campaign
    point: Point
    journal: Journal

    @classmethod
    def open(cls, campaign: Campaign, point: Point, prompt_sha256: str | None) -> tuple["PointRecord", str | None]:
        """Open the journal, first setting one aside that belongs to another recipe or prompt or is to be redone.

        Returns the record and a sentence about what was set aside and why, or None.
        """
        journal = Journal.open(journal_path(campaign, point))
        identity = {**campaign.settings(point.mode), "prompt_sha256": prompt_sha256}
        said = None
        if journal.header is not None:
            changed = list(changed_settings(journal.header["settings"], identity))
            if changed:
                said = f"{point.name}: measured again, since {'; '.join(changed)}"
            elif point.name in os.environ.get(REMEASURE_VARIABLE, "").split() and is_done(journal.records):
                # 'done' is in the old journal only: a SLURM job that is run again must not set its own rows aside.
                said = f"{point.name}: measured again, since its Parquet was deleted"
            if said:
                said += f" (what was there is kept in {journal.archive()})"
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
        return {(row["role"], row["request_index"]): row for row in self.journal.of_kind("row")}

    def missing(self) -> list[tuple[str, int]]:
        """Requests without a finished (ok or doubtful) row, in order."""
        rows = self.rows()
        wanted = self.campaign.requests(self.point)
        return [key for key in wanted if key not in rows or rows[key]["status"] == "failed"]

    def begun_attempt(self, role: str, index: int) -> list[dict[str, Any]]:
        """Progress samples of the last attempt at a request that was begun and never ended, oldest first."""
        samples: list[dict[str, Any]] = []
        for record in self.journal.records:
            data = record.data
            if (data.get("role"), data.get("request_index")) != (role, index):
                continue
            if record.kind in ("begin", "row"):
                samples = []
            elif record.kind == "progress":
                samples.append(data)
        return samples

    def assemble(self) -> None:
        """Write the point's Parquets: the last attempt of each request, with its trace and progress."""
        metadata = {"campaign": self.campaign.name, "recipe_hash": self.campaign.recipe_hash(self.point.mode)}
        for table, (kind, schema) in OUTPUTS.items():
            rows = self._final(kind)
            known = [_typed({k: v for k, v in row.items() if k in schema.names}) for row in rows]
            tables.write_rows(output_path(self.campaign, self.point, table), schema, known, metadata)

    def _final(self, kind: str) -> list[dict[str, Any]]:
        wanted = set(self.campaign.requests(self.point))
        if kind == "row":
            return [row for key, row in self.rows().items() if key in wanted or key[0] == "warmup"]
        if kind == "server":
            return list(self.journal.of_kind("server"))
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
    if isinstance(row.get("started_at"), str):
        row["started_at"] = datetime.fromisoformat(row["started_at"])
    return row


@contextmanager
def only_one(campaign: Campaign, points: Iterable[Point]) -> Iterator[None]:
    """Hold this host's measuring lock (one server at a time, whatever started it) and the points' own ones.

    The latter since a cluster job goes on when its Snakemake is killed, and a new one may start on another node.
    """
    path = campaign.results / "journal" / f".{os.uname().nodename}.lock"
    with ExitStack() as stack:
        what = f"{campaign.results}: another measurement of this campaign is running on this host"
        stack.enter_context(_locked(path, what))
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
        file.truncate(0)
        file.write(f"process {os.getpid()} on {os.uname().nodename}" + (f", SLURM job {job}" if job else ""))
        file.flush()
        yield


def deleted_by_hand(campaign: Campaign, incomplete: Container[str]) -> list[Point]:
    """Points whose journal says 'done' while their measurement is gone, though no killed job explains it.

    `incomplete`: paths that Snakemake marked as being made when it was killed.
    """
    gone = []
    for point in campaign.points():
        path = output_path(campaign, point, "measurements")
        if not path.exists() and str(path) not in incomplete and is_done(read(journal_path(campaign, point))[0]):
            gone.append(point)
    return gone
