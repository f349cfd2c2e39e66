"""The row of one request, built once: from its observation, or from the reason for not sending it."""

import socket
from datetime import UTC, datetime
from typing import Any

from longctx.campaign.mode import RequestKey, campaign_facet
from longctx.measure.client.request import SAMPLING
from longctx.measure.client.stream_rates import coalesced
from longctx.measure.point_record import PointRecord
from longctx.measure.verdict import Observation, measured_values, reach_verdict
from longctx.serve.server import Server
from longctx.storage.rows import MeasurementRow, ModeName, Role, Status


def measured_row(record: PointRecord, key: RequestKey, observation: Observation, server: Server) -> MeasurementRow:
    """Return the row of a request that was sent to `server`, with its verdict."""
    verdict, answer = reach_verdict(observation), observation.answer
    return MeasurementRow(
        **_identity(record, key),
        status=verdict.status,
        reason=next(iter(verdict.reasons), None),
        reasons=verdict.reasons,
        detail=verdict.detail,
        prompt_sha256=(record.journal.header or {}).get("settings", {}).get("prompt_sha256"),
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        max_new_tokens=observation.new_tokens,
        cached_tokens=observation.cached_tokens,
        **SAMPLING,
        e2e_s=None if verdict.status == Status.FAILED else answer.e2e_s,
        chunks=len(answer.chunks),
        coalesced=coalesced(answer.chunks) if answer.chunks else None,
        starved_s=answer.starved_s,
        jit_events=len(observation.jit_lines),
        external_hit_tokens=observation.window.external_hit_tokens,
        started_at=answer.started_at,
        server_counters=observation.window.record,
        log_lines=observation.log_lines,
        **measured_values(observation, verdict),
        **observation.energy,
        **server.facts,
        **server.host_facts,
    )


def refused_row(record: PointRecord, key: RequestKey, reason: str, detail: str) -> MeasurementRow:
    """Return the row of a request that was never sent, with the reason."""
    return MeasurementRow(
        **_identity(record, key),
        status=Status.FAILED,
        reason=reason,
        reasons=(reason,),
        detail=detail,
        max_new_tokens=record.campaign.config.max_new_tokens,
        started_at=datetime.now(UTC),
        host=socket.gethostname(),
    )


def _identity(record: PointRecord, key: RequestKey) -> dict[str, Any]:
    """Return the columns that say which request of which campaign it is."""
    campaign, point = record.campaign, record.point
    return {
        "campaign": campaign.name,
        "recipe_hash": campaign.recipe_hash(point.mode),
        "mode": ModeName(point.mode),
        "role": Role(key[0]),
        "request_index": key[1],
        "length": point.length,
        "pass_index": point.pass_index,
        "synthetic_weights": campaign.synthetic_weights,
        "filled_kv": campaign_facet(point.mode).fills_kv,
    }
