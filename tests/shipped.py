"""The campaigns that this repository ships, read as Snakemake reads them."""

import copy
import re
from pathlib import Path
from typing import Any

import yaml
from longctx.campaign.campaign import Campaign, from_dict

ROOT = Path(__file__).parents[1]
CAMPAIGNS = sorted((ROOT / "workflow" / "campaigns").glob("*.yaml"))


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Merge as Snakemake does with --configfile: key by key, lists as a whole."""
    result = copy.deepcopy(base)
    for key, value in over.items():
        inner = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if inner else value
    return result


def command_files(path: Path) -> list[Path]:
    """Return the configuration files in the command that the head of a campaign file gives."""
    command = re.search(r"--configfile ((?:workflow/campaigns/\S+\.yaml ?)+)", path.read_text())
    assert command is not None
    return [ROOT / file for file in command[1].split()]


def read_campaign(*files: Path) -> Campaign:
    """Return the campaign of `files` over config.yaml. Paths in them are relative to the checkout: call it there."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "config.yaml").read_text())
    for file in files:
        config = merged(config, yaml.safe_load(file.read_text()))
    return from_dict(config)
