"""A campaign's results as figures and reports read them; the one place that says which numbers are synthetic."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from longctx.campaign.campaign import Campaign
from longctx.campaign.mode import MODES
from longctx.errors import DataError
from longctx.redaction import printable
from longctx.results.cost import Price
from longctx.storage import parquet, schemas

Row = Mapping[str, Any]

RANDOM_WEIGHTS = "synthetic: random weights"
FILLED_KV = "KV cache filled, not prefilled"
# Each label as a sentence under a table.
LABEL_SENTENCES = {
    RANDOM_WEIGHTS: "Synthetic: random weights, so speeds are real and outputs mean nothing.",
    FILLED_KV: "The KV cache was filled, not prefilled: these rows have no TTFT and no prefill.",
}
# The key of rows.parquet's metadata with a JSON list of sentences, one for each file that could not be read.
DAMAGED = "damaged"
# Those with a `source`, and all that must be there; then those that may be missing.
SOURCED = {"rows": schemas.MEASUREMENTS, "servers": schemas.SERVERS}
TABLES = SOURCED | {"summary": schemas.SUMMARY, "fits": schemas.FITS}
OPTIONAL_TABLES = {"plan": schemas.PLAN, "estimates": schemas.ESTIMATES, "chunks": schemas.CHUNKS}


@dataclass(frozen=True, slots=True)
class CampaignResults:
    """Rows of longctx.storage.schemas, and what else figures and reports need.

    rows: MEASUREMENTS, each with `source` (its file). servers: SERVERS, alike. estimates: of whole prompts that were
    not prefilled, never to be shown as measured. chunks: of real prefills. damaged: sentences about files that
    could not be read. recipe: the configuration that was run. subtitle: the line under each title.
    """

    name: str
    rows: Sequence[Row] = ()
    servers: Sequence[Row] = ()
    summary: Sequence[Row] = ()
    fits: Sequence[Row] = ()
    estimates: Sequence[Row] = ()
    chunks: Sequence[Row] = ()
    plan: Sequence[Row] = ()
    validation: Sequence[Row] = ()
    damaged: Sequence[str] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)
    price: Price | None = None
    subtitle: str = ""

    @classmethod
    def read(cls, campaign: Campaign, *, validation: Sequence[Path] = (), **tables: Path) -> "CampaignResults":
        """Read the `tables` of a campaign, named as in TABLES and OPTIONAL_TABLES, and its validations.

        An optional table or a validation that is missing is left out, a damaged one is named. DataError where another
        table cannot be read.
        """
        read: dict[str, Any] = {name: parquet.read_rows(tables[name], schema) for name, schema in TABLES.items()}
        damaged = damaged_files(tables["rows"])
        for name, schema in OPTIONAL_TABLES.items():
            read[name] = read_tolerantly([tables[name]] if name in tables else [], schema, damaged)
        read["validation"] = read_tolerantly(validation, schemas.VALIDATION, damaged)
        read["price"], read["subtitle"] = Price.from_campaign(campaign), subtitle(read["rows"])
        return cls(campaign.name, damaged=tuple(dict.fromkeys(damaged)), recipe=campaign.config.plain(), **read)

    def of_mode(self, mode: str) -> list[Row]:
        """Return the summary rows of a mode, shortest prompts first."""
        return sorted((row for row in self.summary if row["mode"] == mode), key=lambda row: row["length"])

    @property
    def modes(self) -> list[str]:
        """The modes with summary rows, in the order of MODES."""
        return [str(mode) for mode in MODES if self.of_mode(mode)]

    @property
    def gpu_count(self) -> int | None:
        """The number of GPUs, 0 on a CPU, None where no row knows it."""
        return next((row["gpu_count"] for row in self.summary if row.get("gpu_count") is not None), None)

    def synthetic_labels(self, *modes: str) -> list[str]:
        """Return what is not real about the summary of these modes, all by default: RANDOM_WEIGHTS, FILLED_KV."""
        rows = [row for row in self.summary if not modes or row["mode"] in modes]
        columns = {RANDOM_WEIGHTS: "synthetic_weights", FILLED_KV: "filled_kv"}
        return [label for label, column in columns.items() if any(row.get(column) for row in rows)]


def damaged_files(rows: Path) -> list[str]:
    """Return the sentences about damaged files that the metadata of rows.parquet keeps."""
    metadata = pq.read_schema(rows).metadata or {}
    return [str(sentence) for sentence in json.loads(metadata.get(DAMAGED.encode(), b"[]"))]


def read_tolerantly(paths: Iterable[Path], schema: Any, damaged: list[str]) -> list[dict[str, Any]]:
    """Return the rows of the files that are there; a file that cannot be read adds its sentence to `damaged`."""
    rows = []
    for path in paths:
        try:
            rows += parquet.read_rows(path, schema) if path.is_file() else []
        except DataError as error:
            damaged.append(str(error))
    return rows


def subtitle(rows: Iterable[Row]) -> str:
    """Return 'model · 8 × GPU · vLLM 0.25.1 · fp8_e4m3 KV' from the first row that knows each of them."""
    known: dict[str, Any] = {}
    for row in rows:
        known = {key: value for key, value in row.items() if value is not None} | known
    system = f"{known['gpu_count'] or 1} × {known['gpu']}" if known.get("gpu_count") else known.get("cpu")
    version, kv = known.get("vllm_version"), known.get("kv_cache_dtype")
    parts = [known.get("model"), system, version and f"vLLM {version}", kv and f"{kv} KV"]
    return " · ".join(printable(str(part)) for part in parts if part)
