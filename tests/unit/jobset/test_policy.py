"""What becomes of a run's JobSets: the order of the rules, a person's number of workers, and a JobSet that was taken away."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nightshift.jobset.fleet.fallback import PATIENCE_S, Measured
from nightshift.jobset.fleet.forecast import WatchState
from nightshift.jobset.fleet.memory import FleetMember, FleetState
from nightshift.jobset.fleet.policy import Addition, Change, Rule, Seen, Wanted, after_loss, decide
from nightshift.jobset.fleet.records import WatchReport

pytestmark = pytest.mark.unit

NOW = 1000.0
OWNER = FleetMember(1, "spot", 10)
STATE = FleetState(deadline=9000.0).with_all((OWNER,))
WANTED = Wanted(("spot", "on-demand"), planned=10, chunks=100)
SHORT = Measured("spot", wanted=10, running=0, short_s=PATIENCE_S)
LATE = WatchReport(WatchState(1.0), late=True, why="it will be late", workers=4, profile="spot")


def seen(state: FleetState = STATE, **changes: Any) -> Seen:
    return replace(Seen({f"jobset-{each.generation}": each for each in state.live}, left_s=8000.0), **changes)


class TestTheOrder:
    EVERYTHING = seen(report=LATE, measured=[SHORT])

    def test_a_paused_run_is_left_as_it_is(self) -> None:
        change = decide(replace(WANTED, file=12, paused=True), STATE, self.EVERYTHING)

        assert (change.rule, change.add, change.drop) == (Rule.PAUSED, None, ())
        assert change.applied(STATE, self.EVERYTHING.members, NOW) == STATE

    def test_then_a_persons_number(self) -> None:
        change = decide(replace(WANTED, file=12), STATE, self.EVERYTHING)

        assert (change.rule, change.add, change.asked) == (Rule.WORKERS, Addition("spot", 2, helps=True), 12)

    def test_then_a_profile_that_gives_nothing(self) -> None:
        change = decide(WANTED, STATE, self.EVERYTHING)

        assert (change.rule, change.add) == (Rule.FALLBACK, Addition("on-demand", 0, helps=False))

    def test_then_the_deadline(self) -> None:
        change = decide(WANTED, STATE, seen(report=LATE))

        assert (change.rule, change.add) == (Rule.DEADLINE, Addition("spot", 4, helps=True))
        assert change.applied(STATE, seen().members, NOW).helped == 1

    def test_else_nothing(self) -> None:
        assert decide(WANTED, STATE, seen()) == Change(Rule.NONE)
        assert decide(WANTED, STATE, seen(report=replace(LATE, workers=0))).applied(STATE, seen().members, NOW) == STATE


class TestAPersonsNumber:
    @pytest.mark.parametrize(
        ("helpers", "number", "drop", "add"),
        [
            ((), 10, (), None),
            ((), 14, (), Addition("spot", 4, helps=True)),
            ((), 3, ("jobset-1",), Addition("spot", 3, helps=False)),
            ((4, 5), 19, (), None),
            ((4, 5), 14, ("jobset-3",), None),
            ((4, 5), 16, ("jobset-3",), Addition("spot", 2, helps=True)),
            ((4, 5), 10, ("jobset-3", "jobset-2"), None),
            ((4, 5), 7, ("jobset-3", "jobset-2", "jobset-1"), Addition("spot", 7, helps=False)),
        ],
    )
    def test_takes_helpers_first(
        self, helpers: tuple[int, ...], number: int, drop: tuple[str, ...], add: Addition | None
    ) -> None:
        extra = [FleetMember(each, "spot", size, helps=True) for each, size in enumerate(helpers, 2)]
        state = STATE.with_all((OWNER, *extra))
        change = decide(replace(WANTED, file=number), state, seen(state))

        assert (change.rule, change.drop, change.add, change.asked) == (Rule.WORKERS, drop, add, number)
        new = change.applied(state, seen(state).members, NOW)
        assert sum(each.workers for each in new.live) == number
        assert decide(replace(WANTED, file=number), new, seen(new)) == Change(Rule.NONE), "once is enough"

    def test_of_the_runs_own_terms_is_no_change(self) -> None:
        assert decide(replace(WANTED, terms=4, file=4), STATE, seen()).rule is Rule.NONE

    def test_what_a_profile_has_in_two_jobsets_counts_together(self) -> None:
        """As after a fallback to a profile that already helped."""
        state = FleetState().with_all((FleetMember(1, "spot", 2), FleetMember(2, "spot", 2)))
        change = decide(replace(WANTED, file=4), state, seen(state))

        assert (change.add, change.drop, change.asked) == (None, (), 4)

    def test_never_more_than_there_are_chunks(self) -> None:
        change = decide(replace(WANTED, file=400, chunks=12), STATE, seen())

        assert change.add == Addition("spot", 2, helps=True)

    def test_holds_for_what_replaces_a_jobset_that_kueue_gave_up_on(self) -> None:
        state = replace(STATE, asked=3).with_all((replace(OWNER, workers=3),))
        change = decide(replace(WANTED, file=3), state, seen(state, given_up="jobset-1"))

        assert (change.rule, change.add, change.drop) == (Rule.FALLBACK, Addition("on-demand", 3, helps=False), ("jobset-1",))

    def test_one_that_holds_waits_while_a_profile_takes_over(self) -> None:
        state = replace(STATE, asked=12).with_all((OWNER, FleetMember(2, "on-demand", 3)))

        assert decide(WANTED, state, seen(state)).rule is Rule.NONE
        assert decide(replace(WANTED, file=14), state, seen(state)).rule is Rule.WORKERS


class TestALoss:
    WHOLE = ("spot", 0)

    def test_is_followed_by_the_same(self) -> None:
        new = after_loss(FleetState(next=5), OWNER, self.WHOLE, NOW)

        assert new.live == (FleetMember(5, "spot", 10, since=NOW),)

    def test_beside_others_too(self) -> None:
        helper = FleetMember(2, "spot", 4, helps=True)
        new = after_loss(FleetState(next=5).with_all((helper,)), OWNER, self.WHOLE, NOW)

        assert new.live == (helper, FleetMember(5, "spot", 10, since=NOW))

    def test_of_the_last_helper_is_followed_by_one_that_does_all_the_work(self) -> None:
        new = after_loss(FleetState(next=5), FleetMember(2, "on-demand", 4, helps=True), self.WHOLE, NOW)

        assert new.live == (FleetMember(5, "on-demand", 0, since=NOW),)
