"""What each mode sends, in which order, and what it expects of the server's cache."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from longctx.campaign.campaign import Campaign, from_dict
from longctx.campaign.mode import MODES
from longctx.campaign.point import Point
from longctx.errors import ServerError
from longctx.measure.mode import MEASURED_VARIANTS, measure_facet
from longctx.measure.row.verdict import CacheExpectation
from longctx.prompts import variants

COLD, RESIDENT, FILLED, CLAIMED, ANY = CacheExpectation
PREFILL, REUSE, DECODE, SAMPLED = (measure_facet(mode) for mode in MODES)


@pytest.fixture(scope="module")
def campaign() -> Campaign:
    base: dict[str, Any] = {"model": {"source": "owner/model"}, "lengths": ["1Ki", "64Ki"], "modes": [*MODES]}
    return from_dict(base | {"repeats": {"count": 3, "up_to": "1Ki"}, "reuse": {"queries": 4, "suffix_tokens": 16}})


def test_what_each_role_expects_of_the_cache() -> None:
    for facet in (PREFILL, REUSE, DECODE):
        assert [facet.cache_expectation(role) for role in ("cold", "repeat", "warmup")] == [COLD, COLD, ANY]
    assert REUSE.cache_expectation("reuse") is RESIDENT
    assert DECODE.cache_expectation("decode_only") is FILLED


@pytest.fixture(autouse=True)
def _ids_that_name_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt is three times its variant, a query its own number."""
    monkeypatch.setattr(variants, "read_ids", lambda path, variant: np.array([variant] * 3, np.uint32))
    monkeypatch.setattr(variants, "read_suffix_ids", lambda path, query, count: np.array([query] * count, np.uint32))


def sent(campaign: Campaign, point: Point, key: tuple[str, int], doubts: int = 0) -> list[int]:
    return measure_facet(point.mode).read_ids(Path("prompt"), campaign, point, key, doubts).tolist()


def test_every_pass_and_repeat_of_a_cold_prompt_has_a_variant_of_its_own(campaign: Campaign) -> None:
    first_ids = [sent(campaign, Point(1024, p), ("cold", index))[0] for p in (1, 2) for index in range(3)]
    assert first_ids == [0, 1, 2, 3, 4, 5]
    assert sent(campaign, Point(65536, 2), ("cold", 0)) == [1, 1, 1]
    assert sent(campaign, Point(1024, 9), ("repeat", 1))[0] == 25 % MEASURED_VARIANTS


@pytest.mark.parametrize(("mode", "role"), [("prefill", "cold"), ("reuse", "cold"), ("decode_only", "decode_only")])
def test_a_doubtful_prompt_is_repeated_with_another_one(campaign: Campaign, mode: str, role: str) -> None:
    first, *again = [sent(campaign, Point(1024, 1, mode), (role, 0), doubts)[0] for doubts in (0, 1, 2)]
    assert again == [first + MEASURED_VARIANTS] * 2


def test_queries_share_the_prefix_of_their_pass_and_differ_themselves(campaign: Campaign) -> None:
    point = Point(1024, 2, "reuse")
    assert sent(campaign, point, ("cold", 0)) == [2, 2, 2]
    assert sent(campaign, point, ("reuse", 1)) == [2, 2, 2, *[0] * 16]
    assert sent(campaign, point, ("reuse", 2)) == [2, 2, 2, *[1] * 16]
    assert sent(campaign, point, ("reuse", 2), 1) == [2, 2, 2, *[1 + MEASURED_VARIANTS] * 16]
    assert sent(campaign, point, ("warmup", 100), 1) == [2, 2, 2], "the prefix itself"


def test_a_new_server_gets_the_prefix_before_its_first_query() -> None:
    assert list(REUSE.requests([("cold", 0), ("reuse", 1)])) == [("cold", 0), ("reuse", 1)]
    assert list(REUSE.requests([("reuse", 1), ("reuse", 2)])) == [("warmup", 100), ("reuse", 1), ("reuse", 2)]
    assert list(PREFILL.requests([("repeat", 1)])) == [("repeat", 1)]


def test_only_a_cpu_that_fills_its_cache_needs_another_first_request() -> None:
    assert DECODE.first_fill(None) == {"prompt_logprobs": 0}
    assert [DECODE.first_fill("H200"), PREFILL.first_fill(None), REUSE.first_fill(None)] == [{}, {}, {}]


def test_a_sample_claims_all_but_its_last_chunks_and_asks_for_one_token(campaign: Campaign) -> None:
    assert [SAMPLED.cache_expectation(role) for role in ("sample_short", "sample_long")] == [CLAIMED, CLAIMED]
    assert (SAMPLED.cache_expectation("whole"), SAMPLED.cache_expectation("warmup")) == (COLD, ANY)
    claims = [SAMPLED.claimed_tokens(campaign, role, 65536, 2048) for role in ("sample_short", "sample_long", "whole")]
    assert claims == [63488, 59392, None]
    assert SAMPLED.claimed_tokens(campaign, "sample_long", 1024, 2048) == 0
    assert [SAMPLED.new_tokens(campaign, role) for role in ("sample_short", "sample_long")] == [1, 1]
    assert SAMPLED.new_tokens(campaign, "whole") == PREFILL.new_tokens(campaign, "cold") == 128
    with pytest.raises(ServerError, match="does not say the size of its prefill chunks") as error:
        SAMPLED.claimed_tokens(campaign, "sample_short", 65536, None)
    assert error.value.reason == "unsupported"


def test_only_sampled_claims(campaign: Campaign) -> None:
    for facet in (PREFILL, REUSE, DECODE):
        assert facet.claimed_tokens(campaign, "cold", 65536, 2048) is None
