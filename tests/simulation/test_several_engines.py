"""Several engines in a pod, of which some are ill, with the true waits: the default time limit, and the driver's own patience.

Whatever an ill engine does, its rows are with another one within the time limit of a request and two minutes, none is lost, and
the run ends in its first attempt. (`pytest -rP` shows the minutes.)
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest

from nightshift.driver.attribution import ALONE_S, Attribution
from nightshift.driver.engine import REQUEST_TIMEOUT_S
from nightshift.driver.engines import Engines
from nightshift.driver.request_loop import RequestLoop
from nightshift.driver.scheduler import Group
from nightshift.driver.worker import WorkerLimits
from tests.simulation.engines import Climate, Failing, Fails
from tests.simulation.replaced import Change, replaced
from tests.simulation.rows import Nature
from tests.simulation.scenario import Event
from tests.simulation.test_invariants import a_scenario, run
from tests.simulation.world import Report

pytestmark = [pytest.mark.simulation, pytest.mark.gate]

MOVED_S = 120.0
ROW_S = 20.0
NEVER = 1e9
MOMENTS = ("first", "middle", "last")
ILL = (Fails.HANG, Fails.ERROR, Fails.LATE, Fails.WRONG)


def a_run(engines: int, failing: Sequence[Failing] = (), events: Sequence[Event] = (), **changes: Any) -> Report:
    """One worker's, with so many engines, of which each computes four rows at once."""
    climate = Climate(
        row_s=ROW_S, seats=4, timeout_s=REQUEST_TIMEOUT_S, failing=tuple(failing), supervised=changes.pop("supervised", False)
    )
    given = {
        "rows": 160,
        "chunk_rows": 10,
        "rows_per_request": 1,
        "limits": WorkerLimits(window_start=8, window_most=8),
        "calm_at": 14_400.0,
    }
    scenario = a_scenario(workers=1, engines=engines, climate=climate, events=events, **{**given, **changes})
    [report] = run(scenario, draws=1)
    assert report.pods == 1, "no worker gives up"
    return report


@functools.cache
def moments(engines: int) -> dict[str, float]:
    """When the first rows are sent, half of them are answered, and the last ones are with the engines (seconds)."""
    over = max(a_run(engines).carried_until.values())
    return {"first": 0.0, "middle": over / 2, "last": over - ROW_S}


def without_failed_at(choose: Callable[[Engines, Group], None]) -> Callable[[Engines, Group], None]:
    def forgetful(self: Engines, group: Group) -> None:
        group.rows[0].failed_at = None
        choose(self, group)

    return forgetful


def shown(engines: int, how: str, moment: str, minutes: float) -> None:
    print(f"{engines} engines, {how}, {moment}: {minutes:.1f} min until the ill one carries nothing")


def check_ill(engines: int, how: Fails, moment: str) -> None:
    since = moments(engines)[moment]
    report = a_run(engines, [Failing(since, NEVER, how, first=1)])

    carried_s = report.carried_until.get(0, since) - since
    shown(engines, how, moment, max(carried_s, 0) / 60)
    assert carried_s <= REQUEST_TIMEOUT_S + MOVED_S


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("how", ILL)
@pytest.mark.parametrize("engines", [2, 4])
def test_an_ill_engine_loses_its_rows_to_the_others(engines: int, how: Fails, moment: str) -> None:
    check_ill(engines, how, moment)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("engines", [2, 4])
def test_an_engine_that_crashes_loses_its_rows_to_the_others(engines: int, moment: str) -> None:
    since = max(1.0, moments(engines)[moment])
    report = a_run(engines, events=[Event(since, "engine_death", 0.0, NEVER)])

    carried_s = report.carried_until.get(0, since) - since
    shown(engines, "crash", moment, max(carried_s, 0) / 60)
    assert carried_s <= MOVED_S


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("engines", [2, 4])
def test_an_engine_that_is_merely_slow_keeps_its_rows(engines: int, moment: str) -> None:
    since = moments(engines)[moment]
    report = a_run(engines, [Failing(since, NEVER, Fails.SLOW, first=1)])

    shown(engines, "slow", moment, max(report.carried_until[0] - since, 0) / 60)
    assert report.computed == report.rows, "nothing was sent twice"
    assert not report.seen["canaries"]
    assert not report.asked


