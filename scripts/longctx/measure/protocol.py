"""The protocol: one server climbs its points, short lengths first; every request ends as a row in a journal."""

import platform
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from longctx.campaign.campaign import RESULTS, Campaign
from longctx.campaign.mode import RequestKey
from longctx.campaign.point import Point
from longctx.errors import ServerError
from longctx.measure import checkpoints, kv_limit
from longctx.measure.mode import MeasureFacet, measure_facet
from longctx.measure.point_record import PointRecord, exclusive, past_rows
from longctx.measure.refusals import Refusal, Refusals, refuse_without_plan
from longctx.measure.remeasure import refuse_unasked
from longctx.measure.row.request_row import refused_row
from longctx.measure.session import Outgoing, Session
from longctx.measure.warmup import SMALL_NEW_TOKENS, SMALL_TOKENS, warm_up
from longctx.plan.plan_table import PlanTable
from longctx.processes.job_owner import ending_with_owner
from longctx.progress import eta
from longctx.progress.display import Display
from longctx.prompts import variants
from longctx.serve.lifecycle import serve
from longctx.storage.rows import MeasurementRow, Role, Status
from longctx.storage.token_file import Ids

Files = Mapping[int, Path]
Say = Callable[[str], None]


def measure(
    campaign: Campaign, points: Sequence[Point], *, plan: PlanTable, prompts: Files, validations: Files, say: Say
) -> int:
    """Measure the missing requests of `points` (one mode), write their Parquets, and return how many points failed.

    prompts, validations: the files by length. LongctxError is raised only where all measuring is pointless (full disk,
    second run); the failure of a point is a row.
    """
    refuse_without_plan(campaign)
    with ending_with_owner(), exclusive(campaign, points), closing(Display(campaign, say)) as display:
        records, sha256 = {}, {length: variants.read_sha(path) for length, path in prompts.items()}
        refuse_unasked(campaign, sorted(points), plan, sha256)
        for point in sorted(points):
            records[point], sentence = PointRecord.open(campaign, point, sha256[point.length])
            if sentence:
                display.say(sentence)
        folder = checkpoints.checkpoint_folder(campaign, list(records))
        refusals = Refusals(campaign, list(records), plan, validations, folder)
        climb = ServerClimb(campaign, measure_facet(points[0].mode), refusals, prompts, records, display)
        climb.run()
        return climb.finish()


