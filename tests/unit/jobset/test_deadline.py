"""When a late night gets more workers: the rule's table."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from nightshift.jobset.fleet.deadline import GIVES, HELPS_MAX, HOLD_S, Asked, Terms, careful, decide
from nightshift.jobset.fleet.fallback import FallbackDecision, Step
from nightshift.jobset.fleet.forecast import IN_TIME, Expected, Forecast

pytestmark = pytest.mark.unit

LEFT_S = 7200.0
LATE = Forecast(end_s=9000, left_s=LEFT_S, late_s=HOLD_S, speed=1.0, left=90_000, fleets={"a": Expected(10)})
TERMS = Terms(("spot", "on-demand"), start_up_s=600, room=100, useful=1000)
OWNER = {"a": Asked("spot", 10)}
NEEDED = math.ceil((90_000 - 10 * IN_TIME * LEFT_S) / (IN_TIME * LEFT_S - 600))
SHORT = replace(LATE, fleets={"a": Expected(4)})
HELPED = {**OWNER, "b": Asked("spot", 6, helps=True)}


def with_helper(workers: float, ready_in_s: float = 0.0) -> Forecast:
    return replace(LATE, fleets={"a": Expected(10), "b": Expected(workers, ready_in_s)})


@pytest.mark.parametrize(
    ("forecast", "jobsets", "terms", "said"),
    [
        (replace(LATE, end_s=None), OWNER, TERMS, "no forecast yet"),
        (replace(LATE, late_s=0), OWNER, TERMS, "it will end in 150 min, 30 min after the deadline"),
        (replace(LATE, late_s=HOLD_S - 1), OWNER, TERMS, "it has been late for 299 s"),
        (replace(LATE, end_s=0.9 * LEFT_S), OWNER, TERMS, "12 min before the deadline; it has been late for 300 s"),
        (LATE, OWNER, replace(TERMS, stated=True), rf"; {NEEDED} more workers would keep the deadline, but the job sets"),
        (with_helper(6, ready_in_s=1), HELPED, TERMS, "b is still starting"),
        (LATE, OWNER, replace(TERMS, helped=HELPS_MAX), "3 JobSets have helped, which is the limit"),
        (SHORT, OWNER, TERMS, "spot runs 4 of 10 workers, so the fallback rule decides"),
        (SHORT, OWNER, replace(TERMS, profiles=("spot",)), "and it is the last profile"),
        (replace(LATE, left_s=700), OWNER, TERMS, r"would come too late \(10 min of start-up\)"),
        (replace(LATE, left_s=1400), OWNER, TERMS, r"would come too late \(10 min of start-up, 10 min of work\)"),
        (LATE, OWNER, replace(TERMS, room=10), "it may have no more than 10 workers"),
        (LATE, OWNER, replace(TERMS, useful=10), "it may have no more than 10 workers"),
    ],
)
def test_it_stays(forecast: Forecast, jobsets: dict[str, Asked], terms: Terms, said: str) -> None:
    decision = decide(forecast, jobsets, terms)

    assert (decision.workers, decision.profile, decision.drop) == (0, "", ())
    assert re.search(said, decision.why), decision.why


@pytest.mark.parametrize(
    ("forecast", "jobsets", "terms", "workers", "profile", "drop"),
    [
        (LATE, OWNER, TERMS, NEEDED, "spot", ()),
        (LATE, OWNER, replace(TERMS, room=None), NEEDED, "spot", ()),
        (LATE, OWNER, replace(TERMS, room=12), 2, "spot", ()),
        (LATE, OWNER, replace(TERMS, useful=11), 1, "spot", ()),
        (with_helper(GIVES * 6), HELPED, TERMS, None, "spot", ()),
        (with_helper(GIVES * 6 - 0.1), HELPED, TERMS, None, "on-demand", ()),
        (with_helper(0), HELPED, TERMS, NEEDED, "on-demand", ("b",)),
        (replace(SHORT, fleets={"a": Expected(6)}), OWNER, TERMS, None, "on-demand", ()),
        (SHORT, {"a": Asked("on-demand", 4)}, TERMS, None, "on-demand", ()),
    ],
)
def test_it_helps(
    forecast: Forecast, jobsets: dict[str, Asked], terms: Terms, workers: int | None, profile: str, drop: tuple[str, ...]
) -> None:
    decision = decide(forecast, jobsets, terms)

    assert (decision.profile, decision.drop) == (profile, drop)
    assert decision.workers == workers or (workers is None and decision.workers > 0)


@pytest.mark.parametrize("start_up_s", [1, 30, 600, 2400])
def test_help_never_starts_for_longer_than_it_works(start_up_s: float) -> None:
    """A night that was 20 minutes late and had 15 left, with 10 of start-up, got 324 more workers beside 40."""
    jobsets, terms = {"a": Asked("spot", 40)}, replace(TERMS, start_up_s=start_up_s, room=None, useful=10**6)
    for left_s in range(60, 7200, 60):
        rows = 40 * (left_s + 1200)
        forecast = replace(LATE, end_s=left_s + 1200, left_s=left_s, left=rows, fleets={"a": Expected(40)})
        works_s = IN_TIME * left_s - start_up_s

        assert bool(decide(forecast, jobsets, terms).workers) == (works_s >= start_up_s), left_s


def test_a_decision_says_why() -> None:
    assert decide(LATE, OWNER, TERMS).why == (
        f"it will end in 150 min, 30 min after the deadline: {NEEDED} more workers on spot"
    )
    assert decide(LATE, OWNER, replace(TERMS, room=12)).why.endswith(f"2 more workers of the {NEEDED} that it needs on spot")
    assert decide(replace(LATE, end_s=math.inf), OWNER, TERMS).why.startswith(
        "at this rate it will never end, and 120 min are left"
    )


class TestCareful:
    REPLACE = FallbackDecision(Step.REPLACE, "it works", drop="spot")

    def test_takes_no_workers_from_a_late_night(self) -> None:
        decision = careful(self.REPLACE, True, 3)

        assert (decision.step, decision.drop) == (Step.STAY, "")
        assert decision.why == "it works; the night is late, so spot keeps 3 pods"

    def test_but_lets_new_ones_come(self) -> None:
        decision = careful(replace(self.REPLACE, submit="on-demand"), True, 3)

        assert (decision.step, decision.submit, decision.drop) == (Step.HELP, "on-demand", "")

    @pytest.mark.parametrize(("late", "running"), [(False, 3), (True, 0)])
    def test_otherwise_changes_nothing(self, late: bool, running: int) -> None:
        assert careful(self.REPLACE, late, running) == self.REPLACE
