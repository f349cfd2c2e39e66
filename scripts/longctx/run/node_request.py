"""The resources that a measuring job requests of a cluster node: GPUs, memory and run time, from the plan with margin.

A limit that is too low ends the job as a resumable point; one that is too high only waits longer in the queue.
"""

import math
from collections.abc import Sequence
from functools import cached_property

from longctx.campaign.campaign import Campaign
from longctx.campaign.point import Point
from longctx.plan.campaign_plan import refine_plan
from longctx.plan.plan_table import PlanTable
from longctx.units import GIB, MIB

# Repeated doubtful requests, slower nodes, the forecast's own error.
RUNTIME_MARGIN, MEMORY_MARGIN = 2.0, 1.25
# A length of which nothing is known, as on a CPU before the first summary.
UNKNOWN_MINUTES = 12 * 60
# Host memory. Python, torch and the CUDA context of one rank; API server, engine core and client;
# one prompt token on its way through JSON, API server and engine (64Mi ids took 3.4 GiB in the API server alone).
RANK_BYTES, SERVER_BYTES, TOKEN_BYTES = 8 * GIB, 4 * GIB, 160


class NodeRequest:
    """The requests of a campaign's jobs; `plan` is that of `save_plan`, refined by the summary where there is one."""

    def __init__(self, campaign: Campaign, plan: PlanTable) -> None:
        self._campaign, self._saved_plan = campaign, plan

    @property
    def gpus(self) -> int:
        """Return the GPUs of one server; 0 where it runs on the CPU or is not started by the job."""
        serve, hardware = self._campaign.config.serve, self._campaign.config.hardware
        if self._campaign.config.launcher == "external" or serve.cpu_kv_cache_gib:
            return 0
        ranks = serve.tensor_parallel_size * serve.pipeline_parallel_size * serve.prefill_context_parallel_size
        ranks *= serve.data_parallel_size
        return int(max(ranks, hardware.count if hardware else 0))

    def runtime_minutes(self, points: Sequence[Point]) -> int:
        """Return the minutes of one job: twice the slow end of the plan's forecast for its points, and a slow start."""
        hours, unknown_minutes = 0.0, 0
        for point in points:
            row = self._plan.get(point.mode, point.length)
            if row.get("reason") is not None:  # refused, so it takes no time
                continue
            if row.get("est_hours") is None:
                unknown_minutes += UNKNOWN_MINUTES
                continue
            slow = row["est_ttft_high_s"] / row["est_ttft_s"] if row["est_ttft_s"] else 1.0
            hours += row["est_hours"] / self._campaign.passes_of(point.mode) * slow
        start_s = float(self._campaign.config.serve.start_timeout_s)
        return unknown_minutes + math.ceil(start_s / 60 + RUNTIME_MARGIN * 60 * hours)

    def memory_mib(self, points: Sequence[Point]) -> int:
        """Return the host memory of one job in MiB (what mem_mb means to SLURM): server, weights, prompts."""
        config, longest = self._campaign.config, max(points)
        need = SERVER_BYTES + longest.length * TOKEN_BYTES
        if config.launcher != "external":
            need += RANK_BYTES * self.gpus + int((config.serve.cpu_kv_cache_gib or 0) * GIB)
            need += int(config.checkpoint.cpu_gib * GIB) if config.checkpoint else 0
            if not (self._campaign.synthetic_weights and self.gpus):  # random weights are made on the GPU
                row = self._saved_plan.get(longest.mode, longest.length)
                need += (row.get("weight_bytes_per_rank") or 0) * max(1, self.gpus)
        return math.ceil(need * MEMORY_MARGIN / MIB)

    @cached_property
    def _plan(self) -> PlanTable:
        return refine_plan(self._campaign, self._saved_plan)
