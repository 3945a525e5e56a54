"""Every subset of a run's folder, as `deleting` deletes it, and what each guard is for.

`make test` tries each object alone, and some of the subsets; `make test-all` tries them all.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator

import pytest

from nightshift.driver import main
from nightshift.run import opening, parquet_rows, plan, seal, sealed_objects
from nightshift.run.names import RunRef
from nightshift.run.plan import Plan
from nightshift.run.record import RunRecord
from nightshift.warehouse import extract
from tests.simulation.deleting import NOW, TRIGGERS, Night, Rows, Wrong, after, subsets
from tests.simulation.replaced import Change, replaced
from tests.simulation.runner import PARTS

pytestmark = pytest.mark.simulation

SOME = 60
"""Subsets that the gate tries, drawn from one seed."""


@pytest.fixture(scope="module", autouse=True)
def offline() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@pytest.fixture(scope="module")
def published() -> Night:
    return Night(sealed=True)


@pytest.fixture(scope="module")
def interrupted() -> Night:
    return Night(sealed=False)


Case = tuple[frozenset[int], str, Rows]


def tried(night: Night, cases: Iterable[Case], changes: Collection[Change] = ()) -> Counter[tuple[str, str]]:
    """How often what came of which trigger."""
    seen: Counter[tuple[str, str]] = Counter()
    for gone, trigger, now in cases:
        try:
            seen[trigger, after(night, gone, trigger, now, tuple(changes))] += 1
        except Exception as error:
            names = [night.paths[number].rpartition("/")[2] for number in sorted(gone)]
            raise Wrong(f"without {names}, {trigger}: {error}") from error
    return seen


@pytest.mark.gate
@pytest.mark.parametrize("trigger", TRIGGERS)
def test_each_object_alone_may_be_gone(published: Night, interrupted: Night, trigger: str) -> None:
    for night in (published, interrupted):
        if night is interrupted and trigger in ("republish", "redo", "corrected"):
            continue  # There is nothing to show yet.
        alone = [frozenset({number}) for number in range(len(night.paths))]
        # The other rows lack the one that is to be corrected.
        now = NOW[1] if trigger == "corrected" else NOW[0]
        seen = tried(night, ((gone, trigger, now) for gone in [frozenset[int](), *alone]))
        assert seen.total() == len(alone) + 1
        assert seen[trigger, "published"], "nothing gone, or nothing that is needed"


@pytest.mark.gate
def test_some_subsets_end_in_a_refusal_or_in_the_right_table(published: Night) -> None:
    rng = random.Random(42)
    every = list(subsets(len(published.paths)))
    cases = [(rng.choice(every), rng.choice(TRIGGERS), rng.choice(NOW)) for _ in range(SOME)]

    seen = tried(published, cases)

    assert {(trigger, "published") for trigger in ("plain", "fresh")} | {("republish", "refused"), ("redo", "refused")} <= set(
        seen
    )
    assert ("corrected", "refused") in seen


@pytest.mark.parametrize("part", range(PARTS))
def test_every_subset_ends_in_a_refusal_or_in_the_right_table(published: Night, interrupted: Night, part: int) -> None:
    cases = [(gone, trigger, now) for gone in subsets(len(published.paths)) for trigger in TRIGGERS for now in NOW]
    others = [(gone, trigger, now) for gone in subsets(len(interrupted.paths)) for trigger in TRIGGERS[:2] for now in NOW]

    assert tried(published, cases[part::PARTS]).total() == len(cases[part::PARTS])
    assert tried(interrupted, others[part::PARTS]).total() == len(others[part::PARTS])


def _spec_alone_counts() -> tuple[Change, ...]:
    """Release 0.2.0: a folder without `spec.json` is free."""
    known = opening._records_of

    def records(store: object, job: str, partition: str) -> dict[RunRef, RunRecord | None]:
        return {run: record for run, record in known(store, job, partition).items() if record is not None}  # type: ignore[arg-type]

    return ((opening, "_records_of", records),)


def _one_folder_for_all_plans() -> tuple[Change, ...]:
    """Release 0.2.0: what workers wrote is found by the run's name."""
    return ((extract, "new_uid", lambda: "0" * 16),)


def _plan_over_leftovers() -> tuple[Change, ...]:
    return ((plan, "_follows", lambda store, run: None),)


def _other_openings_plan() -> tuple[Change, ...]:
    def planned(store: object, run: RunRef, record: object) -> Plan | None:
        return plan.load_plan(store, run)  # type: ignore[arg-type]

    return ((opening, "planned", planned), (main, "planned", planned))


def _manifest_is_believed() -> tuple[Change, ...]:
    return (
        (seal, "_compare", lambda run, sealed, proven: None),
        (sealed_objects, "check_follows", lambda run, manifest, plan: None),
    )


def _keys_are_believed() -> tuple[Change, ...]:
    return ((parquet_rows, "other_columns", lambda planned, table: []),)


NAMES_ALONE = (
    _spec_alone_counts,
    _one_folder_for_all_plans,
    _plan_over_leftovers,
    _other_openings_plan,
    _manifest_is_believed,
    _keys_are_believed,
)
"""The guards that release 0.2.0 lacked. tests/unit/run/test_ledger.py, and test_run.py miss each by itself."""


def test_without_the_guards_a_night_is_published_that_is_half_of_another_one(published: Night) -> None:
    """The finding: spec, plan and inputs are older than ledger and manifest, and the bucket's rule deletes them first."""
    without = [change for guard in NAMES_ALONE for change in guard()]
    with replaced(without):
        unguarded = Night(sealed=True)

    for trigger in ("plain", "fresh"):
        assert tried(published, [(all_but_two_chunks(published), trigger, NOW[0])])[trigger, "published"] == 1
        with pytest.raises(Wrong, match=r"shows .*old 0.*new"):
            tried(unguarded, [(all_but_two_chunks(unguarded), trigger, NOW[0])], without)


def all_but_two_chunks(night: Night) -> frozenset[int]:
    left = ("chunk-00000000.parquet", "chunk-00000002.parquet")
    return frozenset(number for number, path in enumerate(night.paths) if not path.endswith(left))
