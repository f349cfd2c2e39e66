"""A campaign's plan: its configuration as a `System`, its measured lengths for the forecast, its file."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from longctx.campaign.campaign import Campaign
from longctx.campaign.mode import COLD_MODE, campaign_facet
from longctx.campaign.point import Point
from longctx.errors import ConfigError, DataError, GeometryError, LongctxError
from longctx.model.geometry import Geometry
from longctx.model.reader import build_geometry, read_geometry
from longctx.plan.forecasting.forecast import Estimate
from longctx.plan.hardware import AXES, Parallelism, load_hardware
from longctx.plan.plan_table import PlanTable
from longctx.plan.planner import plan_points
from longctx.plan.system import Settings, System
from longctx.prompts.synthetic_model import TINY_LLAMA
from longctx.resources import ROOT
from longctx.storage.parquet import read_rows, write_rows
from longctx.storage.schemas import PLAN, SUMMARY


@dataclass(frozen=True, slots=True)
class CampaignPlan:
    """A system and the schemas.PLAN rows of the points that it runs."""

    system: System
    rows: tuple[dict[str, Any], ...]


def measured_ttft(summary: Path | None) -> dict[int, float]:
    """Return {length: mean cold TTFT in s} of a summary.parquet, {} without one; lengths without TTFT are left out."""
    rows = read_rows(summary, SUMMARY) if summary is not None and summary.exists() else []
    cold = [row for row in rows if row["mode"] == COLD_MODE and row["ttft_s_mean"] is not None]
    return {row["length"]: row["ttft_s_mean"] for row in cold}


def sampled_ttft(summary: Path | None, campaign: Campaign | None = None) -> dict[int, Estimate]:
    """Return {length: estimate} from the samples of a summary.parquet, {} without one or without samples.

    DataError where they are of another recipe than the `campaign` has.
    """
    rows = read_rows(summary, SUMMARY) if summary is not None and summary.exists() else []
    rows = [row for row in rows if row["ttft_estimate_s"] is not None]
    if campaign and (other := [row for row in rows if row["recipe_hash"] != campaign.recipe_hash(row["mode"])]):
        raise DataError(
            f"{summary}: its samples are of another recipe ({other[0]['recipe_hash']}) than this configuration; they"
            " forecast nothing here, so sample this configuration or leave --measured out"
        )
    source = f"{max((row['ttft_estimate_samples'] for row in rows), default=0)} samples"
    return {
        row["length"]: Estimate(row["ttft_estimate_s"], row["ttft_estimate_low_s"], row["ttft_estimate_high_s"], source)
        for row in rows
    }


def plan_campaign(
    campaign: Campaign, measured: Mapping[int, float] | None = None, sampled: Mapping[int, Estimate] | None = None
) -> CampaignPlan:
    """Plan every (mode, length), with `measured_ttft` and `sampled_ttft`.

    GeometryError and ConfigError name the wrong setting.
    """

    def requests(mode: str, length: int) -> int:
        counted = campaign_facet(mode).counted_roles
        return sum(role in counted for role, _ in campaign.requests(Point(length, 1, mode)))

    def samples(mode: str, length: int) -> list[tuple[int, int]]:
        facet, config = campaign_facet(mode), campaign.config
        passes = range(1, campaign.passes_of(mode) + 1)
        return [part for p in passes for part in facet.samples(config, length, p, system.batched_tokens)]

    system = campaign_system(campaign)
    points = [(mode, length) for mode in campaign.modes for length in campaign.lengths(mode)]
    known = partial(plan_points, measured=measured, sampled=sampled)
    rows = known(system, points, requests=requests, passes=campaign.passes_of, samples=samples)
    return CampaignPlan(system, tuple(rows))


def plan_path(campaign: Campaign) -> Path:
    """Return where `save_plan` writes the plan of this configuration."""
    return campaign.results / ".config" / f"{campaign.labels['config_hash']}.plan.parquet"


def failed_plan_path(campaign: Campaign) -> Path:
    """Return where a run whose plan failed leaves its id."""
    return campaign.results / ".config" / "plan.failed"


def known_plan(campaign: Campaign, path: Path | str, summary: Path | None) -> CampaignPlan:
    """Return the plan of a file that `save_plan` wrote; make it where there is none, or to use a summary's times."""
    rows, measured, sampled = PlanTable.read(path).rows, measured_ttft(summary), sampled_ttft(summary, campaign)
    if rows and not measured and not sampled:
        return CampaignPlan(campaign_system(campaign), rows)
    return plan_campaign(campaign, measured, sampled)


