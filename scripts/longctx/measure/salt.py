"""The salt of prompts: it makes the prompts of a campaign unlike those that a running server may still have cached."""

import secrets
from pathlib import Path

from longctx.campaign.campaign import Campaign
from longctx.campaign.files import journal_path
from longctx.campaign.point import Point
from longctx.storage.atomic import write_atomic

SALT_FILE = "journal/.salt"


def choose_salt(campaign: Campaign, point: Point) -> str | None:
    """Return the salt for a point's new journal; None where prompts are sent as they are.

    An external server outlives campaigns, so theirs have one of their own unless `prompt.salt` says otherwise. It is
    kept beside the journals. A point whose journal was set aside gets another one: its prompts may be cached.
    """
    salt = campaign.config.prompt.salt
    if salt is None and campaign.config.launcher == "external":
        salt = _campaign_salt(campaign.results / SALT_FILE)
    path = journal_path(campaign, point)
    times = len(list((path.parent / "superseded").glob(f"{path.stem}.*.jsonl")))
    return f"{salt}.{times}" if salt and times else salt or None


def _campaign_salt(path: Path) -> str:
    if not path.exists():
        write_atomic(path, secrets.token_hex(8).encode())
    return path.read_text(encoding="utf-8").strip()
