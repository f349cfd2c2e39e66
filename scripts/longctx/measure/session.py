"""One request: sent, watched, judged and journalled as one row."""

import contextlib
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from longctx.campaign.campaign import Campaign
from longctx.measure import checkpoints, verdict
from longctx.measure.client import request, stream_rates
from longctx.measure.point_record import PointRecord
from longctx.progress import eta, sampler
from longctx.progress.display import Display
from longctx.progress.sampler import Sampler
from longctx.progress.watchdog import Watchdog
from longctx.redaction import redact
from longctx.serve import metrics
from longctx.serve.facts import jit_lines
from longctx.serve.machine.power import EnergyMeter, energy_meter
from longctx.serve.server import Server
from longctx.storage.journal import JournalError
from longctx.storage.token_file import Ids

# Log lines kept with a row; the whole log stays in its file.
LOG_LINES = 20
# Progress goes to the journal when tokens moved and, in a prefill of hours, not every second.
JOURNALED_SHARE = 1 / 500
SCRAPE_TIMEOUT_S = 5.0
BLIND_FACTOR = 4


@dataclass(slots=True)
class Session:
    """A running server and what all its requests share.

    prior: the prefill cost that shorter rungs showed. planned_ttft_s: what the plan expects at most of this rung.
    """

    campaign: Campaign
    mode: str
    server: Server
    live: Display
    steady: bool = True
    prior: eta.Cost | None = None
    planned_ttft_s: float | None = None
    stalled: bool = False

    def useless(self) -> bool:
        """Whether another request is pointless: the server died, or it stalled and a fresh one can be started."""
        return not self.server.alive() or (self.stalled and self.server.process is not None)

    def send(
        self,
        record: PointRecord,
        role: str,
        index: int,
        prompt: Ids,
        new_tokens: int,
        extra_body: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Send one request, write its trace and row to the point's journal, and return the row."""
        identity = {"role": role, "request_index": index}
        earlier = record.unfinished(role, index) if self.campaign.raw["checkpoint"] else []
        reached = max((attempt.reached for attempt in earlier), default=None)
        record.begin(identity)
        seen, facts = self._observe(record, identity, prompt, new_tokens, reached, extra_body)
        judged = verdict.reach_verdict(seen)
        if not self.steady and role != "warmup" and judged.status == "ok":
            judged = verdict.Verdict("ok", (*judged.reasons, "not_steady"), judged.detail)
        row = self._row(record, seen, judged, new_tokens) | identity | facts
        if "resumed" in judged.reasons:
            compiling_s = len(seen.jit_lines) * verdict.JIT_EVENT_S
            row |= checkpoints.stitch(earlier, row["cached_tokens"], row["resumed_prefill_s"], compiling_s)
        record.journal.append("trace", identity | {"samples": _trace(seen.answer)})
        record.journal.append("row", row)
        return row

    def _observe(
        self,
        record: PointRecord,
        identity: dict[str, Any],
        prompt: Ids,
        new_tokens: int,
        checkpoint_tokens: int | None,
        extra_body: Mapping[str, Any] | None,
    ) -> tuple[verdict.Observation, dict[str, Any]]:
        """Send the request between two readings of every instrument."""
        server = self.server
        before, log_start = metrics.scrape(server.url, api_key=server.api_key), server.log_offset()
        # Only the server's own GPUs: not idle ones beside them, nor those of a server that somebody else started.
        power = energy_meter(server.gpu_numbers)
        with power or contextlib.nullcontext():
            shown = _Journaled(self.live, record, identity)
            answer = self._stream(prompt, new_tokens, before, shown, extra_body, power)
        after = None
        if answer.status == "ok":
            made = answer.completion_tokens
            after = metrics.settle(server.url, before, completion_tokens=made, api_key=server.api_key)
        window = metrics.attribute_to_request(metrics.difference(before, after), answer.completion_tokens)
        lines = server.log_between(log_start, server.log_offset())
        if answer.reason == "server_died":
            answer = _with_detail(answer, server.death_reason())
        elif answer.reason == "timeout":
            self.stalled = True
            last = f"; its log ends with: {lines[-1]}" if lines else ""
            answer = _with_detail(answer, f"{answer.detail}{last}")
        seen = verdict.Observation(
            role=str(identity["role"]),
            expected_tokens=len(prompt),
            answer=answer,
            window=window,
            jit_lines=jit_lines(lines),
            caching=server.facts.get("prefix_caching"),
            checkpoint_tokens=checkpoint_tokens,
            clock_tolerance=self.campaign.raw["measure"]["clock_tolerance"],
            broken=tuple(e["setting"] for e in server.contract if e["ok"] is False),
            untold=() if server.process else tuple(e["setting"] for e in server.contract if e["ok"] is None),
        )
        facts = {
            "server_counters": window.record,
            "external_hit_tokens": window.external_hit_tokens,
            "log_lines": [redact(line) for line in lines[-LOG_LINES:]],
            **(power.energy() if power else {}),
        }
        return seen, facts

    def _stream(
        self,
        prompt: Ids,
        new_tokens: int,
        before: metrics.Snapshot | None,
        on_sample: "_Journaled",
        extra_body: Mapping[str, Any] | None,
        power: EnergyMeter | None,
    ) -> request.Answer:
        """Send the request under the eyes of the progress sampler and the stall watchdog."""
        server = self.server
        watchdog = Watchdog(self.campaign.raw["measure"]["stall_s"], blind_limit_s=self._blind_limit_s())
        sampler = Sampler(
            lambda: metrics.scrape(server.url, api_key=server.api_key, timeout_s=SCRAPE_TIMEOUT_S),
            tokens_total=len(prompt),
            capacity_tokens=server.capacity_tokens(),
            before=before,
            prior=self.prior,
            watchdog=watchdog,
            on_sample=on_sample,
        )

        def first_token(elapsed_s: float) -> None:
            sampler.token_came(elapsed_s)
            if power:
                power.first_token()

        with sampler:
            return request.stream(
                server.url,
                server.model,
                prompt,
                max_new_tokens=new_tokens,
                api_key=server.api_key,
                alive=server.alive,
                stalled=watchdog.stalled,
                on_token=first_token,
                extra_body=extra_body,
            )

    def _blind_limit_s(self) -> float:
        """How long a server without metrics may stay silent: nothing but a token shows that it still works."""
        measure = self.campaign.raw["measure"]
        limit_s = float(measure["blind_stall_s"] or BLIND_FACTOR * measure["stall_s"])
        return max(limit_s, BLIND_FACTOR * (self.planned_ttft_s or 0.0))

    def _row(
        self, record: PointRecord, seen: verdict.Observation, judged: verdict.Verdict, new_tokens: int
    ) -> dict[str, Any]:
        answer, point = seen.answer, record.point
        header = record.journal.header or {}
        return {
            "campaign": self.campaign.name,
            "recipe_hash": self.campaign.recipe_hash(self.mode),
            "mode": self.mode,
            "length": point.length,
            "pass_index": point.pass_index,
            "status": judged.status,
            "reason": judged.reasons[0] if judged.reasons else None,
            "reasons": list(judged.reasons),
            "detail": judged.detail,
            "prompt_sha256": header.get("settings", {}).get("prompt_sha256"),
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.completion_tokens,
            "max_new_tokens": new_tokens,
            "cached_tokens": verdict.cached_tokens(seen),
            "temperature": 0.0,
            "ignore_eos": True,
            "e2e_s": answer.e2e_s if judged.status != "failed" else None,
            "chunks": len(answer.chunks),
            "coalesced": stream_rates.coalesced(answer.chunks) if answer.chunks else None,
            "starved_s": answer.starved_s,
            "jit_events": len(seen.jit_lines),
            "synthetic_weights": self.campaign.synthetic_weights,
            "filled_kv": self.mode == "decode_only",
            "started_at": answer.started_at,
            **verdict.measured_values(seen, judged),
            **self.server.facts,
            **self.server.host_facts,
        }


@dataclass(slots=True)
class _Journaled:
    """Shows each look at a prefill, and journals those at which it had moved."""

    live: Display
    record: PointRecord
    identity: dict[str, Any]
    last: sampler.PrefillProgress | None = None

    def __call__(self, now: sampler.PrefillProgress) -> None:
        self.live.sample(now)
        if self.last is not None:
            moved = now.tokens_done != self.last.tokens_done
            if not moved or now.elapsed_s - self.last.elapsed_s < now.elapsed_s * JOURNALED_SHARE:
                return
        self.last = now
        # On a full disk the prefill goes on: there is space held back for its row.
        with contextlib.suppress(JournalError):
            self.record.journal.append("progress", self.identity | asdict(now))


def refused_row(
    campaign: Campaign, record: PointRecord, role: str, index: int, reason: str, detail: str
) -> dict[str, Any]:
    """The row of a request that was never sent, with the reason why."""
    point = record.point
    return {
        "campaign": campaign.name,
        "recipe_hash": campaign.recipe_hash(point.mode),
        "mode": point.mode,
        "role": role,
        "request_index": index,
        "length": point.length,
        "pass_index": point.pass_index,
        "status": "failed",
        "reason": reason,
        "reasons": [reason],
        "detail": detail,
        "max_new_tokens": campaign.raw["max_new_tokens"],
        "synthetic_weights": campaign.synthetic_weights,
        "filled_kv": point.mode == "decode_only",
        "started_at": datetime.now(UTC),
        "host": socket.gethostname(),
        "server_counters": None,
    }


def _trace(answer: request.Answer) -> list[dict[str, Any]]:
    return [{"elapsed_s": c.elapsed_s, "tokens": c.tokens, "total_tokens": c.total} for c in answer.chunks]


def _with_detail(answer: request.Answer, detail: str) -> request.Answer:
    return replace(answer, detail=detail or answer.detail)
