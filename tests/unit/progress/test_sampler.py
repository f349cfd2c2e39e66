"""Tokens done, rate and time left from KV cache usage; and the difference between slow and dead."""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict

import pyarrow as pa
import pytest
from fakeserver import FakeServer
from hypothesis import given
from hypothesis import strategies as st
from longctx.progress import sampler, watchdog
from longctx.progress.eta import Cost, eta_s, fit_cost
from longctx.progress.sampler import PrefillProgress, Sampler
from longctx.progress.watchdog import Watchdog
from longctx.serve.metrics import Snapshot, scrape
from longctx.storage import schemas
from patching import replace_in

TOTAL = 1 << 20


class Clock:
    """A monotonic clock that moves when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that the tested code reads."""
    clock = Clock()
    for module in (sampler, watchdog):
        replace_in(monkeypatch, module, "time", monotonic=clock)
    return clock


def curve(cost: Cost, share: float, steps: int = 40, total: int = TOTAL) -> list[tuple[float, int]]:
    """Points of a prefill of this cost up to a share of its tokens, in equal chunks."""
    counts = [round(total * share * (i + 1) / steps) for i in range(steps)]
    return [(cost.at(count), count) for count in counts]


costs = st.builds(Cost, st.floats(1e-7, 1e-3), st.floats(0, 1e-8))


@given(cost=costs, share=st.floats(0.05, 0.95))
def test_eta_of_a_quadratic_prefill(cost: Cost, share: float) -> None:
    points = curve(cost, share)
    left = cost.at(TOTAL) - cost.at(points[-1][1])
    assert eta_s(points, TOTAL, points[-1][0]) == pytest.approx(left, rel=1e-3)


def test_a_linear_share_would_be_far_off() -> None:
    """At half the tokens of a purely quadratic prefill a quarter of the work is done: three times as long to go."""
    points = curve(Cost(0.0, 1e-10), 0.5)
    elapsed = points[-1][0]
    assert eta_s(points, TOTAL, elapsed) == pytest.approx(3 * elapsed)


@given(costs, st.floats(0.3, 3.0), st.floats(0.1, 0.9))
def test_a_prior_is_scaled_to_the_machine(cost: Cost, factor: float, share: float) -> None:
    points = curve(Cost(cost.linear_s * factor, cost.quadratic_s * factor), share)
    left = factor * (cost.at(TOTAL) - cost.at(points[-1][1]))
    assert eta_s(points, TOTAL, points[-1][0], prior=cost) == pytest.approx(left, rel=1e-6)


def test_before_the_first_sample() -> None:
    assert eta_s([], TOTAL, 0.0) is None
    assert eta_s([], TOTAL, 0.0, prior=Cost(1e-6, 0.0)) == pytest.approx(TOTAL * 1e-6)
    assert eta_s([(1.0, 1000)], TOTAL, 1.0) is None


def test_below_one_percent_of_the_prompt_nothing_is_forecast() -> None:
    points = [(float(k), 1000 * k) for k in range(1, 6)]
    assert eta_s(points, 500_001, 5.0) is None
    assert eta_s(points, 500_000, 5.0) == pytest.approx(495)


def test_time_passes_between_samples() -> None:
    points = curve(Cost(1e-5, 0.0), 0.5)
    now = points[-1][0]
    assert eta_s(points, TOTAL, now + 1) == pytest.approx(eta_s(points, TOTAL, now) - 1)
    assert eta_s(points, TOTAL, now + 1e9) == 0.0


def test_a_start_delay_does_not_matter() -> None:
    points = [(seconds + 60, tokens) for seconds, tokens in curve(Cost(1e-5, 1e-11), 0.5)]
    left = Cost(1e-5, 1e-11).at(TOTAL) - Cost(1e-5, 1e-11).at(points[-1][1])
    assert eta_s(points, TOTAL, points[-1][0]) == pytest.approx(left, rel=1e-3)


