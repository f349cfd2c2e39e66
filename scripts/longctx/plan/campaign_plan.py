"""A campaign's plan: its configuration translated for `plan`, its measured rungs for `forecast`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from longctx.campaign.campaign import Campaign
from longctx.campaign.mode import COLD_MODE, campaign_facet
from longctx.campaign.point import Point
from longctx.errors import ConfigError, DataError, GeometryError
from longctx.model.geometry import Geometry
from longctx.model.reader import build_geometry, read_geometry
from longctx.plan.fit import Settings
from longctx.plan.hardware import Hardware, Parallelism, load_hardware
from longctx.plan.plan_table import PlanTable
from longctx.plan.planner import plan_points
from longctx.prompts.synthetic_model import TINY_LLAMA
from longctx.resources import ROOT
from longctx.storage.parquet import write_rows
from longctx.storage.schemas import PLAN


@dataclass(frozen=True, slots=True)
class CampaignPlan:
    """What a campaign is planned with, and its tables.PLAN rows."""

    geometry: Geometry
    hardware: Hardware | None
    parallelism: Parallelism
    settings: Settings
    lengths: tuple[int, ...]
    rows: tuple[dict[str, Any], ...]


def measured_ttft(summary_rows: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Return {length: mean cold TTFT in s} of tables.SUMMARY rows; lengths without a good row are left out."""
    return {
        row["length"]: row["ttft_s_mean"]
        for row in summary_rows
        if row["mode"] == COLD_MODE and row["ttft_s_mean"] is not None
    }


def plan_campaign(campaign: Campaign, measured: Mapping[int, float] | None = None) -> CampaignPlan:
    """Plan every (mode, length) of a campaign; `measured` as `measured_ttft` returns it.

    GeometryError and ConfigError say what the plan cannot be made from.
    """
    points = [(mode, length) for mode in campaign.modes for length in campaign.lengths(mode)]
    geometry, hardware = _geometry(campaign), _hardware(campaign)
    settings, parallelism = _settings(campaign, max(length for _, length in points))

    def requests(mode: str, length: int) -> int:
        counted = campaign_facet(mode).counted_roles
        return sum(role in counted for role, _ in campaign.requests(Point(length, 1, mode)))

    rows = plan_points(
        geometry,
        hardware,
        parallelism,
        points,
        settings,
        requests=requests,
        passes=campaign.passes_of,
        measured=measured,
    )
    lengths = tuple(sorted({length for _, length in points}))
    return CampaignPlan(geometry, hardware, parallelism, settings, lengths, tuple(rows))


def save_plan(campaign: Campaign) -> Path | None:
    """Write the plan to <results>/.config/<config_hash>.plan.parquet; return its path, None where it cannot be made.

    A file with the same rows keeps its time, so that nothing that depends on it is made again.
    """
    path = campaign.results / ".config" / f"{campaign.labels['config_hash']}.plan.parquet"
    try:
        plan = plan_campaign(campaign)
    except (GeometryError, ConfigError):
        return None
    try:
        is_current = PlanTable.read(path).rows == plan.rows
    except DataError:
        is_current = False
    if not is_current:
        write_rows(path, PLAN, plan.rows, {"model": plan.geometry.name} | campaign.labels)
    return path


def _geometry(campaign: Campaign) -> Geometry:
    """Return the model's geometry; GeometryError says how to plan a model that the planner cannot read."""
    model = campaign.raw["model"]
    if model["source"] == "synthetic":
        return _synthetic_geometry(campaign)
    if model["geometry"]:
        return read_geometry(ROOT / model["geometry"])
    try:
        return read_geometry(campaign.model_path, model["revision"])
    except GeometryError as error:
        raise GeometryError(f"{error}; or name a config.json that the plan can read as model.geometry") from error


def _synthetic_geometry(campaign: Campaign) -> Geometry:
    """Return the geometry of the model that rule `model` makes from the same arguments, made already or not."""
    option, value = campaign.model_arguments
    if option == "--from-config":
        geometry = read_geometry(value)
    else:
        geometry = build_geometry(TINY_LLAMA | json.loads(value), "a tiny Llama")
    return replace(geometry, name=f"{geometry.name} (random weights)")


def _hardware(campaign: Campaign) -> Hardware | None:
    hardware = campaign.raw["hardware"]
    return load_hardware(hardware["gpu"], hardware["count"]) if hardware else None


def _settings(campaign: Campaign, longest: int) -> tuple[Settings, Parallelism]:
    recipe = campaign.recipe(campaign.modes[0], longest)
    space = recipe.env.get("VLLM_CPU_KVCACHE_SPACE") if campaign.raw["launcher"] != "external" else None
    settings = Settings(
        kv_dtype=recipe.kv_cache_dtype,
        gpu_memory_utilization=recipe.gpu_memory_utilization,
        batched_tokens=recipe.max_num_batched_tokens,
        max_new_tokens=campaign.raw["max_new_tokens"],
        headroom_tokens=recipe.max_model_len - longest,
        cpu_kv_gib=float(space) if space else None,
        aiter_version=recipe.versions.get("aiter"),
        passes=campaign.passes,
        scope=campaign.scope,
    )
    parallelism = Parallelism(
        tensor=recipe.tensor_parallel_size,
        pipeline=recipe.pipeline_parallel_size,
        decode_context=recipe.decode_context_parallel_size,
        data=recipe.data_parallel_size,
    )
    return settings, parallelism
