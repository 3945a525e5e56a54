"""The one policy beside the rules before it: the same decisions, for whatever state."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.jobset.fleet import fallback, policy
from nightshift.jobset.fleet.fallback import Measured
from nightshift.jobset.fleet.forecast import WatchState
from nightshift.jobset.fleet.memory import FleetMember, FleetState
from nightshift.jobset.fleet.records import WatchReport
from tests.unit.old_fleet import Night

pytestmark = pytest.mark.unit

PROFILES = ("spot", "flex", "on-demand")
NOW = 1_000_000.0
EXAMPLES = 20_000

numbers = st.integers(1, 12)
said = st.none() | numbers


@st.composite
def states(draw: Any) -> FleetState:
    size = draw(st.integers(1, 4))
    profiles = sorted(draw(st.lists(st.sampled_from(PROFILES), min_size=size, max_size=size)), key=PROFILES.index)
    live = tuple(
        FleetMember(number, profile, draw(st.integers(0, 8)), helps=draw(st.booleans()), since=draw(st.floats(0, NOW)))
        for number, profile in enumerate(profiles, 1)
    )
    return FleetState(deadline=NOW + 1, asked=draw(said), helped=draw(st.integers(0, 3))).with_all(live)


def named(state: FleetState) -> dict[str, FleetMember]:
    return {f"jobset-{each.generation}": each for each in state.live}


reports = st.builds(
    WatchReport,
    watch=st.just(WatchState(1.0)),
    late=st.booleans(),
    why=st.just("it will be late"),
    workers=st.integers(0, 5),
    profile=st.sampled_from(PROFILES),
    drop=st.lists(st.integers(1, 5).map("jobset-{}".format), max_size=2, unique=True).map(tuple),
)


@given(state=states(), report=reports, terms=said, file=said, planned=numbers, chunks=st.integers(0, 20))
@settings(max_examples=EXAMPLES, deadline=None)
def test_after_a_look(
    state: FleetState, report: WatchReport, terms: int | None, file: int | None, planned: int, chunks: int
) -> None:
    members = named(state)
    old, why = Night(PROFILES, planned, chunks, terms).looked(members, state, file, report, NOW)
    change = policy.decide(policy.Wanted(PROFILES, planned, chunks, terms, file), state, policy.Seen(members, report))

    assert change.applied(state, members, NOW) == old
    assert change.why == why


@st.composite
def counted(draw: Any, state: FleetState) -> list[Measured]:
    found = []
    for each in state.live:
        wanted = draw(st.integers(1, 8))
        running = draw(st.integers(0, wanted))
        short = running < fallback.enough(wanted)
        since = draw(st.floats(0, 3000))
        found.append(
            Measured(
                each.profile,
                wanted,
                running,
                short_s=since if short else 0.0,
                held_s=0.0 if short else since,
                disruptions=draw(st.integers(0, 12)),
                cost_s=fallback.START_S,
                useful_s=draw(st.floats(0, 8000)),
            )
        )
    return found


@given(data=st.data(), planned=numbers, chunks=st.integers(0, 20), late=st.booleans(), left_s=st.floats(1, 20_000))
@settings(max_examples=EXAMPLES, deadline=None)
def test_when_a_profile_may_have_to_be_left(data: Any, planned: int, chunks: int, late: bool, left_s: float) -> None:
    state = data.draw(states())
    # A number that waits to be followed comes before it now; it came at the next look.
    state = FleetState(state.live, state.next, state.deadline, asked=None, helped=state.helped)
    measured, members = data.draw(counted(state)), named(state)
    old, why = Night(PROFILES, planned, chunks, None).fallen_back(state, measured, late=late, left_s=left_s, now=NOW)
    report = WatchReport(WatchState(1.0), late)
    seen = policy.Seen(members, report, measured, left_s)
    change = policy.decide(policy.Wanted(PROFILES, planned, chunks), state, seen)

    assert change.applied(state, members, NOW) == old
    assert change.why == why
