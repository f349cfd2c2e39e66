"""Requests to one running server: each is sent, watched, and journalled as one row."""

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from longctx.campaign.campaign import Campaign
from longctx.campaign.mode import RequestKey
from longctx.measure.client import request
from longctx.measure.mode import MeasureFacet
from longctx.measure.point_record import PointRecord
from longctx.measure.row import verdict
from longctx.measure.row.request_row import measured_row
from longctx.progress import eta
from longctx.progress.display import Display
from longctx.progress.sampler import PrefillProgress, Sampler
from longctx.progress.watchdog import Watchdog
from longctx.redaction import redact
from longctx.serve import metrics
from longctx.serve.iteration_log import prefill_iterations
from longctx.serve.machine.clocks import ClockSampler
from longctx.serve.machine.power import EnergyMeter, EnergyMeters
from longctx.serve.root_cause import lines_to_keep
from longctx.serve.server import Server
from longctx.serve.server_facts import jit_lines
from longctx.storage.journal import JournalError
from longctx.storage.rows import MeasurementRow
from longctx.storage.token_file import Ids

# Log lines kept with a row; the whole log stays in its file.
LOG_LINES = 20
# Progress goes to the journal when tokens moved and, in a prefill of hours, not every second.
JOURNALED_SHARE = 1 / 500
SCRAPE_TIMEOUT_S = 5.0
BLIND_FACTOR = 4


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request to send. extra_body: fields beside those of every request.

    claimed_tokens: what the server's KV connector is asked to claim of the prompt; None where it is asked nothing.
    """

    key: RequestKey
    ids: Ids
    new_tokens: int
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    claimed_tokens: int | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of its body beside those of every request."""
        claim = {"kv_transfer_params": {"claimed_tokens": self.claimed_tokens}} if self.claimed_tokens else {}
        return {**self.extra_body, **claim}


@dataclass(slots=True)
class Session:
    """A running server and the state that its requests share.

    steady: whether the warm-up ended in equal times. prior: the prefill cost that shorter lengths showed.
    planned_ttft_s: the longest TTFT that the plan expects at this length. stalled: whether a request timed out.
    meters: of the server's energy, made with the first request.
    """

    campaign: Campaign
    facet: MeasureFacet
    server: Server
    display: Display
    steady: bool = True
    prior: eta.Cost | None = None
    planned_ttft_s: float | None = None
    stalled: bool = False
    meters: EnergyMeters | None = None

    def is_useless(self) -> bool:
        """Return whether another request is pointless: the server died, or it stalled and a new one can be started."""
        return not self.server.alive() or (self.stalled and self.server.process is not None)

    def send(self, record: PointRecord, outgoing: Outgoing) -> MeasurementRow:
        """Send one request, write its trace and row to the point's journal, and return the row."""
        earlier = record.unfinished(*outgoing.key) if self.campaign.config.checkpoint else []
        record.begin(outgoing.key)
        server = self.server
        before, log_start = metrics.scrape(server.url, api_key=server.api_key), server.log_offset()
        # Only the server's own GPUs: not idle ones beside them, nor those of a server that somebody else started.
        self.meters = self.meters or EnergyMeters(server.gpu_numbers)
        power, clocks = self.meters.meter(), ClockSampler(server.gpu_numbers)
        with power or contextlib.nullcontext(), clocks:
            answer = self._stream(record, outgoing, before, power)
        answer = self._explain_death(answer)
        made, after = answer.completion_tokens, None
        if verdict.find_failure(answer, len(outgoing.ids), outgoing.new_tokens) is None:
            after = metrics.settle(server.url, before, completion_tokens=made, api_key=server.api_key)
        lines = server.log_between(log_start, server.log_offset())
        observation = verdict.Observation(
            cache=self.facet.cache_expectation(outgoing.key[0]),
            prompt_tokens=len(outgoing.ids),
            new_tokens=outgoing.new_tokens,
            claimed_tokens=outgoing.claimed_tokens,
            answer=self._explain_stall(answer, lines),
            window=metrics.attribute_to_request(metrics.difference(before, after), made),
            jit_lines=jit_lines(lines),
            iterations=tuple(prefill_iterations(lines)),
            caching=server.facts.get("prefix_caching"),
            steady=self.steady,
            earlier=tuple(earlier),
            clock_tolerance=self.campaign.config.measure.clock_tolerance,
            violated=tuple(entry["setting"] for entry in server.contract if entry["ok"] is False),
            unverified=() if server.process else tuple(e["setting"] for e in server.contract if e["ok"] is None),
            log_lines=tuple(redact(line) for line in lines_to_keep(lines, LOG_LINES)),
            machine=clocks.columns() | (power.energy() if power else {}),
        )
        row = measured_row(record, outgoing.key, observation)
        record.finish(outgoing.key, answer.chunks, row, server.facts | server.host_facts)
        return row

    def _explain_death(self, answer: request.Answer) -> request.Answer:
        """Add why the server's process ended, once the last of its log is there."""
        if answer.reason != "server_died":
            return answer
        return replace(answer, detail=redact(self.server.death_reason()) or answer.detail)

    def _explain_stall(self, answer: request.Answer, log_lines: list[str]) -> request.Answer:
        """Note a stall, and add what the log said last."""
        if answer.reason != "timeout":
            return answer
        self.stalled = True
        last = f"; its log ends with: {redact(log_lines[-1])}" if log_lines else ""
        return replace(answer, detail=f"{answer.detail}{last}")

    def _stream(
        self, record: PointRecord, outgoing: Outgoing, before: metrics.Snapshot | None, power: EnergyMeter | None
    ) -> request.Answer:
        server = self.server
        watchdog = Watchdog(self.campaign.config.measure.stall_s, blind_limit_s=self._blind_limit_s())
        sampler = Sampler(
            lambda: metrics.scrape(server.url, api_key=server.api_key, timeout_s=SCRAPE_TIMEOUT_S),
            tokens_total=len(outgoing.ids),
            capacity_tokens=server.capacity_tokens(),
            before=before,
            prior=self.prior,
            watchdog=watchdog,
            on_sample=_ProgressJournal(self.display, record, outgoing.key),
        )

        def first_token(elapsed_s: float) -> None:
            sampler.token_came(elapsed_s)
            if power:
                power.first_token()

        with sampler:
            ask = partial(request.stream, max_new_tokens=outgoing.new_tokens, extra_body=outgoing.fields)
            ask = partial(ask, api_key=server.api_key, alive=server.alive, stalled=watchdog.stalled)
            return ask(server.url, server.model, outgoing.ids, on_token=first_token)

    def _blind_limit_s(self) -> float:
        """Return how long a server without metrics may stay silent: only a token shows that it still works."""
        measure = self.campaign.config.measure
        limit_s = measure.blind_stall_s or BLIND_FACTOR * measure.stall_s
        return max(limit_s, BLIND_FACTOR * (self.planned_ttft_s or 0.0))


@dataclass(slots=True)
class _ProgressJournal:
    """Shows each sample of a prefill, and journals those at which it had moved."""

    display: Display
    record: PointRecord
    key: RequestKey
    last: PrefillProgress | None = field(default=None, init=False)

    def __call__(self, sample: PrefillProgress) -> None:
        self.display.sample(sample)
        if last := self.last:
            gap_s = sample.elapsed_s - last.elapsed_s
            if sample.tokens_done == last.tokens_done or gap_s < sample.elapsed_s * JOURNALED_SHARE:
                return
        self.last = sample
        # On a full disk the prefill goes on: there is space held back for its row.
        with contextlib.suppress(JournalError):
            self.record.add_progress(self.key, asdict(sample))
