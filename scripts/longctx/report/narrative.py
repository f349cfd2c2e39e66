"""The campaign in sentences: how far it got, what must not be overlooked, and what the numbers say."""

from collections.abc import Callable, Iterable
from operator import itemgetter

from longctx import units
from longctx.campaign.mode import COLD_MODE
from longctx.lengths import format_length
from longctx.report.faults import point_name
from longctx.report.mode import report_facet
from longctx.report.provenance import contract_entries
from longctx.results import summary
from longctx.results.campaign_results import CampaignResults

SHOWN_DAMAGED = 5  # files; each has a sentence of its own


def partial(results: CampaignResults) -> str:
    """Return one sentence if requests are missing, failed or doubtful, else ''."""
    by_mode = []
    for mode in results.modes:
        rows = [row for row in results.of_mode(mode) if row["n_missing"] or row["n"] == 0]
        if lengths := ", ".join(format_length(row["length"]) for row in rows):
            by_mode.append(f"{report_facet(mode).display_name} {lengths}")
    if not by_mode:
        return ""
    missing, failed = (sum(row[name] for row in results.summary) for name in ("n_missing", "n_failed"))
    requests = f"{missing} request{'s' if missing != 1 else ''}"
    return f"Partial: {requests} not measured yet, {failed} failed; incomplete: {'; '.join(by_mode)}."


def alerts(results: CampaignResults) -> list[str]:
    """Return what must not be overlooked: damaged files, lost checkpoints, contracts violated or not verified.

    An alert that cannot be written says so; the others stay.
    """
    return _written(results, (_damaged, _lost_checkpoints, _contract, *(report_facet(m).alerts for m in results.modes)))


def _damaged(results: CampaignResults) -> list[str]:
    shown, more = results.damaged[:SHOWN_DAMAGED], len(results.damaged) - SHOWN_DAMAGED
    rest = [f"Left out: {more} more files; the metadata of rows.parquet name them"] if more > 0 else []
    return [f"Left out: {text}" for text in shown] + rest


def _lost_checkpoints(results: CampaignResults) -> list[str]:
    return [
        f"{point_name(row)}: an earlier attempt left a checkpoint, but not one token was taken back from it; its disk"
        " and time were for nothing (is PYTHONHASHSEED fixed on every start?)"
        for row in results.rows
        if "no_external_hits" in summary.reasons_of(row)
    ]


def _contract(results: CampaignResults) -> list[str]:
    texts = []
    entries = contract_entries(results)
    if violated := sum(entry["ok"] is False for entry in entries):
        verb = "setting differs" if violated == 1 else "settings differ"
        texts.append(f"{violated} {verb} from what was asked for: see Contract")
    if unverified := {entry["setting"] for entry in entries if entry["ok"] is None and entry["asked"] is not None}:
        texts.append(f"Not proven by what the servers say: {', '.join(sorted(unverified))}: see Contract")
    return texts


def _written(results: CampaignResults, writers: Iterable[Callable[[CampaignResults], list[str]]]) -> list[str]:
    texts: list[str] = []
    for write in writers:
        try:
            texts += write(results)
        except Exception as error:
            texts.append(f"A sentence could not be written ({write.__name__.strip('_')}: {error!r}).")
    return texts


def narrative(results: CampaignResults) -> list[str]:
    """Return the campaign in a few sentences: how far it got, how it grows, what fits, what limits.

    A sentence that cannot be written says so; the others stay.
    """
    facets = [report_facet(mode) for mode in results.modes]
    reach, gain = [facet.reach for facet in facets], [facet.gain for facet in facets]
    texts = _written(results, (*reach, _stitched, _growth, *gain, _limit, _capacity))
    unproven = "Requests were answered, but none has a value that is proven: see the marks."
    return texts or [unproven if any(row["n"] for row in results.summary) else "Nothing has been measured yet."]


def _stitched(results: CampaignResults) -> list[str]:
    rows = [row for row in results.rows if row.get("stitched_prefill_s") is not None]
    if not rows:
        return []
    row = max(rows, key=itemgetter("length"))
    takes, error = units.human_seconds(row["stitched_prefill_s"]), units.human_seconds(row["stitched_error_s"])
    text = f"{format_length(row['length'])}, cold: interrupted, and continued from token {row['resumed_from']:,}"
    return [f"{text} of a checkpoint; the prefill put together takes {takes} ± {error}."]


def _growth(results: CampaignResults) -> list[str]:
    fits = {fit["name"]: fit for fit in reversed(results.fits) if fit.get("exponent") is not None}
    fit = fits.get("ttft_power_long") or fits.get("ttft_power")
    if fit is None:
        return []
    span = f"{format_length(fit['length_min'])} to {format_length(fit['length_max'])}"
    return [f"TTFT grows as L^{fit['exponent']:.2f} over {span} (R² {fit['r2']:.4f})."]


def _limit(results: CampaignResults) -> list[str]:
    shares = []
    if bounded := [row for row in results.of_mode(COLD_MODE) if row.get("ttft_over_bound")]:
        row = bounded[-1]
        shares.append(f"prefill at {format_length(row['length'])} {1 / row['ttft_over_bound']:.0%} of peak FLOP/s")
    if decoded := [row for mode in results.modes for row in results.of_mode(mode) if row.get("decode_over_bound")]:
        row = max(decoded, key=itemgetter("length"))
        where = format_length(row["length"]) + report_facet(row["mode"]).decode_condition
        shares.append(f"decode at {where} {row['decode_over_bound']:.0%} of memory bandwidth")
    return [f"Of the hardware's limit: {', '.join(shares)}."] if shares else []


def _capacity(results: CampaignResults) -> list[str]:
    planned = sorted((row for row in results.plan if row.get("capacity_tokens")), key=itemgetter("length"))
    if not planned:
        return []
    text = f"The KV cache holds about {planned[-1]['capacity_tokens'] / 1e6:,.1f} M tokens by the plan"
    if fitting := [row for row in planned if row["fits"]]:
        text += f", so {format_length(fitting[-1]['length'])} fits"
    if too_long := next((row for row in planned if row["fits"] is False), None):
        text += f" and {format_length(too_long['length'])} does not"
        text += f" ({too_long['reason']})" if too_long.get("reason") else ""
    return [f"{text}."]
