"""Prefill checkpoints: their folder, their disk, and the cold prefill time put together from several attempts."""

from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from longctx.campaign.campaign import Campaign, from_dict
from longctx.campaign.point import Point
from longctx.measure import checkpoints
from longctx.measure.checkpoints import (
    Attempt,
    checkpoint_folder,
    disk_shortage,
    remove_checkpoint,
    remove_foreign,
    seems_damaged,
    stitch,
)

GIB = 2**30


def campaign(tmp_path: Path, **changes: Any) -> Campaign:
    base = {"model": {"source": "owner/model"}, "lengths": ["1Ki"], "checkpoint": {"dir": str(tmp_path)}}
    return from_dict(base | changes)


def test_without_checkpoints_there_is_no_folder(tmp_path: Path) -> None:
    assert checkpoint_folder(campaign(tmp_path, checkpoint=None), [Point(1024, 1)]) is None


def test_each_point_has_a_folder_of_its_own(tmp_path: Path) -> None:
    found = {checkpoint_folder(campaign(tmp_path), [Point(n, p)]) for n in (1024, 2048) for p in (1, 2)}
    assert len(found) == 4
    assert all(path is not None and path.is_absolute() and tmp_path in path.parents for path in found)


def test_another_recipe_has_another_folder_and_the_old_one_goes(tmp_path: Path) -> None:
    points = [Point(1024, 1)]
    old, new = (
        checkpoint_folder(campaign(tmp_path), points),
        checkpoint_folder(campaign(tmp_path, serve={"kv_cache_dtype": "fp8"}), points),
    )
    neighbour = checkpoint_folder(campaign(tmp_path), [Point(1024, 11)])
    assert old is not None
    assert new is not None
    assert neighbour is not None
    for path in (old, new, neighbour):
        path.mkdir(parents=True)
        (path / "block").touch()
    remove_foreign(new)
    assert (old.exists(), new.exists(), neighbour.exists()) == (False, True, True)
    remove_checkpoint(new)
    remove_checkpoint(new)
    assert not new.exists()


def test_operational_settings_keep_the_folder(tmp_path: Path) -> None:
    points = [Point(1024, 1)]
    assert checkpoint_folder(campaign(tmp_path), points) == checkpoint_folder(
        campaign(tmp_path, measure={"stall_s": 5}), points
    )


def test_disk_need_is_checked_and_what_is_there_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(checkpoints.shutil, "disk_usage", lambda _: usage(100 * GIB, 98 * GIB, 2 * GIB))
    path = tmp_path / "point"
    assert disk_shortage(path, 2 * GIB) is None
    said = disk_shortage(path, 5 * GIB)
    assert said is not None
    assert f"the checkpoint folder {path} needs 5.0 GiB and its disk has 2.0 GiB free" in said
    with open(path / "block", "wb") as file:
        file.truncate(4 * GIB)
    assert disk_shortage(path, 5 * GIB) is None


def attempt(*samples: tuple[float, int | None], failed: bool = False) -> Attempt:
    return Attempt([{"elapsed_s": s, "tokens_done": n} for s, n in samples], failed)


def test_reached() -> None:
    assert attempt().reached == 0
    assert attempt((1.0, None), (2.0, 0), (3.0, 50)).reached == 50


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        ([], False),
        ([attempt((1, 50))], False),
        ([attempt((1, 50)), attempt((1, 50), failed=True)], False),
        ([attempt((1, 50)), attempt((1, 50), failed=True), attempt(failed=True)], True),
        ([attempt((1, 50)), attempt((1, 50)), attempt()], False),
        ([attempt((1, 50)), attempt((1, 60), failed=True), attempt((1, 60), failed=True)], False),
        ([attempt(failed=True)] * 3, True),
    ],
    ids=["none", "one", "failed once", "failed twice", "killed twice", "got further", "never got anywhere"],
)
def test_a_checkpoint_is_useless_when_it_fails_twice_and_gets_no_further(
    attempts: list[Attempt], expected: bool
) -> None:
    assert seems_damaged(attempts) is expected


