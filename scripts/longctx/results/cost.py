"""What a prefill, a query and a million tokens cost, and when a resident prefix pays.

Prices are of the time that the whole node is busy: seconds x GPUs x $/GPU-hour / 3600; idle time has no price.
"""

from collections.abc import Iterable, Mapping
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


@dataclass(frozen=True, slots=True)
class Amortisation:
    """A prompt of `length` tokens asked `queries` times with its prefix resident, answers included.

    speedup: the time of as many cold queries over resident_total_s.
    """

    length: int
    queries: int
    resident_total_s: float
    resident_per_query_s: float
    speedup: float


def amortise(length: int, cold_s: float, hot_s: float, queries: Iterable[int]) -> list[Amortisation]:
    """Return the totals after each number of queries, the first of which prefills: cold_s + (K - 1) hot_s."""
    totals = [(count, cold_s + (count - 1) * hot_s) for count in queries]
    return [Amortisation(length, count, total, total / count, count * cold_s / total) for count, total in totals]


def break_even(prefill_s: float, cold_s: float, hot_s: float) -> int | None:
    """Return after how many queries a prefix prefilled ahead of time is cheaper: the least K with
    prefill_s + K hot_s <= K cold_s; None if hot queries are no faster."""
    if hot_s >= cold_s:
        return None
    return max(1, -int(-prefill_s // (cold_s - hot_s)))


def answer_share(ttft_s: float | None, decode_tok_s: float | None, tokens: int = 1024) -> float | None:
    """Return the time to decode `tokens` as a share of the time to the first token (published run, 64Mi: 0.15 %)."""
    return tokens / decode_tok_s / ttft_s if ttft_s and decode_tok_s else None


def cold_row(hot: Mapping[str, Any], prefill: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the cold side of a summary row of hot queries: the row of cold prompts of its length; where none was
    measured, the prefill that made the prefix resident, with the hot queries' decode."""
    if prefill is not None and prefill["ttft_s_mean"] is not None:
        return prefill
    return {**hot, "ttft_s_mean": hot.get("prefix_ttft_s_mean")}


def query_s(row: Mapping[str, Any]) -> float | None:
    """Return seconds of one request of a schemas.SUMMARY row: TTFT + (max_new_tokens - 1) / decode; None if unknown."""
    ttft, decode, answer = row.get("ttft_s_mean"), row.get("decode_tok_s_mean"), row.get("max_new_tokens")
    if not ttft or not answer or (answer > 1 and not decode):
        return None
    return float(ttft) + ((answer - 1) / decode if decode and answer > 1 else 0.0)
