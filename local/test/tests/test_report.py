"""What `make test` says at its end, and when a tier that could not run is a failure."""

from __future__ import annotations

import pytest

from local.test.groups import Group, group_of
from local.test.progress import Case, Progress, Ran
from local.test.report import missing, nothing, print_report

pytestmark = pytest.mark.unit

DRIVER = group_of("integration", "tests/integration/driver/test_vllm.py")
STORAGE = group_of("integration", "local/storage/tests/test_races.py")


def ran(*cases: Case) -> Ran:
    return Ran(ok=True, cases=cases)


def passed(group: Group, seconds: float = 1.0) -> Case:
    return Case(f"{group.places[0]}/test_x.py::test_x", group, seconds)


def test_a_tier_that_ran_whole_is_enough() -> None:
    assert missing({"integration": ran(passed(DRIVER))}, {}, ["integration"]) == []


def test_a_required_group_that_did_not_run_is_named_with_its_reason() -> None:
    lines = missing({"integration": ran(passed(STORAGE))}, {DRIVER.name: "no network"}, ["integration"])

    assert lines == ["integration/driver was required and did not run: no network"]


def test_a_tier_that_is_not_required_may_stay_out() -> None:
    assert missing({"unit": ran()}, {"cluster": "no root"}, ["unit"]) == []


def test_a_skipped_test_of_a_required_tier_is_a_failure() -> None:
    skipped = Case("local/storage/tests/test_x.py::test_y", STORAGE, 0.0, skipped="no disk")

    lines = missing({"integration": ran(passed(STORAGE), skipped)}, {}, ["integration"])

    assert lines == ["integration was required and 1 of its tests were skipped: no disk"]


def test_a_required_tier_that_was_not_asked_for_is_a_failure() -> None:
    assert missing({}, {}, ["chaos"]) == ["chaos was required and is not among the tiers that were asked for"]


def test_the_report_names_what_did_not_run_and_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    failed = Case("local/storage/tests/test_x.py::test_y", STORAGE, 1.0, failed=True)

    print_report({"integration": ran(failed, passed(DRIVER))}, {"cluster": "no root", "chaos": "no root"})

    lines = capsys.readouterr().out.splitlines()
    assert "NOT RUN: cluster, chaos: no root" in lines
    assert "FAILED local/storage/tests/test_x.py::test_y" in lines


@pytest.mark.parametrize("gate", [True, False])
def test_a_group_is_said_when_its_last_test_has_ended_beside_its_budget(gate: bool) -> None:
    progress = Progress("integration", gate)
    test = "local/storage/tests/test_x.py::test_y"

    def event(when: str, outcome: str = "passed", seconds: float = 0.0) -> list[str]:
        return progress.take({"test": test, "when": when, "outcome": outcome, "seconds": seconds, "text": ""})

    assert progress.take({"collected": {"local/storage/tests/test_x.py": 1}}) == []
    assert event("setup") + event("call", seconds=STORAGE.gate_s + 1.0) == []
    assert progress.unfinished() == [STORAGE]
    [line] = event("teardown")

    budget = f"{STORAGE.gate_s} s OVER" if gate else f"{STORAGE.all_s} s"
    assert line == f"passed  integration/storage     1 passed, {STORAGE.gate_s + 1} s of {budget}"
    assert progress.unfinished() == []


def test_tiers_without_a_single_test_are_told_from_those_with_some() -> None:
    assert nothing({"unit": ran(), "cluster": ran()})
    assert not nothing({"unit": ran(), "cluster": ran(passed(DRIVER))})
    assert not nothing({"unit": Ran(ok=False, cases=())}), "pytest ended before it wrote a report"
    assert not nothing({}), "every tier was left out because nothing had changed, or this machine lacks something"
