"""What mode sampled asks of a campaign, and what it refuses before anything starts."""

from typing import Any

import pytest
from longctx.campaign.campaign import from_dict
from longctx.campaign.point import Point
from longctx.campaign.recipe import LOG_ITERATIONS
from longctx.errors import ConfigError
from longctx.modes.sampled.campaign import sample_tokens

CHUNK = 16384
BASE: dict[str, Any] = {"model": {"source": "owner/model"}, "lengths": ["16Ki", "64Ki"], "modes": ["sampled"]}


@pytest.mark.parametrize(
    ("role", "length", "stages", "tokens"),
    [
        ("sample_short", 64 * CHUNK, 1, CHUNK),
        ("sample_long", 64 * CHUNK, 1, 3 * CHUNK),
        ("sample_long", 64 * CHUNK, 2, 5 * CHUNK),
        ("sample_long", 127 * CHUNK, 1, 3 * CHUNK),
        ("sample_short", 128 * CHUNK, 1, 1024),
        ("sample_long", 128 * CHUNK, 1, 1024 + CHUNK),
        ("sample_long", 128 * CHUNK, 2, 3 * CHUNK),
        ("sample_short", 128 * CHUNK, 2, CHUNK),
        ("sample_short", 1000, 1, 1000),
        ("sample_long", 2 * CHUNK + 5, 1, 2 * CHUNK + 5),
        ("whole", 64 * CHUNK, 1, 64 * CHUNK),
    ],
)
def test_how_many_tokens_a_request_computes(role: str, length: int, stages: int, tokens: int) -> None:
    assert sample_tokens(role, length, CHUNK, stages) == tokens


def test_every_length_has_pairs_and_some_a_whole_prompt_in_the_first_pass() -> None:
    campaign = from_dict(BASE | {"passes": 2, "sampled": {"repeats": 2, "whole": ["64Ki"]}})
    pairs = [("sample_short", 0), ("sample_long", 0), ("sample_short", 1), ("sample_long", 1)]
    assert campaign.requests(Point(16384, 1, "sampled")) == pairs
    assert campaign.requests(Point(65536, 1, "sampled")) == [*pairs, ("whole", 0)]
    assert campaign.requests(Point(65536, 2, "sampled")) == pairs
    again = from_dict(BASE | {"passes": 2, "sampled": {"whole": ["64Ki"], "whole_passes": 2}})
    assert again.requests(Point(65536, 2, "sampled"))[-1] == ("whole", 0)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"launcher": "external", "external": {"url": "http://host:1"}}, "modes: sampled needs a server started with"),
        ({"checkpoint": {"dir": "/tmp/c"}}, "checkpoint: mode sampled uses the KV connector itself"),
        ({"serve": {"prefix_caching": True}}, "serve.prefix_caching: mode sampled claims prefixes itself"),
        ({"sampled": {"whole": ["32Ki"]}}, "sampled.whole: 32Ki is not a length of the mode"),
        ({"sampled": {"lengths": ["1Ki"], "whole": ["16Ki"]}}, "sampled.whole: 16Ki is not a length of the mode"),
        ({"sampled": {"whole": ["16K"]}}, "sampled.whole.0: '16K' is not a length"),
        ({"sampled": {"repeats": 0}}, "sampled.repeats: 0 is less than the minimum of 1"),
        ({"sampled": {"fill_std": -1}}, "sampled.fill_std: -1 is less than the minimum of 0"),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        from_dict(BASE | changes)
    assert str(error.value).startswith(f"config key {sentence}")


def test_the_claimed_part_is_filled_only_where_a_mean_is_given() -> None:
    plain, filled = from_dict(BASE), from_dict(BASE | {"sampled": {"fill_mean": 0.0, "fill_std": 0.5}})
    connector = plain.recipe("sampled", 1024).kv_transfer_config or {}
    assert connector["kv_connector"] == "ClaimedPrefixConnector"
    assert connector["kv_connector_module_path"] == "claimed_prefix"
    connector = filled.recipe("sampled", 1024).kv_transfer_config or {}
    assert connector["kv_connector"] == "FilledPrefixConnector"
    assert connector["kv_connector_extra_config"] == {"fill_mean": 0.0, "fill_std": 0.5}
    assert plain.recipe_hash("sampled") != filled.recipe_hash("sampled")
    assert plain.recipe("sampled", 1024).prefix_caching is False


def test_its_server_logs_each_iteration_and_no_other_modes_does() -> None:
    campaign = from_dict(BASE | {"modes": ["prefill", "sampled"]})
    assert LOG_ITERATIONS in campaign.recipe("sampled", 65536).extra_args
    assert LOG_ITERATIONS not in campaign.recipe("prefill", 65536).extra_args
