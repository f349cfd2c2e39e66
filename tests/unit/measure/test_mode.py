"""What each mode sends, in which order, and what it expects of the server's cache."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from longctx.campaign.campaign import Campaign, from_dict
from longctx.campaign.mode import MODES
from longctx.campaign.point import Point
from longctx.measure.mode import MEASURED_VARIANTS, MeasureFacet, RequestPrompt, measure_facet
from longctx.measure.verdict import CacheExpectation
from longctx.prompts import variants

COLD, RESIDENT, FILLED, ANY = CacheExpectation
PREFILL, REUSE, DECODE = (measure_facet(mode) for mode in MODES)


@pytest.fixture(scope="module")
def campaign() -> Campaign:
    base: dict[str, Any] = {"model": {"source": "owner/model"}, "lengths": ["1Ki", "64Ki"], "modes": [*MODES]}
    return from_dict(base | {"repeats": {"count": 3, "up_to": "1Ki"}, "reuse": {"queries": 4, "suffix_tokens": 16}})


def test_what_each_role_expects_of_the_cache() -> None:
    for facet in (PREFILL, REUSE, DECODE):
        assert [facet.cache_expectation(role) for role in ("cold", "repeat", "warmup")] == [COLD, COLD, ANY]
    assert REUSE.cache_expectation("reuse") is RESIDENT
    assert DECODE.cache_expectation("decode_only") is FILLED


def test_every_pass_and_repeat_of_a_cold_prompt_has_a_variant_of_its_own(campaign: Campaign) -> None:
    sent = [PREFILL.prompt(campaign, Point(1024, p), ("cold", index), 0).variant for p in (1, 2) for index in range(3)]
    assert sent == [0, 1, 2, 3, 4, 5]
    assert PREFILL.prompt(campaign, Point(65536, 2), ("cold", 0), 0) == RequestPrompt(1)
    assert PREFILL.prompt(campaign, Point(1024, 9), ("repeat", 1), 0).variant == 25 % MEASURED_VARIANTS


@pytest.mark.parametrize(
    ("facet", "mode", "role"),
    [(PREFILL, "prefill", "cold"), (REUSE, "reuse", "cold"), (DECODE, "decode_only", "decode_only")],
)
def test_a_doubtful_prompt_is_repeated_with_another_one(
    campaign: Campaign, facet: MeasureFacet, mode: str, role: str
) -> None:
    first, *again = [facet.prompt(campaign, Point(1024, 1, mode), (role, 0), doubts).variant for doubts in (0, 1, 2)]
    assert again == [first + MEASURED_VARIANTS] * 2


def test_queries_share_the_prefix_of_their_pass_and_differ_themselves(campaign: Campaign) -> None:
    point = Point(1024, 2, "reuse")
    assert REUSE.prompt(campaign, point, ("cold", 0), 0) == RequestPrompt(2)
    assert [REUSE.prompt(campaign, point, ("reuse", index), 0) for index in (1, 2)] == [
        RequestPrompt(2, 0, 16),
        RequestPrompt(2, 1, 16),
    ]
    assert REUSE.prompt(campaign, point, ("reuse", 2), 1) == RequestPrompt(2, 1 + MEASURED_VARIANTS, 16)
    assert REUSE.prompt(campaign, point, ("warmup", 100), 1) == RequestPrompt(2), "the prefix itself"


def test_a_new_server_gets_the_prefix_before_its_first_query() -> None:
    assert list(REUSE.requests([("cold", 0), ("reuse", 1)])) == [("cold", 0), ("reuse", 1)]
    assert list(REUSE.requests([("reuse", 1), ("reuse", 2)])) == [("warmup", 100), ("reuse", 1), ("reuse", 2)]
    assert list(PREFILL.requests([("repeat", 1)])) == [("repeat", 1)]


def test_only_a_cpu_that_fills_its_cache_needs_another_first_request() -> None:
    assert DECODE.first_fill(None) == {"prompt_logprobs": 0}
    assert [DECODE.first_fill("H200"), PREFILL.first_fill(None), REUSE.first_fill(None)] == [{}, {}, {}]


def test_a_query_stands_behind_its_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "read_ids", lambda path, variant: np.array([variant] * 3, np.uint32))
    monkeypatch.setattr(variants, "read_suffix_ids", lambda path, query, count: np.array([query] * count, np.uint32))
    assert RequestPrompt(5).read(Path("p")).tolist() == [5, 5, 5]
    assert RequestPrompt(5, 7, 2).read(Path("p")).tolist() == [5, 5, 5, 7, 7]