@dataclass(slots=True)
class ServerClimb:
    """The points of one mode that share a server: as long as one starts and lives, it measures them in order."""

    campaign: Campaign
    facet: MeasureFacet
    refusals: Refusals
    prompts: Files
    records: dict[Point, PointRecord]
    display: Display

    def run(self) -> None:
        """Serve until every point is measured or has failed; a dead server costs its point, not the others."""
        self._drop_useless_checkpoints()
        todo = []
        for point in (point for point in self.records if self._missing(point)):
            if refusal := self.refusals.before_start(point):
                self._refuse([point], refusal)
            else:
                todo.append(point)
        while todo:
            try:
                self._serve(todo)
            except ServerError as error:
                lost = self._lost_points(todo, error)
                self._refuse(lost, Refusal(error.reason, str(error)))
                todo = [point for point in todo if point not in lost]

    def finish(self) -> int:
        """Assemble the points' Parquets, drop their checkpoints, and return how many points failed."""
        measured = [point for point, record in self.records.items() if not record.missing()]
        for point in measured:
            self.records[point].assemble()
            self.display.done(point)
        if len(measured) == len(self.records):
            for record in self.records.values():
                record.done()
            if folder := self.refusals.checkpoint_dir:
                checkpoints.remove_checkpoint(folder)
        return len(self.records) - len(measured)

    def _missing(self, point: Point) -> list[RequestKey]:
        """Return a point's missing requests; where it has none, those that its rows call for now."""
        record = self.records[point]
        if not record.missing() and not record.was_done():
            record.add_requests(self.facet.more_requests(self.campaign, point))
        return record.missing()

    def _drop_useless_checkpoints(self) -> None:
        """Delete checkpoints of other recipes, and one that attempts failed on again and again."""
        if (folder := self.refusals.checkpoint_dir) is None:
            return
        checkpoints.remove_foreign(folder)
        for point, record in self.records.items():
            if any(checkpoints.seems_damaged(record.unfinished(*key)) for key in record.missing()):
                anew = "two attempts got no further with the checkpoint: the prefill starts anew without it"
                self.display.say(f"{point.name}: {anew}")
                checkpoints.remove_checkpoint(folder)

    def _refuse(self, points: Sequence[Point], refusal: Refusal) -> None:
        """Give every missing request of these points a row with the reason; say it once for all of them."""
        for point in points:
            record = self.records[point]
            for key in record.missing():
                record.add_row(refused_row(record, key, refusal), {"host": socket.gethostname()})
            self.display.begin(point, "refused")
            self.display.end("failed", refusal.detail)
        self.display.say(f"{', '.join(point.name for point in points)}: {refusal.reason}: {refusal.detail}")

    def _lost_points(self, todo: Sequence[Point], error: ServerError) -> list[Point]:
        """Return the points that a failed start costs: all, or for a small KV cache only those that are too long."""
        if error.reason != "kv_too_small":
            return list(todo)
        headroom, longest = self.campaign.config.serve.headroom_tokens, max(todo).length
        room = (error.kv_tokens or longest + headroom) - headroom
        lost = [point for point in todo if point.length == longest or point.length > room]
        kv_limit.save_limit(self.campaign, min(lost), str(error))
        return lost

    def _serve(self, todo: list[Point]) -> None:
        """Start a server for `todo` and climb until it is of no use; points measured or failed leave the list."""
        campaign, first, longest = self.campaign, todo[0], max(todo)
        label = first.name if len(todo) == 1 else f"{first.mode}-{first.run}"
        log_path = campaign.results / "logs" / f"{label}.server.log"
        self.display.begin(first, "starting the server")
        conf, log_line = campaign.config.serve, self.display.log_line
        run_dir = RESULTS / ".run" / platform.node()  # the host's, whichever campaign of this folder served last
        recipe = campaign.recipe(first.mode, longest.length, self.refusals.checkpoint_dir)
        start = partial(serve, recipe, campaign.launcher(), run_dir=run_dir, log_path=log_path, campaign=campaign.name)
        with start(start_timeout_s=conf.start_timeout_s, contract=conf.contract, on_log=log_line) as server:
            served = server.facts | server.host_facts | {"started_at": datetime.now(UTC), "status": Status.OK.value}
            served |= {"contract": orjson.dumps(server.contract).decode(), "env": server.env_json}
            served |= {"command": server.command, "log_path": str(log_path)}
            for point in todo:
                self.records[point].journal.append("server", self.records[point].labels | served)
            session = Session(campaign, self.facet, server, self.display)
            self._warm_up(session, first, longest)
            if not server.alive():
                raise ServerError(f"while warming up {server.death_reason()}", "server_died")
            while todo and not session.is_useless():
                self._measure_point(session, todo.pop(0))

    def _warm_up(self, session: Session, first: Point, longest: Point) -> None:
        """Warm the server up with prompts of its first point; their rows are that point's."""
        self.display.phase("warming up")
        path, record = self.prompts[first.length], self.records[first]
        last_variant = variants.n_variants(path) - 1
        # No warm-up prompt twice, or a checkpoint would answer it.
        starts = len(list(record.journal.of_kind("server"))) - 1

        def send(index: int, count: int, extra_body: Mapping[str, Any] | None = None) -> MeasurementRow:
            # A short prompt is repeated: the text of a warm-up does not matter.
            ids = np.roll(np.resize(next(variants.iter_ids(path, last_variant - index)), count), starts)
            ids = variants.salted(path, ids, record.prompt_salt)
            return session.send(record, Outgoing((Role.WARMUP, index), ids, SMALL_NEW_TOKENS, extra_body or {}))

        maximum = self.campaign.config.measure.warmup_max
        accepted = (session.server.facts["max_model_len"] or sys.maxsize) - SMALL_NEW_TOKENS
        chunk_tokens, most = session.server.facts.get("max_num_batched_tokens"), max(longest.length, SMALL_TOKENS)
        first_fill = self.facet.first_fill(session.server.host_facts["gpu"])
        if first_fill:
            send(maximum, min(SMALL_TOKENS, accepted), first_fill)
        session.steady = warm_up(send, maximum, chunk_tokens, min(most, accepted), long_first=not first_fill)

    def _measure_point(self, session: Session, point: Point) -> None:
        record = self.records[point]
        if refusal := self.refusals.by_server(point, session.server):
            if refusal.reason == "kv_too_small":
                kv_limit.save_limit(self.campaign, point, refusal.detail)
            self._refuse([point], refusal)
            return
        self.display.begin(point, "measuring")
        shorter = (other for other in self.campaign.points(point.mode) if other.length < point.length)
        rows = (row for other in shorter for row in past_rows(self.campaign, other) if row.get("prefill_s"))
        prefills = sorted({(row["length"], row["prefill_s"]) for row in rows})
        session.prior = eta.fit_cost([(prefill_s, length) for length, prefill_s in prefills])
        session.planned_ttft_s = self.refusals.plan.get(point.mode, point.length).get("est_ttft_high_s")
        while missing := self._missing(point):
            for key in self.facet.requests(missing):
                row = self._measure_request(session, point, key)
                if row.status == Status.FAILED and row.role != Role.WARMUP and session.is_useless():
                    break
            if missing := record.missing():
                break
        self.display.end("failed" if missing else "done", row.reason if missing else None)
        if forecast := self.facet.forecast(self.campaign):
            self.display.say(forecast)

    def _measure_request(self, session: Session, point: Point, key: RequestKey) -> MeasurementRow:
        """Send a request, again as long as it is doubtful and may be repeated, and return its last row."""
        (role, index), record, warming = key, self.records[point], key[0] == Role.WARMUP
        if not warming:
            self.display.phase(f"measuring, {role} {index}")
        while True:
            path = self.prompts[point.length]
            ids = self.facet.read_ids(path, self.campaign, point, key, record.doubts(*key))
            ids = variants.salted(path, ids, record.prompt_salt)
            row = session.send(record, self._outgoing(session, key, ids))
            if row.status != Status.DOUBTFUL or key not in record.missing() or not session.server.alive():
                break
            self.display.say(f"{point.name} {role} {index}: doubtful ({row.reason}), repeated: {row.detail}")
        if not warming:
            self.display.say(describe(point, row))
        return row

    def _outgoing(self, session: Session, key: RequestKey, ids: Ids) -> Outgoing:
        """Return the request that sends `ids` as the mode wants it."""
        new_tokens = self.facet.new_tokens(self.campaign, key[0])
        chunk_tokens = session.server.facts.get("max_num_batched_tokens")
        claimed = self.facet.claimed_tokens(self.campaign, key[0], len(ids), chunk_tokens)
        return Outgoing(key, ids, new_tokens, claimed_tokens=claimed)


def describe(point: Point, row: MeasurementRow) -> str:
    """Return one line about one finished request."""
    head = f"{point.name} {row.role} {row.request_index}: {row.status}"
    if row.status != Status.OK:
        return f"{head}: {row.reason}: {row.detail}"
    ttft = "" if row.ttft_s is None else f" TTFT {row.ttft_s:.3f} s"
    if row.sample_prefill_s is not None:
        computed = (row.prompt_tokens or 0) - (row.claimed_tokens or 0)
        ttft = f" last {computed} tokens of {row.prompt_tokens} in {row.sample_prefill_s:.3f} s"
    decode = "" if row.decode_tok_s is None else f" decode {row.decode_tok_s:.1f} tok/s"
    marks = f" ({', '.join(row.reasons)})" if row.reasons else ""
    return head + ttft + decode + marks
