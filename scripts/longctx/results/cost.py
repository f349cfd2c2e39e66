"""What a prefill, a query and a million tokens cost.

Prices are of the time that the whole node is busy: seconds x GPUs x $/GPU-hour / 3600; idle time has no price.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from longctx.campaign.campaign import Campaign


@dataclass(frozen=True, slots=True)
class Price:
    """A node of `gpu_count` GPUs at `usd_per_gpu_hour`."""

    usd_per_gpu_hour: float
    gpu_count: int

    @classmethod
    def from_campaign(cls, campaign: Campaign) -> "Price | None":
        """Return the node's price where the configuration gives one."""
        hardware = campaign.config.hardware
        if not hardware or not hardware.usd_per_gpu_hour:
            return None
        return cls(float(hardware.usd_per_gpu_hour), int(hardware.count))

    def usd(self, seconds: float | None) -> float | None:
        """Return the price of `seconds` of the whole node."""
        return None if seconds is None else seconds * self.gpu_count * self.usd_per_gpu_hour / 3600


def cold_row(hot: Mapping[str, Any], prefill: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the cold side of a summary row of hot queries: the row of cold prompts of its length; where none was
    measured, the prefill that made the prefix resident, with the hot queries' decode."""
    resident = {**hot, "ttft_s_mean": hot.get("prefix_ttft_s_mean"), "prefill_s_mean": None}
    if prefill is not None and (prefill["ttft_s_mean"] is not None or resident["ttft_s_mean"] is None):
        return prefill
    return resident


def query_s(row: Mapping[str, Any], ttft_s: float | None) -> float | None:
    """Return seconds of one request of a schemas.SUMMARY row: TTFT + (max_new_tokens - 1) / decode; None if unknown."""
    decode, answer = row.get("decode_tok_s_mean"), row.get("max_new_tokens")
    if not ttft_s or not answer or (answer > 1 and not decode):
        return None
    return float(ttft_s) + ((answer - 1) / decode if decode and answer > 1 else 0.0)