def save_plan(campaign: Campaign) -> Path | None:
    """Write the plan to <results>/.config/<config_hash>.plan.parquet; return its path, None where it cannot be made."""
    path = plan_path(campaign)
    try:
        plan = plan_campaign(campaign)
    except (GeometryError, ConfigError):
        return None
    with suppress(DataError):
        if PlanTable.read(path).rows == plan.rows:  # keeps its time, so that nothing that depends on it is made again
            return path
    write_rows(path, PLAN, plan.rows, {"model": plan.system.geometry.name} | campaign.labels)
    return path


def planned(campaign: Campaign) -> PlanTable:
    """Return the plan's rows without writing them, the empty table where it cannot be made."""
    try:
        return PlanTable(plan_campaign(campaign).rows)
    except (GeometryError, ConfigError):
        return PlanTable.empty()


def refine_plan(campaign: Campaign, plan: PlanTable) -> PlanTable:
    """Return the plan with forecasts from the campaign's own summary, `plan` itself where that knows no TTFT."""
    summary = campaign.results / "summary.parquet"
    try:
        measured, sampled = measured_ttft(summary), sampled_ttft(summary, campaign)
        return PlanTable(plan_campaign(campaign, measured, sampled).rows) if measured or sampled else plan
    except LongctxError:
        return plan


def campaign_system(campaign: Campaign) -> System:
    """Return the system of a campaign; GeometryError and ConfigError name what is wrong with it."""
    hardware = campaign.config.hardware
    longest = max(campaign.all_lengths())
    recipe = campaign.recipe(campaign.modes[0], longest)
    is_external = campaign.config.launcher == "external"
    cpu_kv_gib = None if is_external else recipe.env.get("VLLM_CPU_KVCACHE_SPACE")
    settings = Settings(
        kv_dtype=recipe.kv_cache_dtype,
        gpu_memory_utilization=recipe.gpu_memory_utilization,
        batched_tokens=recipe.max_num_batched_tokens,
        max_new_tokens=campaign.config.max_new_tokens,
        headroom_tokens=recipe.max_model_len - longest,
        cpu_kv_gib=float(cpu_kv_gib) if cpu_kv_gib else None,
        aiter_version=recipe.versions.get("aiter"),
        passes=campaign.config.passes,
        scope=campaign.scope,
        vllm_version=recipe.versions.get("vllm"),
        prefix_caching=any(campaign.recipe(mode, longest).prefix_caching for mode in campaign.modes),
        env=tuple(recipe.env.items()),
        is_external=is_external,
    )
    split = Parallelism(**{axis: getattr(recipe, f"{axis}_parallel_size") for axis in AXES})
    node = load_hardware(hardware.gpu, hardware.count) if hardware else None
    return System(_geometry(campaign), node, split, settings)


def _geometry(campaign: Campaign) -> Geometry:
    model = campaign.config.model
    if model.source == "synthetic":  # the model that rule `model` makes from the same arguments, made already or not
        option, value = campaign.model_arguments
        made = None if option == "--from-config" else TINY_LLAMA | json.loads(value)
        geometry = build_geometry(made, "a tiny Llama") if made else read_geometry(value)
        return replace(geometry, name=f"{geometry.name} (random weights)")
    if model.geometry:
        return read_geometry(ROOT / model.geometry)
    try:
        return read_geometry(campaign.model_path, model.revision)
    except GeometryError as error:
        raise GeometryError(f"{error}; or name a config.json that the plan can read as model.geometry") from error
