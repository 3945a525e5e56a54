"""When a night will end: its beginning, its middle, and what it makes of lost and slow workers."""

from __future__ import annotations

import math

import pytest

from nightshift.jobset.fleet.forecast import (
    IN_TIME,
    LATE,
    PRIOR_S,
    WINDOW_S,
    Expected,
    Fleet,
    Forecast,
    Rows,
    Watch,
    WatchState,
    ends,
    missing,
)

pytestmark = pytest.mark.unit

BEGAN = 1_000_000.0
READY = BEGAN + 600
DEADLINE = BEGAN + 3 * 3600
NO_ROWS = Rows(left=100_000, done=0, recent=0)


def a_fleet(running: int, worked_s: float = 0.0, ready_at: float = READY) -> Fleet:
    return Fleet(wanted=10, running=running, worked_s=worked_s, ready_at=ready_at)


def steady(watch: Watch, *, speed: float, seconds: float, workers: int = 10, begins: float = READY) -> Forecast:
    """Looks once a minute at workers that run without a break, at so many rows a second each."""
    found, done = None, 0
    for minute in range(int(seconds // 60) + 1):
        now = begins + minute * 60
        recent = int(speed * workers * min(watch.window_s(now), minute * 60))
        done = int(speed * workers * minute * 60)
        rows = Rows(left=100_000 - done, done=done, recent=recent)
        found = watch.forecast(now, rows, {"a": a_fleet(workers, worked_s=workers * minute * 60)}, deadline=DEADLINE)
    assert found is not None
    return found


class TestTheBeginning:
    def test_before_its_start_up_is_over_a_night_is_expected_as_it_was_planned(self) -> None:
        found = Watch(WatchState(1.0), 60).forecast(BEGAN, NO_ROWS, {"a": a_fleet(0)}, deadline=DEADLINE)

        assert found.end_s == pytest.approx(600 + 100_000 / 10)
        assert not Watch(WatchState(2.0), 60).forecast(BEGAN, NO_ROWS, {"a": a_fleet(0)}, deadline=DEADLINE).late

    def test_nobody_knows_a_speed_before_the_first_chunk_if_the_plan_had_none(self) -> None:
        watch = Watch(WatchState(0.0), 60)

        assert watch.forecast(BEGAN, NO_ROWS, {"a": a_fleet(0)}, deadline=DEADLINE).end_s is None
        assert steady(Watch(WatchState(0.0), 0), speed=2.0, seconds=1200).speed == pytest.approx(2.0)

    def test_a_first_chunk_that_is_not_committed_yet_is_no_sign_of_slowness(self) -> None:
        watch = Watch(WatchState(2.0), 60)
        watch.forecast(READY, NO_ROWS, {"a": a_fleet(10)}, deadline=DEADLINE)

        assert watch.forecast(READY + 60, NO_ROWS, {"a": a_fleet(10, worked_s=600)}, deadline=DEADLINE).speed == 2.0

    def test_workers_that_have_been_at_it_for_long_without_a_chunk_are_slow(self) -> None:
        watch = Watch(WatchState(2.0), 60)
        watch.forecast(READY, NO_ROWS, {"a": a_fleet(10)}, deadline=DEADLINE)

        found = watch.forecast(READY + 600, NO_ROWS, {"a": a_fleet(10, worked_s=6000)}, deadline=DEADLINE)

        assert found.speed == pytest.approx(30 * 10 / 6000)
        assert found.late

    def test_a_fleet_whose_start_up_is_over_counts_with_what_runs(self) -> None:
        found = Watch(WatchState(1.0), 60).forecast(READY + 1, NO_ROWS, {"a": a_fleet(0)}, deadline=DEADLINE)

        assert found.end_s == math.inf
        assert found.late

    def test_one_that_comes_early_is_there(self) -> None:
        found = Watch(WatchState(1.0), 60).forecast(BEGAN + 60, NO_ROWS, {"a": a_fleet(10)}, deadline=DEADLINE)

        assert found.fleets["a"] == Expected(10)


class TestWhatWasSeen:
    @pytest.mark.parametrize("truth", [0.5, 1.0, 2.0])
    def test_outweighs_the_plan_after_a_while(self, truth: float) -> None:
        assert steady(Watch(WatchState(1.0), 0), speed=truth, seconds=PRIOR_S + 120).speed == pytest.approx(truth)

    def test_counts_little_at_first(self) -> None:
        assert 0.6 < steady(Watch(WatchState(1.0), 0), speed=0.5, seconds=120).speed < 0.9

    def test_a_storm_shows_as_fewer_workers(self) -> None:
        watch = Watch(WatchState(1.0), 0)
        steady(watch, speed=1.0, seconds=WINDOW_S)
        now = READY + WINDOW_S

        for minute in range(1, 16):
            fleet = a_fleet(2, worked_s=10 * WINDOW_S + 2 * 60 * minute)
            rows = Rows(80_000, 20_000, recent=int(10 * (WINDOW_S - 60 * minute) + 120 * minute))
            found = watch.forecast(now + 60 * minute, rows, {"a": fleet}, deadline=DEADLINE)

        assert found.fleets["a"].workers == pytest.approx(2)
        assert found.speed == pytest.approx(1.0, rel=0.1)

    @pytest.mark.parametrize("last", [0, 10])
    def test_workers_that_come_and_go_count_as_many_as_there_were_on_average(self, last: int) -> None:
        """Whatever runs at the moment of the look."""
        watch = Watch(WatchState(2.0), 60)
        for minute in range(9):
            running = last if minute % 2 == 0 else 10 - last
            fleet = a_fleet(running, worked_s=minute * 5 * 60)
            rows = Rows(left=100_000, done=600 * minute, recent=600 * minute)
            found = watch.forecast(READY + minute * 60, rows, {"a": fleet}, deadline=DEADLINE)

        assert running == last
        assert found.fleets["a"] == Expected(5)

    def test_the_next_watch_goes_on_with_it(self) -> None:
        watch = Watch(WatchState(1.0), 0)
        late = steady(watch, speed=0.5, seconds=1200)

        again = Watch(watch.state, 0)
        found = again.forecast(READY + 1260, Rows(94_000, 6_000, 0), {"a": a_fleet(10)}, deadline=DEADLINE)

        assert found.speed == pytest.approx(0.5)
        assert found.late_s > late.late_s > 0


class TestLate:
    def look(self, watch: Watch, now: float, share: float) -> Forecast:
        """A forecast that ends after this share of the time left."""
        left_s = DEADLINE - now
        fleets = {"a": Fleet(10, 10, 10 * (now - BEGAN), BEGAN)}
        return watch.forecast(now, Rows(int(share * left_s * 10), 0, 0), fleets, deadline=DEADLINE)

    def test_the_band_keeps_what_was_said_last(self) -> None:
        between = (LATE + IN_TIME) / 2
        watch = Watch(WatchState(1.0), 60)
        said = [self.look(watch, BEGAN + 10 * at, share).late for at, share in enumerate([between, 1.0, between, 0.8, between])]

        assert said == [False, True, True, False, False]

    def test_it_says_for_how_long(self) -> None:
        watch = Watch(WatchState(1.0), 60)
        self.look(watch, BEGAN, 1.2)

        assert self.look(watch, BEGAN + 240, 1.2).late_s == 240

    def test_workers_that_go_on_after_a_pause_have_their_start_up_again(self) -> None:
        watch = Watch(WatchState(1.0), 60, start_up_s=600)
        watch.forecast(BEGAN + 3000, NO_ROWS, {"a": a_fleet(0)}, deadline=DEADLINE, paused=True)
        found = watch.forecast(BEGAN + 3060, NO_ROWS, {"a": a_fleet(0)}, deadline=DEADLINE)
        again = Watch(WatchState(1.0, resumed_at=watch.state.resumed_at), 60, start_up_s=600)

        assert found.fleets["a"] == Expected(10, 540)
        assert again.forecast(BEGAN + 3120, NO_ROWS, {"a": a_fleet(0)}, deadline=DEADLINE).fleets["a"] == Expected(10, 480)

    def test_a_paused_night_is_not_late_and_its_workers_are_not_slow(self) -> None:
        watch = Watch(WatchState(1.0), 60)
        self.look(watch, BEGAN, 1.2)
        found = watch.forecast(BEGAN + 60, NO_ROWS, {"a": a_fleet(0)}, deadline=DEADLINE, paused=True)

        assert (found.late, found.end_s, found.speed) == (False, None, 1.0)
        assert self.look(watch, BEGAN + 120, 1.2).late_s < 60


class TestArithmetic:
    def test_nothing_left(self) -> None:
        assert ends(0, 0.0, []) == 0.0

    def test_fleets_that_come_one_after_the_other(self) -> None:
        assert ends(1000, 1.0, [Expected(1), Expected(1, ready_in_s=400)]) == pytest.approx(700)
        assert ends(300, 1.0, [Expected(1), Expected(1, ready_in_s=400)]) == pytest.approx(300)

    @pytest.mark.parametrize("ready_in_s", [0.0, 600.0])
    @pytest.mark.parametrize("left", [10_000, 50_000, 99_999])
    def test_the_workers_that_are_missing_end_it_in_time_and_one_less_does_not(self, left: int, ready_in_s: float) -> None:
        fleets = {"a": Expected(3), "b": Expected(2, ready_in_s=1200)}
        forecast = Forecast(math.inf, 7200, 1.0, 1.0, left, fleets)

        more = missing(forecast, 3600, ready_in_s)

        assert more is not None
        end_s = ends(left, 1.0, [*fleets.values(), Expected(more, ready_in_s)])
        assert end_s is not None
        assert end_s <= 3600 + 1e-6
        if more:
            fewer = ends(left, 1.0, [*fleets.values(), Expected(more - 1, ready_in_s)])
            assert fewer is not None
            assert fewer > 3600

    def test_none_could_if_they_start_too_late(self) -> None:
        assert missing(Forecast(1e9, 600, 1.0, 1.0, 1000, {}), 500, 600) is None
