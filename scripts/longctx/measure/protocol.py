"""The protocol: one server climbs its points, short rungs first; every request ends as a row in its point's journal."""

import platform
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from longctx.campaign.campaign import Campaign
from longctx.campaign.files import journal_path
from longctx.campaign.point import Point
from longctx.errors import ConfigError, GeometryError, ServerError
from longctx.measure import checkpoints, kv_limit
from longctx.measure.point_record import PointRecord, exclusive, journal_rows
from longctx.measure.running_forecast import running_forecast
from longctx.measure.session import Session, refused_row
from longctx.measure.warmup import SMALL_NEW_TOKENS, SMALL_TOKENS, cycled, warm_up
from longctx.plan.campaign_plan import plan_campaign
from longctx.processes.job_owner import ending_with_owner
from longctx.progress import eta
from longctx.progress.display import Display
from longctx.prompts import variants
from longctx.serve.lifecycle import serve
from longctx.storage import parquet, schemas
from longctx.storage.journal import read
from longctx.storage.token_file import Ids

Say = Callable[[str], None]
# Prompt variants (different from the first token on): measured requests take the first ones, their repetitions the
# next, warm-ups the last.
MEASURED_VARIANTS = 24
# The request index of the warm-up that makes a killed server's prefix resident again, beyond those of all others.
RESIDENT_AGAIN = 100


def measure(campaign: Campaign, points: Sequence[Point], say: Say) -> int:
    """Measure what is missing of `points` (one mode) and write their Parquets; return how many points failed.

    LongctxError only for what makes all measuring pointless (full disk, second run); a point's own trouble is a row.
    """
    with ExitStack() as stack:
        stack.enter_context(ending_with_owner())
        stack.enter_context(exclusive(campaign, points))
        job = _Job(campaign, sorted(points), say)
        stack.callback(job.live.close)
        job.run()
        return job.finish()