def test_a_prefix_taken_from_a_checkpoint_drops_out() -> None:
    """Half of the prompt came back from disk in a second: the later samples alone say how fast the rest is."""
    cost = Cost(1e-5, 1e-11)
    half = TOTAL // 2
    later = [(cost.at(n) - cost.at(half) + 2.0, n) for n in range(half, round(TOTAL * 0.9), 16384)]
    points = [(0.5, half // 2), (1.0, half), *later[1:]]
    left = cost.at(TOTAL) - cost.at(points[-1][1])
    assert eta_s(points, TOTAL, points[-1][0]) == pytest.approx(left, rel=0.05)


def test_a_hiccup_of_the_server_is_no_jump() -> None:
    cost = Cost(1e-5, 1e-11)
    points = [(seconds + (5.0 if i > 20 else 0.0), n) for i, (seconds, n) in enumerate(curve(cost, 0.8))]
    left = cost.at(TOTAL) - cost.at(points[-1][1])
    assert eta_s(points, TOTAL, points[-1][0], prior=cost) == pytest.approx(
        left * points[-1][0] / cost.at(points[-1][1]), rel=0.05
    )


@given(st.lists(st.tuples(st.floats(0, 1e5), st.integers(1, TOTAL)), max_size=20), st.none() | costs)
def test_eta_is_never_negative_nor_infinite(points: list[tuple[float, int]], prior: Cost | None) -> None:
    points = sorted(set(points))
    found = eta_s(points, TOTAL, points[-1][0] if points else 0.0, prior)
    assert found is None or (found >= 0 and math.isfinite(found))


def test_fitted_costs_are_never_negative() -> None:
    concave = [(math.sqrt(n), n) for n in range(1, 50)]
    cost = fit_cost(concave)
    assert cost is not None
    assert cost.linear_s >= 0
    assert cost.quadratic_s >= 0


# The sampler


def snapshots(usages: list[float | None], capacity: int | None = TOTAL * 2) -> Callable[[], Snapshot | None]:
    values: Iterator[float | None] = iter(usages)

    def read() -> Snapshot | None:
        usage = next(values)
        return None if usage is None else Snapshot({}, {}, kv_usage=usage, kv_capacity_tokens=capacity)

    return read


def look(sampler: Sampler, clock: Clock, times: int, step_s: float = 1.0) -> list[PrefillProgress]:
    looks = []
    for _ in range(times):
        clock.now += step_s
        looks.append(sampler.observe())
    return looks


def test_tokens_rate_and_eta(clock: Clock) -> None:
    usages = [i / 40 for i in range(1, 11)]
    sampler = Sampler(snapshots(usages), tokens_total=TOTAL)
    looks = look(sampler, clock, 10)
    assert [progress.tokens_done for progress in looks] == [round(usage * TOTAL * 2) for usage in usages]
    assert looks[-1].rate_tok_s == pytest.approx(TOTAL / 20)
    assert looks[-1].eta_s == pytest.approx(10.0, rel=1e-3)


def test_capacity_given_or_unknown(clock: Clock) -> None:
    given_capacity = Sampler(snapshots([0.5], None), tokens_total=100, capacity_tokens=100)
    assert look(given_capacity, clock, 1)[0].tokens_done == 50
    unknown = Sampler(snapshots([0.5, 0.6], None), tokens_total=100)
    for progress in look(unknown, clock, 2):
        assert (progress.tokens_done, progress.rate_tok_s, progress.eta_s) == (None, None, None)


def test_what_the_cache_held_before_is_not_counted_and_pages_are_not_over_counted(clock: Clock) -> None:
    before = Snapshot({}, {}, kv_usage=0.25)
    sampler = Sampler(snapshots([0.25, 0.5, 1.0], 400), tokens_total=250, before=before)
    assert [progress.tokens_done for progress in look(sampler, clock, 3)] == [0, 100, 250]


def test_a_server_that_does_not_answer_for_a_while(clock: Clock) -> None:
    sampler = Sampler(snapshots([0.1, None, None, 0.2]), tokens_total=TOTAL)
    done = [progress.tokens_done for progress in look(sampler, clock, 4)]
    assert done == [done[0], done[0], done[0], done[3]]
    assert done[3] > done[0]


def test_every_look_is_handed_on(clock: Clock) -> None:
    seen: list[PrefillProgress] = []
    sampler = Sampler(snapshots([0.1] * 3), tokens_total=TOTAL, on_sample=seen.append)
    assert look(sampler, clock, 3) == seen


def test_a_look_is_a_row_of_the_table() -> None:
    row = asdict(PrefillProgress(1.0, 10, 20, 10.0, 1.0)) | {"length": 20, "pass_index": 1}
    row |= {"request_index": 0, "role": "cold"}
    assert pa.Table.from_pylist([row], schema=schemas.PROGRESS).to_pylist() == [row]


def test_a_real_prefill_of_the_fake_server() -> None:
    """The thread sees the tokens grow as the server's own model says, and ends with the block."""
    import threading

    from fakeclient import ask

    seen: list[PrefillProgress] = []
    with FakeServer({"ttft_s": 1.5, "capacity": 4096}) as server:
        sampler = Sampler(
            lambda: scrape(server.url),
            tokens_total=1024,
            before=scrape(server.url),
            interval_s=0.05,
            on_sample=seen.append,
        )
        with sampler:
            answer = ask(server.url, on_token=sampler.token_came)
    done = [sample.tokens_done for sample in seen]
    assert answer.status == "ok"
    assert done == sorted(done)
    assert len(set(done)) > 2
    assert all(0 <= count <= 1024 for count in done)
    assert not [thread for thread in threading.enumerate() if thread.name == "progress"]


# The watchdog


def idle(watchdog: Watchdog, clock: Clock, activity: tuple[float | None, ...] | None, seconds: int) -> None:
    for _ in range(seconds):
        clock.now += 1
        watchdog.feed(activity)


def test_nothing_moves(clock: Clock) -> None:
    watchdog = Watchdog(60)
    watchdog.feed((0.1, 5.0))
    idle(watchdog, clock, (0.1, 5.0), 59)
    assert not watchdog.stalled()
    idle(watchdog, clock, (0.1, 5.0), 1)
    assert watchdog.stalled()


@pytest.mark.parametrize("moved", [(0.2, 5.0), (0.1, 6.0), (0.05, 5.0)])
def test_slow_is_not_dead(clock: Clock, moved: tuple[float, float]) -> None:
    watchdog = Watchdog(60)
    for activity in ((0.1, 5.0), moved):
        idle(watchdog, clock, activity, 59)
    assert not watchdog.stalled()


def test_a_token_in_the_stream_is_life(clock: Clock) -> None:
    watchdog = Watchdog(60)
    idle(watchdog, clock, (0.1,), 50)
    watchdog.touch()
    idle(watchdog, clock, (0.1,), 50)
    assert not watchdog.stalled()


def test_metrics_that_stop_answering(clock: Clock) -> None:
    watchdog = Watchdog(60)
    watchdog.feed((0.1,))
    idle(watchdog, clock, None, 60)
    assert watchdog.stalled()


def test_a_sampler_that_ended_hides_no_stall(clock: Clock) -> None:
    watchdog = Watchdog(60)
    watchdog.feed((0.1,))
    for second in range(1, 61):
        clock.now += 1
        assert watchdog.stalled() is (second == 60)


@pytest.mark.parametrize(("blind_limit_s", "stalled"), [(None, False), (500, True), (700, False)])
def test_a_server_without_metrics_is_judged_by_its_own_limit(
    clock: Clock, blind_limit_s: float | None, stalled: bool
) -> None:
    watchdog = Watchdog(60, blind_limit_s=blind_limit_s)
    idle(watchdog, clock, None, 600)
    assert watchdog.stalled() is stalled


@pytest.mark.parametrize("jump_s", [3600.0, 10**9, -3600.0])
def test_a_pause_of_our_own_is_no_stall(clock: Clock, jump_s: float) -> None:
    """A suspended laptop or a stopped process: the clock jumps, but nobody looked in between."""
    watchdog = Watchdog(60)
    watchdog.feed((0.1,))
    clock.now += jump_s
    assert not watchdog.stalled()
    watchdog.feed((0.1,))
    assert not watchdog.stalled()


def test_the_sampler_feeds_the_watchdog(clock: Clock) -> None:
    watchdog = Watchdog(10)
    sampler = Sampler(snapshots([0.1] * 30), tokens_total=TOTAL, watchdog=watchdog)
    look(sampler, clock, 5)
    assert not watchdog.stalled()
    sampler.token_came()
    look(sampler, clock, 9)
    assert not watchdog.stalled()
    look(sampler, clock, 9)
    assert watchdog.stalled()
