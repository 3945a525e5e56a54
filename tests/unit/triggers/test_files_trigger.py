"""The watcher of files: which periods an object counts for, what is remembered, what an outage costs."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.triggers.base import TriggerEvent

from nightshift.spec import periods
from nightshift.store import StoreUnavailable
from nightshift.triggers import files
from nightshift.triggers.files import FilesTrigger, periods_of

pytestmark = pytest.mark.unit

EVERY = "10m"
SEVEN, TEN, TWENTY = "2026-11-19T0700", "2026-11-19T0710", "2026-11-19T0720"
SECOND = timedelta(seconds=1)
LAST = periods.at(datetime.now(UTC), EVERY)


def at(minute: int, second: int = 0, microsecond: int = 0) -> datetime:
    return datetime(2026, 11, 19, 7, minute, second, microsecond, tzinfo=UTC)


def ago(count: int) -> str:
    """The period that was over `count` periods before the last one that is settled."""
    name = LAST
    for _ in range(count + 1):
        name = periods.before(name, EVERY)
    return name


class Airflow:
    """What Airflow keeps for the asset. refusals: how many questions it does not answer. notes_nothing: it only reads.
    rounds: the seconds that each answer takes, one after the other; the last one stays."""

    def __init__(self, following: str | None = None) -> None:
        self.kept: dict[str, Any] = {} if following is None else {"next": following}
        self.refusals = 0
        self.notes_nothing = False
        self.rounds = [0.0]

    def get(self, key: str) -> Any:
        time.sleep(self.rounds[0])
        del self.rounds[: len(self.rounds) > 1]
        self._answer()
        return self.kept.get(key)

    def set(self, key: str, value: Any) -> None:
        self._answer(self.notes_nothing)
        self.kept[key] = value

    def _answer(self, refused: bool = False) -> None:
        self.refusals -= 1
        if refused or self.refusals >= 0:
            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR))


class Watching(FilesTrigger):
    """A trigger whose folder is a dict of counts. looks: what it was asked. outages: how often it still fails."""

    def __init__(self, airflow: Airflow, folder: dict[str, int], outages: int = 0) -> None:
        super().__init__(url="gs://shop/texts", every=EVERY, settle="1s")
        self.asset_state_store = airflow  # type: ignore[assignment]
        self._log = logging.getLogger("watching")  # type: ignore[assignment]
        self.folder, self.outages = folder, outages
        self.looks: list[tuple[str, str]] = []

    def _list(self, first: str, last: str) -> dict[str, int]:
        if self.outages:
            self.outages -= 1
            raise StoreUnavailable("list gs://shop/texts: 503")
        self.looks.append((first, last))
        return {name: count for name, count in self.folder.items() if first <= name <= last}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "APART_S", 0)
    monkeypatch.setattr(files, "PAUSE_S", 0)


async def take(events: AsyncIterator[TriggerEvent], count: int) -> list[str]:
    return [(await anext(events)).payload["partition"] for _ in range(count)]


class TestWhichPeriod:
    def found(self, *created: datetime, first: str = SEVEN, last: str = TWENTY) -> dict[str, int]:
        return periods_of(created, first, last, every=EVERY, settle="1m")

    def test_an_object_counts_for_the_period_in_which_it_was_created(self) -> None:
        assert self.found(at(13), at(19, 59, 999999), at(15)) == {TEN: 3}

    def test_one_of_the_settling_time_counts_for_the_period_before_too(self) -> None:
        assert self.found(at(10)) == {SEVEN: 1, TEN: 1}
        assert self.found(at(10, 59, 999999)) == {SEVEN: 1, TEN: 1}
        assert self.found(at(11)) == {TEN: 1}

    def test_others_than_those_that_are_asked_for_are_left_out(self) -> None:
        assert self.found(at(9, 59), at(20, 30), at(21), first=TEN, last=TEN) == {TEN: 1}

    def test_midnight_is_a_border_like_others(self) -> None:
        midnight = datetime(2026, 11, 20, tzinfo=UTC)
        name, before = "2026-11-20T0000", "2026-11-19T2350"

        assert self.found(midnight, midnight - SECOND, first=before, last=name) == {before: 2, name: 1}

    def test_every_moment_of_a_day_has_its_period(self) -> None:
        """Beside a plain scan of all periods."""
        moments = [datetime(2026, 11, 19, tzinfo=UTC) + timedelta(seconds=n * 37) for n in range(2340)]
        names = ["2026-11-19T0000"]
        while len(names) < 144:
            names.append(periods.after(names[-1], EVERY))
        bounds = {name: periods.bounds(name, EVERY) for name in names}
        settle = timedelta(minutes=1)
        counted = {name: sum(start <= each < end + settle for each in moments) for name, (start, end) in bounds.items()}

        assert periods_of(moments, names[0], names[-1], every=EVERY, settle="1m") == counted
        assert all(periods.before(later, EVERY) == earlier for earlier, later in pairwise(names))


class TestWatching:
    async def test_it_begins_with_the_present_period_and_remembers_that(self) -> None:
        airflow = Airflow()
        before = periods.holding(datetime.now(UTC), EVERY)

        first = await Watching(airflow, {})._remembered()

        assert first in (before, periods.after(before, EVERY))
        assert airflow.kept == {"next": first}

    async def test_each_period_with_objects_is_fired_once_in_order(self) -> None:
        airflow = Airflow(ago(5))
        trigger = Watching(airflow, {ago(4): 2, ago(2): 1, ago(9): 7})
        events = trigger.run()

        fired = [await anext(events), await anext(events)]
        assert [event.payload for event in fired] == [
            {"version": 1, "partition": ago(4), "every": EVERY, "url": "gs://shop/texts", "objects": 2},
            {"version": 1, "partition": ago(2), "every": EVERY, "url": "gs://shop/texts", "objects": 1},
        ]
        assert len(trigger.looks) == 1

    async def test_one_that_dies_before_it_remembers_fires_again_and_loses_none(self) -> None:
        airflow = Airflow(ago(5))
        folder = {ago(4): 1, ago(3): 1, ago(1): 1}

        assert await take(Watching(airflow, folder).run(), 1) == [ago(4)]
        assert await take(Watching(airflow, folder).run(), 2) == [ago(4), ago(3)]
        assert airflow.kept == {"next": ago(3)}
        assert await take(Watching(airflow, folder).run(), 2) == [ago(3), ago(1)]

    async def test_what_was_over_long_ago_is_named_and_not_fired(self, caplog: pytest.LogCaptureFixture) -> None:
        airflow = Airflow(ago(400))

        with caplog.at_level("WARNING"):
            assert await take(Watching(airflow, {ago(350): 1, ago(200): 1, ago(2): 1}).run(), 1) == [ago(2)]
        assert f"over more than a day before (from {ago(350)} to {ago(200)}, in all: 2). Airflow gets no event" in caplog.text

    def test_a_period_that_began_exactly_a_day_before_is_fired(self) -> None:
        last = ago(2)
        exactly = periods.holding(periods.bounds(last, EVERY)[1] - timedelta(days=1), EVERY)

        assert Watching(Airflow(last), {})._within_reach({exactly: 1, periods.before(exactly, EVERY): 1}, last) == [exactly]

    async def test_an_outage_of_storage_is_waited_out(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level("WARNING"):
            assert await take(Watching(Airflow(ago(3)), {ago(2): 1}, outages=3).run(), 1) == [ago(2)]
        assert caplog.text.count("gs://shop/texts cannot be watched now (list gs://shop/texts: 503)") == 3

    async def test_airflow_that_does_not_take_it_down_loses_no_period(self, caplog: pytest.LogCaptureFixture) -> None:
        airflow = Airflow(ago(3))
        events = Watching(airflow, {ago(2): 1, ago(1): 1}).run()

        first = await take(events, 1)
        airflow.notes_nothing = True
        with caplog.at_level("WARNING"):
            assert first + await take(events, 1) == [ago(2), ago(1)]
        assert "Airflow did not take down that periods before" in caplog.text
        assert airflow.kept == {"next": ago(3)}

    async def test_it_is_remembered_only_after_airflow_has_answered_at_once_twice(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        airflow = Airflow(ago(3))
        events = Watching(airflow, {ago(2): 1, ago(1): 1}).run()

        first = await take(events, 1)
        airflow.refusals = 4
        with caplog.at_level("WARNING"):
            assert first + await take(events, 1) == [ago(2), ago(1)]
        assert caplog.text.count("cannot be watched now (API_SERVER_ERROR") == 4
        assert airflow.refusals == -3  # Two answers, and the note.
        assert airflow.kept == {"next": ago(1)}

    async def test_a_state_that_is_not_one_is_named_and_left(self, caplog: pytest.LogCaptureFixture) -> None:
        airflow = Airflow("yesterday")

        with caplog.at_level("WARNING"):
            first = await Watching(airflow, {})._remembered()
        assert "Airflow's state store has 'yesterday' for gs://shop/texts" in caplog.text
        assert airflow.kept == {"next": first}

    async def test_rounds_that_are_always_slow_are_the_usual_ones(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Rounds of 2.1 s fired one event and then none, without a line."""
        monkeypatch.setattr(files, "AT_ONCE_S", 0.01)
        airflow = Airflow(ago(5))
        airflow.rounds = [0.05]

        with caplog.at_level("INFO"):
            fired = await take(Watching(airflow, {ago(4): 1, ago(3): 1, ago(2): 1}).run(), 3)
        assert fired == [ago(4), ago(3), ago(2)]
        assert airflow.kept == {"next": ago(2)}
        assert "not certain" not in caplog.text

    async def test_a_round_that_is_slower_than_usual_is_told_and_waited_for(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(files, "AT_ONCE_S", 0.1)
        airflow = Airflow(ago(5))
        airflow.rounds = [0.0, 0.0, 0.3, 0.0]

        with caplog.at_level("INFO"):
            assert await take(Watching(airflow, {ago(4): 1, ago(3): 1}).run(), 2) == [ago(4), ago(3)]
        assert "Waiting until Airflow has stored the last event for gs://shop/texts: it answered in 0.3 s" in caplog.text
        assert len(airflow.rounds) == 1
        assert airflow.kept == {"next": ago(3)}

    async def test_an_airflow_that_answers_ever_more_slowly_does_not_stop_it_and_no_event_is_lost(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(files, "AT_ONCE_S", 0.01)
        monkeypatch.setattr(files, "TAKEN_S", 0.2)
        airflow = Airflow(ago(5))
        airflow.rounds = [0.0, 0.5, 1.5, 0.0]
        folder = {ago(4): 1, ago(3): 1, ago(2): 1}

        with caplog.at_level("WARNING"):
            assert await take(Watching(airflow, folder).run(), 3) == [ago(4), ago(3), ago(2)]
        assert caplog.text.count("it is not certain that Airflow has stored the last event for gs://shop/texts") == 2
        # Nothing was remembered of which it is not certain: a triggerer that begins now fires them again.
        assert airflow.kept == {"next": ago(5)}
        airflow.rounds = [0.0]
        assert await take(Watching(airflow, folder).run(), 2) == [ago(4), ago(3)]