class _Job:
    def __init__(self, campaign: Campaign, points: Sequence[Point], say: Say) -> None:
        self.campaign, self.points = campaign, points
        self.mode = points[0].mode
        self.live = Display(campaign, say)
        self.checkpoint_dir = checkpoints.checkpoint_folder(campaign, points)
        self.plan = _plan_rows(campaign)
        self.records: dict[Point, PointRecord] = {}
        for point in points:
            sha = variants.read_sha(self._prompt_path(point))
            self.records[point], said = PointRecord.open(campaign, point, sha)
            if said:
                self.live.say(said)

    def _prompt_path(self, point: Point) -> Path:
        return self.campaign.results / "prompts" / f"{point.label}.parquet"

    def run(self) -> None:
        """Serve until every point is measured or has failed; a dead server costs its point, not the others."""
        self._check_checkpoint()
        todo = [point for point in self.points if self.records[point].missing() and not self._refused(point)]
        while todo:
            try:
                self._serve(todo)
            except ServerError as error:
                lost = self._lost(todo, error)
                self._refuse(lost, error.reason, str(error))
                todo = [point for point in todo if point not in lost]

    def _lost(self, todo: Sequence[Point], error: ServerError) -> list[Point]:
        """Which points a server that did not start costs: all, but of a KV cache too small only those too long."""
        if error.reason != "kv_too_small":
            return list(todo)
        headroom, longest = self.campaign.raw["serve"]["headroom_tokens"], max(todo).length
        room = (error.kv_tokens or longest + headroom) - headroom
        lost = [point for point in todo if point.length == longest or point.length > room]
        kv_limit.remember_limit(self.campaign, min(lost), str(error))
        return lost

    def _refused(self, point: Point) -> bool:
        """Refuse, before a server is started, what the plan or the validation rules out."""
        found = self._why_not(point)
        if found:
            self._refuse([point], *found)
        return found is not None

    def _why_not(self, point: Point) -> tuple[str, str] | None:
        results = self.campaign.results
        rows = parquet.read_rows(results / "validation" / f"{point.label}.parquet", schemas.VALIDATION)
        if bad := [row for row in rows if not row["ok"]]:
            return "invalid_prompt", str(bad[0]["detail"])
        planned = self.plan.get((point.mode, point.length), {})
        if planned.get("fits") is False:
            return str(planned["reason"]), str(planned["remedy"])
        if skipped := kv_limit.why_skipped(self.campaign, point):
            return "kv_too_small", skipped
        if self.checkpoint_dir:
            # Points that share a server share the folder, which is emptied when all of them are done.
            need = sum(self._checkpoint_bytes(other) for other in self.points if other <= point)
            if shortage := checkpoints.disk_shortage(self.checkpoint_dir, need):
                return "disk_full", shortage
        return None

    def _checkpoint_bytes(self, point: Point) -> int:
        """What a point's KV blocks take on disk by the plan, over all ranks; 0 where the plan does not know."""
        planned, serve_config = self.plan.get((point.mode, point.length), {}), self.campaign.raw["serve"]
        ranks = serve_config["tensor_parallel_size"] * serve_config["pipeline_parallel_size"]
        return int(((planned.get("kv_bytes_per_rank") or 0) + (planned.get("state_bytes_per_rank") or 0)) * ranks)

    def _check_checkpoint(self) -> None:
        """Drop what cannot help: other recipes' checkpoints, and one that attempts failed on again and again."""
        if self.checkpoint_dir is None:
            return
        checkpoints.remove_foreign(self.checkpoint_dir)
        for point, record in self.records.items():
            if any(checkpoints.is_stuck(record.unfinished(*key)) for key in record.missing()):
                self.live.say(
                    f"{point.name}: two attempts got no further with the checkpoint: the prefill starts anew without it"
                )
                checkpoints.remove_checkpoint(self.checkpoint_dir)

    def _refuse(self, points: Sequence[Point], reason: str, detail: str) -> None:
        """Give every missing request of these points a row with the reason; say it once for all of them."""
        for point in points:
            record = self.records[point]
            for role, index in record.missing():
                row = refused_row(self.campaign, record, role, index, reason, detail)
                record.journal.append("row", row)
            self.live.begin(point, "refused")
            self.live.end("failed", detail)
        self.live.say(f"{', '.join(point.name for point in points)}: {reason}: {detail}")

    def _serve(self, todo: list[Point]) -> None:
        """Start a server for `todo` and climb; points done or failed leave the list.

        Returns when the server is of no more use: dead, or stalled, for a hung engine would cost every point its limit.
        """
        campaign, longest = self.campaign, max(todo)
        label = todo[0].name if len(todo) == 1 else f"{self.mode}-{todo[0].run}"
        log_path = campaign.results / "logs" / f"{label}.server.log"
        self.live.begin(todo[0], "starting the server")
        with serve(
            campaign.recipe(self.mode, longest.length, self.checkpoint_dir),
            campaign.launcher(),
            run_dir=campaign.results / ".run" / platform.node(),
            log_path=log_path,
            campaign=campaign.name,
            start_timeout_s=campaign.raw["serve"]["start_timeout_s"],
            contract=campaign.raw["serve"]["contract"],
            on_log=self.live.log_line,
        ) as server:
            for point in todo:
                self.records[point].journal.append("server", self._server_row(point, server, log_path))
            session = Session(campaign, self.mode, server, self.live)
            self._warm_up(session, todo[0], longest)
            if not server.alive():
                raise ServerError(f"while warming up {server.death_reason()}", "server_died")
            while todo and not session.useless():
                self._measure_point(session, todo.pop(0))

    def _server_row(self, point: Point, server: Any, log_path: Path) -> dict[str, Any]:
        return {
            "campaign": self.campaign.name,
            "recipe_hash": self.campaign.recipe_hash(self.mode),
            "mode": self.mode,
            "length": point.length,
            "pass_index": point.pass_index,
            "command": server.command,
            "started_at": datetime.now(UTC),
            "contract": orjson.dumps(server.contract).decode(),
            "env": server.env_json,
            "log_path": str(log_path),
            "status": "ok",
            **server.facts,
            **server.host_facts,
        }

    def _warm_up(self, session: Session, first: Point, longest: Point) -> None:
        path, record = self._prompt_path(first), self.records[first]
        last = variants.n_variants(path) - 1
        self.live.phase("warming up")

        accepted = session.server.facts["max_model_len"] or sys.maxsize
        # No warm-up prompt twice, or a checkpoint would answer it.
        starts = len(list(record.journal.of_kind("server"))) - 1

        def ids(index: int, count: int) -> Ids:
            return np.roll(cycled(next(variants.iter_ids(path, last - index)), count), starts)

        maximum = self.campaign.raw["measure"]["warmup_max"]
        fills_on_cpu = self.mode == "decode_only" and not session.server.host_facts["gpu"]
        if fills_on_cpu:
            # vLLM's CPU kernels die of SIGILL on processors with AMX unless a dozen tokens or more are computed first.
            # The connector leaves one, but not where the prompt's log-probabilities are asked for.
            first_ids = ids(maximum, min(SMALL_TOKENS, accepted - SMALL_NEW_TOKENS))
            session.send(record, "warmup", maximum, first_ids, SMALL_NEW_TOKENS, {"prompt_logprobs": 0})
        session.steady = warm_up(
            lambda index, ids, new: session.send(record, "warmup", index, ids, new),
            ids,
            chunk_tokens=session.server.facts.get("max_num_batched_tokens"),
            max_prompt_tokens=min(max(longest.length, SMALL_TOKENS), accepted - SMALL_NEW_TOKENS),
            maximum=maximum,
            long_first=not fills_on_cpu,
        )

    def _measure_point(self, session: Session, point: Point) -> None:
        record = self.records[point]
        if shortage := self._gate(session, point):
            kv_limit.remember_limit(self.campaign, point, shortage)
            self._refuse([point], "kv_too_small", shortage)
            return
        if too_long := self._over_max_length(session, point):
            self._refuse([point], "over_max_length", too_long)
            return
        self.live.begin(point, "measuring")
        session.prior = self._prior(point)
        session.planned_ttft_s = self.plan.get((point.mode, point.length), {}).get("est_ttft_high_s")
        if self.mode == "reuse" and ("cold", 0) not in record.missing():
            # The prefix of an earlier, killed server is gone: make it resident again.
            self._request(session, point, "warmup", RESIDENT_AGAIN)
        for role, index in record.missing():
            self.live.phase(f"measuring, {role} {index}")
            row = self._request(session, point, role, index)
            while row["status"] == "doubtful" and (role, index) in record.missing() and session.server.alive():
                self.live.say(f"{point.name} {role} {index}: doubtful ({row['reason']}), repeated: {row['detail']}")
                row = self._request(session, point, role, index)
            self.live.say(describe(point, row))
            if row["status"] == "failed" and session.useless():
                break
        self.live.end("failed" if record.missing() else "done", row["reason"] if record.missing() else None)
        if self.mode == "prefill" and (forecast := running_forecast(self.campaign)):
            self.live.say(forecast)

    def _prior(self, point: Point) -> eta.Cost | None:
        """What shorter rungs of this mode cost so far: the shape of this prefill's ETA."""
        seen = {
            (row["prefill_s"], row["length"])
            for other in self.campaign.points(self.mode)
            if other.length < point.length
            for row in journal_rows(read(journal_path(self.campaign, other))[0])
            if row.get("prefill_s")
        }
        return eta.fit_cost(sorted(seen, key=lambda pair: pair[1]))

    def _gate(self, session: Session, point: Point) -> str | None:
        """Return a sentence with both numbers where the server's own KV capacity cannot hold the point."""
        capacity = session.server.capacity_tokens()
        # New tokens and a query's suffix are part of the headroom, which is not ours to choose in others' server.
        external = self.campaign.raw["launcher"] == "external"
        after = (
            self.campaign.tokens_after_prompt(self.mode) if external else self.campaign.raw["serve"]["headroom_tokens"]
        )
        need = point.length + after
        if capacity is None or capacity >= need:
            return None
        return (
            f"the server's KV cache holds {capacity} tokens, this point needs {need}; lower the length, keep the cache"
            " in FP8 or spread the model over more GPUs"
        )

    def _over_max_length(self, session: Session, point: Point) -> str | None:
        """Return a sentence where the server accepts no prompt as long as this point; only an external one can."""
        accepted = session.server.facts["max_model_len"]
        need = point.length + self.campaign.tokens_after_prompt(self.mode)
        if accepted is None or need <= accepted:
            return None
        return f"the server accepts {accepted} tokens at most, this point needs {need}; nothing was sent"

    def _variant(self, point: Point, role: str, index: int) -> int:
        """Which prompt: every pass and repeat has its own first token; reuse queries share their pass's prefix.

        A doubtful request is repeated with another prompt; a killed or failed one with its own, for its checkpoint.
        """
        variant = point.pass_index
        if point.mode == "prefill":
            variant = (point.pass_index - 1) * self.campaign.repeats(point.length) + index
        again = role in (*schemas.COLD_ROLES, "decode_only") and self.records[point].doubts(role, index)
        return variant % MEASURED_VARIANTS + (MEASURED_VARIANTS if again else 0)

    def _request(self, session: Session, point: Point, role: str, index: int) -> dict[str, Any]:
        path, record = self._prompt_path(point), self.records[point]
        ids = variants.read_ids(path, self._variant(point, role, index))
        if role == "reuse":
            query = index - 1 + (MEASURED_VARIANTS if record.doubts(role, index) else 0)
            count = self.campaign.raw["reuse"]["suffix_tokens"]
            ids = np.concatenate([ids, variants.read_suffix_ids(path, query, count)])
        return session.send(record, role, index, ids, self.campaign.raw["max_new_tokens"])

    def finish(self) -> int:
        """Assemble the points' Parquets, drop their checkpoints, and count the points that failed."""
        failed = [point for point in self.points if self.records[point].missing()]
        for point in self.points:
            if point not in failed:
                self.records[point].assemble()
                self.live.done(point)
        if not failed:
            for record in self.records.values():
                record.done()
            if self.checkpoint_dir:
                checkpoints.remove_checkpoint(self.checkpoint_dir)
        return len(failed)


def _plan_rows(campaign: Campaign) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the plan by mode and length, made afresh: it takes no time, and its file may be of other lengths."""
    try:
        return {(row["mode"], row["length"]): row for row in plan_campaign(campaign).rows}
    except (ConfigError, GeometryError):
        return {}  # rule plan says what is wrong


def describe(point: Point, row: dict[str, Any]) -> str:
    """One line about one finished request."""
    head = f"{point.name} {row['role']} {row['request_index']}: {row['status']}"
    if row["status"] != "ok":
        return f"{head}: {row['reason']}: {row['detail']}"
    ttft = "" if row.get("ttft_s") is None else f" TTFT {row['ttft_s']:.3f} s"
    decode = "" if row.get("decode_tok_s") is None else f" decode {row['decode_tok_s']:.1f} tok/s"
    marks = f" ({', '.join(row['reasons'])})" if row["reasons"] else ""
    return head + ttft + decode + marks