def test_one_killed_attempt() -> None:
    first = attempt((1.0, 100), (2.0, 180), (3.0, 240))
    assert stitch([first], 180, 5.0) == {"resumed_from": 180, "stitched_prefill_s": 7.0, "stitched_error_s": 1.0}
    assert stitch([first], 210, 5.0)["stitched_prefill_s"] == 7.5
    assert stitch([first], 180, 5.0, 30.0) == {"resumed_from": 180, "stitched_prefill_s": 7.0, "stitched_error_s": 31.0}


def test_blocks_that_the_last_sample_did_not_see() -> None:
    first = attempt((1.0, 100), (2.0, 180))
    assert stitch([first], 190, 5.0) == {"resumed_from": 190, "stitched_prefill_s": 7.0, "stitched_error_s": 1.0}


def test_two_killed_attempts_add_up() -> None:
    first = attempt((1.0, 100), (2.0, 180), (3.0, 240))
    # 0.5 s to read the checkpoint and to show 200 tokens; 40 more in each second after.
    second = attempt((0.5, 200), (1.5, 240), (2.5, 280))
    found = stitch([first, second], 260, 5.0)
    reached_200 = 2.0 + 20 / 60
    assert found["stitched_prefill_s"] == pytest.approx(5.0 + (2.0 - 0.5) + reached_200)
    assert found["stitched_error_s"] == pytest.approx(1.0 + 0.5 + 1.0)


def test_an_attempt_that_got_no_further_adds_nothing() -> None:
    first = attempt((1.0, 100), (2.0, 180), (3.0, 240))
    again = attempt((0.5, 240), (0.7, 240))
    assert stitch([first, again], 235, 5.0) == stitch([first], 235, 5.0)
    assert stitch([first, again], 240, 5.0) == stitch([first], 240, 5.0)
    assert stitch([first, attempt()], 180, 5.0) == stitch([first], 180, 5.0)


@pytest.mark.parametrize("attempts", [[], [attempt()], [attempt((1.0, None), (2.0, None))], [attempt((1.0, 50))]])
def test_without_a_curve_nothing_is_stitched(attempts: list[Attempt]) -> None:
    assert stitch(attempts, 64, 5.0) == {"resumed_from": 64, "stitched_prefill_s": None, "stitched_error_s": None}


def test_without_the_servers_prefill_nothing_is_stitched() -> None:
    assert stitch([attempt((1.0, 100), (2.0, 200))], 64, None)["stitched_prefill_s"] is None


@given(
    linear=st.floats(1e-4, 1e-2),
    quadratic=st.floats(0, 1e-6),
    kills=st.lists(st.floats(0.15, 0.9), min_size=1, max_size=3),
    load_s=st.floats(0.0, 0.9),
    gap_s=st.floats(0.2, 1.0),
)
def test_the_truth_is_within_the_error_bound(
    linear: float, quadratic: float, kills: list[float], load_s: float, gap_s: float
) -> None:
    total, block = 8192, 16

    def at(tokens: float) -> float:
        return linear * tokens + quadratic * tokens * tokens

    def tokens_at(seconds: float) -> int:
        low, high = 0, total
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if at(middle) <= seconds else (low, middle - 1)
        return low

    attempts, taken_back, overhead_s = [], 0, 0.0
    for number, share in enumerate(sorted(kills)):
        killed_at = int(share * total)
        start_s = at(taken_back)
        spent_s = load_s if number else 0.0
        end_s = at(killed_at) - start_s + spent_s
        times = [k * gap_s for k in range(1, int(end_s / gap_s) + 1) if k * gap_s > spent_s]
        attempts.append(attempt(*((t, tokens_at(start_s + t - spent_s)) for t in times)))
        overhead_s += spent_s
        taken_back = max(taken_back, killed_at // block * block)
    assume(all(len(one.samples) > 1 for one in attempts))
    found = stitch(attempts, taken_back, at(total) - at(taken_back))
    assert abs(found["stitched_prefill_s"] - at(total)) <= found["stitched_error_s"] + overhead_s + 1e-6
