"""The row of one request, built once: from its observation, or from the reason for not sending it."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from longctx.campaign.mode import RequestKey, campaign_facet
from longctx.measure.client.request import SAMPLING
from longctx.measure.client.ttft_itl import coalesced
from longctx.measure.point_record import PointRecord
from longctx.measure.refusals import Refusal
from longctx.measure.row.verdict import Observation, Verdict, measured_values, reach_verdict
from longctx.redaction import redact
from longctx.storage.rows import MeasurementRow, ModeName, Role, Status

ANSWER_COLUMNS = ("prompt_tokens", "completion_tokens", "starved_s", "started_at")


def measured_row(record: PointRecord, key: RequestKey, observation: Observation) -> MeasurementRow:
    """Return the row of a request that was sent, with its verdict."""
    verdict, answer = reach_verdict(observation), observation.answer
    identity = _identity(record, key, verdict)
    return MeasurementRow(
        **identity | {"filled_kv": identity["filled_kv"] or bool(observation.claimed_tokens)},
        prompt_sha256=(record.journal.header or {}).get("settings", {}).get("prompt_sha256"),
        prompt_salt=record.prompt_salt,
        max_new_tokens=observation.new_tokens,
        cached_tokens=observation.cached_tokens,
        claimed_tokens=observation.claimed_tokens,
        e2e_s=None if verdict.status == Status.FAILED else answer.e2e_s,
        chunks=len(answer.chunks),
        coalesced=coalesced(answer.chunks) if answer.chunks else None,
        jit_events=len(observation.jit_lines),
        prefill_chunks=json.dumps(observation.iterations) if observation.iterations else None,
        external_hit_tokens=observation.window.external_hit_tokens,
        server_counters=observation.window.record,
        log_lines=observation.log_lines,
        **{name: getattr(answer, name) for name in ANSWER_COLUMNS},
        **(SAMPLING | measured_values(observation, verdict) | observation.machine),
    )


def refused_row(record: PointRecord, key: RequestKey, refusal: Refusal) -> MeasurementRow:
    """Return the row of a request that was never sent, with the reason."""
    identity = _identity(record, key, Verdict(Status.FAILED, (refusal.reason,), redact(refusal.detail, longest=4000)))
    asked = record.campaign.config.max_new_tokens
    return MeasurementRow(**identity, max_new_tokens=asked, started_at=datetime.now(UTC))


def _identity(record: PointRecord, key: RequestKey, verdict: Verdict) -> dict[str, Any]:
    """Return the columns that say which request of which campaign it is, and what it may claim."""
    mode, reason = ModeName(record.point.mode), next(iter(verdict.reasons), None)
    labels = record.labels | {"mode": mode, "role": Role(key[0]), "request_index": key[1]}
    synthetic = {"synthetic_weights": record.campaign.synthetic_weights, "filled_kv": campaign_facet(mode).fills_kv}
    return labels | synthetic | {"reason": reason} | asdict(verdict)
