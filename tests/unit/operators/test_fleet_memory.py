"""What a task that runs JobSets remembers: a generation is never used twice, whatever else is forgotten."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nightshift.jobset.fleet.errors import JobSetFailed
from nightshift.jobset.fleet.memory import GENERATIONS_MAX, FleetMember, FleetState, Memory
from tests.kept_state import KeptState

pytestmark = pytest.mark.unit

KEPT = FleetState((FleetMember(1, "a"), FleetMember(2, "b")), next=3, deadline=17.5, resumes=4)


def test_what_is_kept_is_loaded_again_by_the_same_work_alone() -> None:
    context: Any = {"task_state_store": KeptState()}

    Memory(context["task_state_store"], "one").save(KEPT)

    assert Memory(context["task_state_store"], "one").load() == KEPT
    assert Memory(context["task_state_store"], "two").load() == FleetState()


@pytest.mark.parametrize(
    ("kept", "generations", "following"),
    [
        (KEPT.with_new("c"), [3], 4),
        (KEPT.with_all((FleetMember(2), FleetMember(3))), [2, 3], 4),
        (KEPT.with_all((FleetMember(2),)), [2], 3),
        (KEPT.without(FleetMember(1, "a")), [2], 3),
        (KEPT.renewed(FleetMember(1, "a")), [2, 3], 4),
        (KEPT.over(), [], 3),
    ],
    ids=["new", "all", "fewer", "without", "renewed", "over"],
)
def test_no_generation_comes_twice(kept: FleetState, generations: list[int], following: int) -> None:
    assert ([live.generation for live in kept.live], kept.next) == (generations, following)


def test_a_renewed_jobset_keeps_its_profile() -> None:
    assert KEPT.renewed(FleetMember(1, "a")).live[-1] == FleetMember(3, "a")


def test_what_is_over_leaves_the_next_time_all_its_time() -> None:
    again = replace(KEPT, start=2, helped=3).over().in_time(start=3, seconds=60, now=1000)

    assert (again.deadline, again.resumes, again.helped) == (1060, 0, 0)


def test_finished_jobsets_that_nobody_deletes_have_an_end() -> None:
    full = replace(KEPT, next=GENERATIONS_MAX)

    assert full.renewed(FleetMember(1, "a")).next == GENERATIONS_MAX + 1
    with pytest.raises(JobSetFailed, match="Delete them"):
        full.renewed(FleetMember(1, "a")).renewed(FleetMember(2, "b"))


class TestInTime:
    @pytest.mark.parametrize("now", [1000, 5000], ids=["before", "after"])
    def test_a_retry_keeps_deadline_and_counts_whether_it_has_passed_or_not(self, now: float) -> None:
        kept = replace(KEPT, deadline=2000, helped=3, start=6)

        assert kept.in_time(start=6, seconds=60, now=now) == kept