def test_what_an_ill_engine_got_later_goes_with_the_rest() -> None:
    """It hangs while its window is not full, so rows come to it for as long as it is not known."""
    since, limits = 100.0, WorkerLimits(window_start=1, window_most=32)
    report = a_run(2, [Failing(since, NEVER, Fails.HANG, first=1)], limits=limits, rows=400)

    assert report.carried_until[0] - since <= REQUEST_TIMEOUT_S + MOVED_S


def test_three_ill_engines_of_four_lose_their_rows_together() -> None:
    """One after another, they would take longer."""
    since = moments(4)["middle"]
    spans = [Failing(since, NEVER, Fails.HANG, first=3)]
    report = a_run(4, spans)

    assert max(report.carried_until[n] for n in (0, 1, 2)) - since <= REQUEST_TIMEOUT_S + MOVED_S


def check_bad(nature: Nature, how: Fails | None, bad: int, **changes: Any) -> None:
    natures = dict.fromkeys(range(40 - bad, 40), nature)
    report = a_run(2, [Failing(0.0, NEVER, how)] if how else [], natures=natures, rows=40, **changes)

    assert report.seen["canaries"], "they are the last ones, so nothing else was answered beside them"


@pytest.mark.parametrize("nature", [Nature.ERROR, Nature.INVALID, Nature.SLOW])
@pytest.mark.parametrize("how", [None, Fails.SLOW])
@pytest.mark.parametrize("bad", [1, 3])
def test_bad_rows_do_not_go_from_engine_to_engine_for_ever(nature: Nature, how: Fails | None, bad: int) -> None:
    """Also if both engines answer canaries later than rows wait for that."""
    check_bad(nature, how, bad)


@pytest.mark.parametrize(("how", "at_most"), [(Fails.ERROR, 5 * 60.0), (Fails.HANG, 25 * 60.0), (Fails.LATE, 25 * 60.0)])
def test_an_ill_engine_is_started_again_and_used(how: Fails, at_most: float) -> None:
    since = 60.0
    report = a_run(2, [Failing(since, NEVER, how, first=1)], supervised=True, rows=800)

    [asked] = report.asked[0]
    assert 3 * 60.0 <= asked - since <= at_most
    assert report.carried_until[0] > asked + ROW_S
    assert 1 not in report.asked


def test_an_engine_that_nobody_starts_again_is_asked_for_every_few_minutes() -> None:
    report = a_run(2, [Failing(60.0, NEVER, Fails.ERROR, first=1)], rows=400)

    asked = report.asked[0]
    assert len(asked) > 3
    assert min(later - earlier for earlier, later in itertools.pairwise(asked)) >= 3 * 60.0


MISTAKES: Final[tuple[tuple[str, Change, str], ...]] = (
    ("an ill engine keeps what it has failed", (Attribution, "give_away", lambda self, engine, now: []), "hang"),
    ("its canary has all the time of a request", (Attribution, "patience", lambda self, engine: None), "hang"),
    (
        "what an ill engine still has is waited for",
        (RequestLoop, "_call_back_from", lambda self, engine, resting: None),
        "late",
    ),
    ("its rows are never probed", (Attribution, "release", lambda self, engine, most, now: []), "bad"),
    ("its canary never has all the time of a request", (Attribution, "patience", lambda self, engine: ALONE_S), "slow"),
    ("a row that failed meets the same engine", (Engines, "choose", without_failed_at(Engines.choose)), "last"),
)
"""Each is seen by one of the schedules above."""
SCHEDULES: Final[dict[str, Callable[[], None]]] = {
    "hang": lambda: check_ill(2, Fails.HANG, "middle"),
    "last": lambda: check_ill(2, Fails.HANG, "last"),
    "late": test_what_an_ill_engine_got_later_goes_with_the_rest,
    "bad": lambda: check_bad(Nature.ERROR, None, 1, calm_at=600.0),
    "slow": lambda: check_bad(Nature.ERROR, Fails.SLOW, 1, calm_at=3600.0),
}


@pytest.mark.parametrize(
    ("change", "schedule"), [each[1:] for each in MISTAKES], ids=[each[0].replace(" ", "-") for each in MISTAKES]
)
def test_a_mistake_is_seen(change: Change, schedule: str) -> None:
    with replaced([change]), pytest.raises(AssertionError):
        SCHEDULES[schedule]()
