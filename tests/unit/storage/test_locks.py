"""What several nodes that share a results folder must keep apart: a point is measured by one of them."""

import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from longctx.campaign.campaign import Campaign, from_dict
from longctx.campaign.files import journal_path
from longctx.campaign.point import Point
from longctx.errors import LongctxError
from longctx.measure.point_record import exclusive
from longctx.storage import locks

POINT = Point(1024, 1)


@pytest.fixture
def campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Campaign:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(locks, "ORPHAN_GRACE_S", 0.3)
    return from_dict({"model": {"source": "synthetic", "weights": "dummy"}, "lengths": ["1Ki", "2Ki"]})


def _hold(campaign: Campaign, held: Any, release: Any) -> None:
    # Another node: its host lock is another file, the points are the same.
    real = os.uname()
    os.uname = lambda: os.uname_result(("Linux", "node7", *real[2:]))
    os.environ["SLURM_JOB_ID"] = "4711"
    with exclusive(campaign, [POINT]):
        held.set()
        release.wait(30)


@pytest.fixture
def other_node(campaign: Campaign) -> Iterator[int | None]:
    context = multiprocessing.get_context("fork")
    held, release = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(campaign, held, release))
    process.start()
    assert held.wait(30)
    yield process.pid
    release.set()
    process.join()


def test_a_point_is_measured_by_one_job_over_all_nodes(campaign: Campaign, other_node: int) -> None:
    said = rf"1Ki/pass1 is already being measured \(process {other_node} on node7, SLURM job 4711\); wait for it"
    with pytest.raises(LongctxError, match=said), exclusive(campaign, [POINT]):
        pass
    with exclusive(campaign, [Point(2048, 1), Point(1024, 2)]):
        assert (journal_path(campaign, Point(2048, 1)).with_suffix(".lock")).read_text().startswith("process ")


def test_a_disk_without_locks_stops_nobody(campaign: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    with exclusive(campaign, [POINT]):
        assert journal_path(campaign, POINT).with_suffix(".lock").exists()


def test_a_lock_names_its_holder_and_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lock"
    with locks.LockFile(path) as first, locks.LockFile(path) as second:
        assert first.take() is True
        first.sign("a longer name")
        first.sign("me")
        assert second.take() is False
        assert second.holder() == "me"
    with locks.LockFile(path) as third:
        assert third.take(wait_s=1.0) is True


def test_a_lock_for_life_is_alone_or_shared(tmp_path: Path) -> None:
    alone = locks.hold_for_life(tmp_path / "alone")
    assert alone is not None
    assert locks.hold_for_life(tmp_path / "alone") is None
    assert locks.lock_holder(tmp_path / "alone") == (os.uname().nodename, str(os.getpid()))
    alone.close()
    shared = locks.hold_for_life(tmp_path / "shared", shared=True)
    assert shared is not None
    assert locks.hold_for_life(tmp_path / "shared", shared=True) is None, "but it is held, too"
    shared.close()
    assert locks.hold_for_life(tmp_path / "shared") is None
    assert locks.lock_holder(tmp_path / "none") == ("unknown", "unknown")
