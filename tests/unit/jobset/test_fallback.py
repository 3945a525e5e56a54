"""When a run goes on with its next compute profile: the rule's table, and what holds whatever the cluster does."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest

from nightshift.jobset.fleet.fallback import (
    DISRUPTIONS_MIN,
    HOLD_S,
    PATIENCE_S,
    PATIENCE_SHARE,
    START_S,
    Measured,
    Step,
    decide,
    enough,
    measured,
)

pytestmark = pytest.mark.unit

PROFILES = ("spot", "flex", "on-demand")
HOURS = 3 * 3600.0

WORKS = Measured("spot", wanted=8, running=8, held_s=5000)
SHORT = Measured("spot", wanted=8, running=3, short_s=PATIENCE_S)
NEARLY_SHORT = replace(SHORT, short_s=PATIENCE_S - 1)
JUST_ENOUGH = replace(SHORT, running=4, short_s=0, held_s=1)
LOSES = replace(WORKS, disruptions=4, cost_s=600, useful_s=2399)
BREAKS_EVEN = replace(LOSES, useful_s=2400)
TWO_DISRUPTIONS = replace(LOSES, disruptions=DISRUPTIONS_MIN - 1, useful_s=0)

HELPER = Measured("flex", wanted=8, running=8, held_s=HOLD_S)
NEW_HELPER = replace(HELPER, held_s=HOLD_S - 1)
WAITING_HELPER = Measured("flex", wanted=8, running=0, short_s=PATIENCE_S - 1)
SHORT_HELPER = replace(WAITING_HELPER, short_s=PATIENCE_S)


@pytest.mark.parametrize(
    ("live", "left_s", "step", "submit", "drop"),
    [
        ([WORKS], HOURS, Step.STAY, "", ""),
        ([NEARLY_SHORT], HOURS, Step.STAY, "", ""),
        ([JUST_ENOUGH], HOURS, Step.STAY, "", ""),
        ([SHORT], HOURS, Step.HELP, "flex", ""),
        ([replace(SHORT, profile="flex")], HOURS, Step.HELP, "on-demand", ""),
        ([replace(SHORT, profile="on-demand")], HOURS, Step.STAY, "", ""),
        ([LOSES], HOURS, Step.HELP, "flex", ""),
        ([BREAKS_EVEN], HOURS, Step.STAY, "", ""),
        ([TWO_DISRUPTIONS], HOURS, Step.STAY, "", ""),
        # Less time, less patience.
        ([NEARLY_SHORT], PATIENCE_SHARE * (PATIENCE_S - 1), Step.HELP, "flex", ""),
        ([SHORT], START_S, Step.STAY, "", ""),
        ([SHORT, NEW_HELPER], HOURS, Step.STAY, "", ""),
        ([SHORT, HELPER], HOURS, Step.REPLACE, "", "spot"),
        ([HELPER, SHORT], HOURS, Step.REPLACE, "", "spot"),
        ([LOSES, HELPER], HOURS, Step.REPLACE, "", "spot"),
        ([WORKS, HELPER], HOURS, Step.STAY, "", ""),
        ([WORKS, SHORT_HELPER], HOURS, Step.STAY, "", ""),
        ([SHORT, WAITING_HELPER], HOURS, Step.STAY, "", ""),
        ([SHORT, SHORT_HELPER], HOURS, Step.REPLACE, "on-demand", "flex"),
        ([replace(SHORT, running=0), SHORT_HELPER], HOURS, Step.REPLACE, "on-demand", "spot"),
        ([SHORT, replace(SHORT_HELPER, profile="on-demand")], HOURS, Step.STAY, "", ""),
        ([SHORT, SHORT_HELPER], START_S, Step.STAY, "", ""),
        ([SHORT, SHORT_HELPER, replace(HELPER, profile="on-demand")], HOURS, Step.STAY, "", ""),
    ],
)
def test_the_rule(live: list[Measured], left_s: float, step: Step, submit: str, drop: str) -> None:
    decision = decide(PROFILES, live, left_s=left_s)

    assert (decision.step, decision.submit, decision.drop) == (step, submit, drop)


def test_a_helper_that_was_to_keep_the_deadline_does_not_take_over_alone() -> None:
    """With fewer workers than those that are dropped, the night would never end."""
    small = replace(HELPER, wanted=3, running=3)
    decision = decide(PROFILES, [SHORT, small], left_s=HOURS)

    assert (decision.step, decision.submit, decision.drop, decision.workers) == (Step.HELP, "flex", "", 5)
    assert decision.why.endswith("flex was asked for 3 workers: 5 more help there")
    slices = replace(HELPER, wanted=32, hosts=4)
    assert decide(PROFILES, [SHORT, slices], left_s=HOURS).drop == "spot", "eight workers of four pods are as many as eight"
    both = [SHORT, small, replace(HELPER, wanted=5, running=5)]
    assert decide(PROFILES, both, left_s=HOURS).drop == "spot"
    assert decide(PROFILES, [SHORT, small], left_s=START_S).drop == "spot"


@pytest.mark.parametrize(
    ("others", "step"),
    [
        ([replace(WORKS, held_s=100)], Step.STAY),
        ([replace(SHORT, running=0)], Step.HELP),
        ([replace(LOSES, useful_s=0)], Step.HELP),
    ],
)
def test_the_jobsets_of_a_profile_are_judged_together(others: list[Measured], step: Step) -> None:
    """SHORT runs 3 of 8: with 8 of 8 beside it, the profile has enough."""
    assert decide(PROFILES, [SHORT, *others], left_s=HOURS).step is step


def test_what_is_counted_of_a_jobset_is_measured() -> None:
    counts = {"wanted": 8, "running": 8, "short_s": 0.0, "held_s": 60.0, "disruptions": 2, "worked_s": 2000.0}

    assert measured("spot", counts) == Measured("spot", 8, 8, 0.0, 60.0, 2, START_S, 2000 - 2 * START_S)
    assert measured("spot", {**counts, "disruptions": 9}).useful_s == 0


def test_a_decision_says_why() -> None:
    assert decide(PROFILES, [SHORT], left_s=HOURS).why == "spot has had fewer than 4 pods for 900 s (3 of 8 pods): flex helps"
    assert decide(PROFILES, [LOSES], left_s=HOURS).why == (
        "spot lost 2400 s of work to 4 disruptions and kept 2399 s: flex helps"
    )
    assert decide(PROFILES, [SHORT, HELPER], left_s=HOURS).why == (
        "spot has had fewer than 4 pods for 900 s (3 of 8 pods), and flex has had enough pods for 600 s: it replaces spot"
    )


@pytest.mark.parametrize(
    ("live", "message"),
    [
        ([replace(WORKS, profile="tpu")], "a JobSet runs on profile 'tpu', which is not one of spot, flex, on-demand"),
        ([], "a run that waits has at least one JobSet"),
    ],
)
def test_what_cannot_be_is_refused(live: list[Measured], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decide(PROFILES, live, left_s=HOURS)


@pytest.mark.parametrize(("wanted", "least"), [(1, 1), (2, 1), (3, 2), (8, 4)])
def test_half_of_the_pods_are_enough(wanted: int, least: int) -> None:
    assert enough(wanted) == least


@dataclass
class Cloud:
    """JobSets whose pods come and go at random; each minute the rule is asked, and what it says is done."""

    chance: random.Random
    wanted: int
    live: list[Measured]
    left_s: float

    def minute(self) -> None:
        self.left_s -= 60
        self.live = [self._moved(jobset) for jobset in self.live]

    def do(self, submit: str, drop: str) -> None:
        self.live = [jobset for jobset in self.live if jobset.profile != drop]
        if submit:
            self.live.append(Measured(submit, self.wanted, 0))

    def _moved(self, jobset: Measured) -> Measured:
        running = min(self.wanted, max(0, jobset.running + self.chance.choice((-3, -1, 0, 0, 1, 3))))
        lost = max(0, jobset.running - running)
        is_enough = running >= enough(self.wanted)
        return Measured(
            jobset.profile,
            self.wanted,
            running,
            short_s=0.0 if is_enough else jobset.short_s + 60,
            held_s=jobset.held_s + 60 if is_enough else 0.0,
            disruptions=self.chance.choice((lost, jobset.disruptions + lost)),
            cost_s=self.chance.uniform(0, 900),
            useful_s=self.chance.uniform(0, 3600),
        )


def test_whatever_pods_do_a_run_goes_down_its_list_once_and_never_has_three_jobsets() -> None:
    for seed in range(200):
        goes_down_its_list(seed)


def goes_down_its_list(seed: int) -> None:
    chance = random.Random(seed)
    profiles = [f"p{number}" for number in range(chance.randint(1, 4))]
    wanted = chance.randint(1, 12)
    cloud = Cloud(chance, wanted, [Measured("p0", wanted, 0)], chance.uniform(1800, 6 * 3600))
    lowest, submitted, replaced = 0, 0, 0
    while cloud.left_s > 60:
        cloud.minute()
        failing_last = len(cloud.live) == 1 and cloud.live[0].profile == profiles[-1]
        decision = decide(profiles, cloud.live, left_s=cloud.left_s)
        assert decision.why
        assert (decision.step is Step.STAY) == (not decision.submit and not decision.drop)
        if failing_last:
            assert decision.step is Step.STAY
        if decision.submit:
            assert profiles.index(decision.submit) > lowest, "goes up the list, or to where it has been"
            assert cloud.left_s > START_S
            lowest = profiles.index(decision.submit)
            submitted += 1
        if decision.drop:
            assert decision.drop in {jobset.profile for jobset in cloud.live}
            assert len(cloud.live) == 2
            replaced += 1
        cloud.do(decision.submit, decision.drop)
        assert 1 <= len(cloud.live) <= 2
    assert submitted <= len(profiles) - 1
    assert replaced <= submitted


def test_the_random_clouds_do_fall_back() -> None:
    """Else the property above would hold for a rule that never does anything."""
    steps = set()
    for seed in range(50):
        chance = random.Random(seed)
        cloud = Cloud(chance, 6, [Measured("spot", 6, 0)], 6 * 3600.0)
        while cloud.left_s > 60:
            cloud.minute()
            decision = decide(PROFILES, cloud.live, left_s=cloud.left_s)
            steps.add((decision.step, bool(decision.submit), bool(decision.drop)))
            cloud.do(decision.submit, decision.drop)
    assert steps == {
        (Step.STAY, False, False),
        (Step.HELP, True, False),
        (Step.REPLACE, False, True),
        (Step.REPLACE, True, True),
    }


def test_pods_that_all_work_are_left_alone() -> None:
    for seed in range(50):
        chance = random.Random(seed)
        wanted = chance.randint(1, 12)
        held = Measured("spot", wanted, chance.randint(enough(wanted), wanted), held_s=chance.uniform(0, 1e5), useful_s=1.0)

        assert decide(PROFILES, [held], left_s=chance.uniform(0, 1e5)).step is Step.STAY, seed
