"""How a mode measures a point: the base of `longctx/modes/<mode>/measure.py`."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from longctx.campaign.campaign import Campaign
from longctx.campaign.mode import RequestKey, load_facet
from longctx.campaign.point import Point
from longctx.measure.row.verdict import CacheExpectation
from longctx.prompts import variants
from longctx.storage.schemas import COLD_ROLES
from longctx.storage.token_file import Ids

# Prompt variants (different from the first token on): measured requests take the first ones, their repetitions the
# next ones, warm-ups the last ones.
MEASURED_VARIANTS = 24


class MeasureFacet:
    """How the points of a mode are measured. Defaults are those of cold prompts."""

    def cache_expectation(self, role: str) -> CacheExpectation:
        """Return what the KV cache must hold when a request of this role reaches the server."""
        return CacheExpectation.COLD if role in COLD_ROLES else CacheExpectation.ANY

    def read_ids(self, path: Path, campaign: Campaign, point: Point, key: RequestKey, doubts: int) -> Ids:
        """Return the tokens of a request, its own from the first on; `doubts`: how many of its attempts were doubtful.

        After a doubt it has another prompt; killed or failed it keeps its own, for its checkpoint.
        """
        number = (point.pass_index - 1) * campaign.repeats(point.length) + key[1]
        return variants.read_ids(path, measured_variant(number, doubts))

    def new_tokens(self, campaign: Campaign, role: str) -> int:
        """Return how many tokens a request of this role asks for."""
        return campaign.config.max_new_tokens

    def claimed_tokens(self, campaign: Campaign, role: str, prompt_tokens: int, chunk_tokens: int | None) -> int | None:
        """Return how much of its prompt a request claims through the server's KV connector; None where none is asked.

        chunk_tokens: the server's prefill chunk, None where it does not say it.
        """
        return None

    def more_requests(self, campaign: Campaign, point: Point) -> list[RequestKey]:
        """Return requests that the measured rows call for beyond the point's own; asked again after they are done."""
        return []

    def requests(self, missing: Sequence[RequestKey]) -> Iterator[RequestKey]:
        """Yield, in order, the requests for a point that lacks `missing`; role 'warmup' prepares a fresh server."""
        yield from missing

    def first_fill(self, gpu: str | None) -> Mapping[str, Any]:
        """Return the fields of a small request that replaces the long warm-up, {} for none; gpu: None on a CPU."""
        return {}

    def forecast(self, campaign: Campaign) -> str | None:
        """Return a line about the lengths still to come, to be shown after each point; None for no line."""
        return None


def measured_variant(number: int, doubts: int) -> int:
    """Return the prompt variant of the request with this number within its length; another one after a doubt."""
    return number % MEASURED_VARIANTS + (MEASURED_VARIANTS if doubts else 0)


def measure_facet(mode: str) -> MeasureFacet:
    """Return how `mode` is measured."""
    facet: MeasureFacet = load_facet(mode, "measure")
    return facet
