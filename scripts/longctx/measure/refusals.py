"""Reasons not to try a point: by the prompt's validation, the plan, the disk, or the server that was started."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from longctx.campaign.campaign import Campaign
from longctx.campaign.point import Point
from longctx.errors import LongctxError
from longctx.measure import checkpoints, kv_limit
from longctx.plan.campaign_plan import failed_plan_path
from longctx.plan.plan_table import PlanTable
from longctx.serve.server import Server
from longctx.storage import parquet, schemas


def refuse_without_plan(campaign: Campaign) -> None:
    """Raise LongctxError where the plan of this Snakemake run failed: its summary and reports could not be made."""
    run, note = os.environ.get(kv_limit.RUN_VARIABLE), failed_plan_path(campaign)
    if run and note.is_file() and note.read_text(encoding="utf-8").strip() == run:
        log = campaign.results / "logs" / "plan.log"
        raise LongctxError(f"the plan failed, so nothing is measured; {log} says why. `snakemake plan` tries it alone")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A reason of `longctx.measure.row.reasons` and one sentence about it."""

    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Refusals:
    """Everything that can rule out the points of one server. validations: the prompts' validation files, by length."""

    campaign: Campaign
    points: Sequence[Point]
    plan: PlanTable
    validations: Mapping[int, Path]
    checkpoint_dir: Path | None

    def before_start(self, point: Point) -> Refusal | None:
        """Return why no server need be started for `point`, None where it must be tried."""
        rows = parquet.read_rows(self.validations[point.length], schemas.VALIDATION)
        if bad := [row for row in rows if not row["ok"]]:
            return Refusal("invalid_prompt", str(bad[0]["detail"]))
        planned = self.plan.get(point.mode, point.length)
        if planned.get("fits") is False:
            return Refusal(str(planned["reason"]), str(planned["remedy"]))
        if skipped := kv_limit.skip_reason(self.campaign, point):
            return Refusal("kv_too_small", skipped)
        if self.checkpoint_dir:
            # Points that share a server share the folder, which is emptied when all of them are done.
            need = sum(self._checkpoint_bytes(other) for other in self.points if other <= point)
            if shortage := checkpoints.disk_shortage(self.checkpoint_dir, need):
                return Refusal("disk_full", shortage)
        return None

    def _checkpoint_bytes(self, point: Point) -> int:
        """Return the bytes of a point's KV blocks on disk by the plan, over all ranks; 0 where it does not know."""
        planned, serve_config = self.plan.get(point.mode, point.length), self.campaign.config.serve
        ranks = serve_config.tensor_parallel_size * serve_config.pipeline_parallel_size
        ranks *= serve_config.prefill_context_parallel_size
        return int(((planned.get("kv_bytes_per_rank") or 0) + (planned.get("state_bytes_per_rank") or 0)) * ranks)

    def by_server(self, point: Point, server: Server) -> Refusal | None:
        """Return why the running server cannot take `point`, by its own capacity and maximum length, else None."""
        # New tokens and a query's suffix are part of the headroom; that of an external server is not ours to choose.
        after_prompt = self.campaign.tokens_after_prompt(point.mode)
        external = self.campaign.config.launcher == "external"
        need = point.length + (after_prompt if external else self.campaign.config.serve.headroom_tokens)
        capacity, accepted = server.capacity_tokens(), server.facts["max_model_len"]
        if capacity is not None and capacity < need:
            remedy = "lower the length, keep the cache in FP8 or spread the model over more GPUs"
            holds = f"the server's KV cache holds {capacity} tokens, this point needs {need}"
            return Refusal("kv_too_small", f"{holds}; {remedy}")
        need = point.length + after_prompt
        if accepted is not None and accepted < need:  # only an external server
            accepts = f"the server accepts {accepted} tokens at most, this point needs {need}"
            return Refusal("over_max_length", f"{accepts}; nothing was sent")
        return None
