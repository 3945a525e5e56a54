"""What `make test` says at its end, and when a tier that could not run is a failure."""

from __future__ import annotations

import pytest

from local.test.groups import Group, group_of
from local.test.report import missing, nothing, print_report
from local.test.running import Case, Ran

pytestmark = pytest.mark.unit

DRIVER = group_of("integration", "tests/integration/driver/test_vllm.py")
STORAGE = group_of("integration", "local/storage/tests/test_races.py")


def ran(*cases: Case) -> Ran:
    return Ran(ok=True, cases=cases)


def passed(group: Group, seconds: float = 1.0) -> Case:
    return Case(group, seconds, skipped=None)


def test_a_tier_that_ran_whole_is_enough() -> None:
    assert missing({"integration": ran(passed(DRIVER))}, {}, ["integration"]) == []


def test_a_required_group_that_did_not_run_is_named_with_its_reason() -> None:
    lines = missing({"integration": ran(passed(STORAGE))}, {DRIVER.name: "no network"}, ["integration"])

    assert lines == ["integration/driver was required and did not run: no network"]


def test_a_tier_that_is_not_required_may_stay_out() -> None:
    assert missing({"unit": ran()}, {"cluster": "no root"}, ["unit"]) == []


def test_a_skipped_test_of_a_required_tier_is_a_failure() -> None:
    skipped = Case(STORAGE, 0.0, skipped="no disk")

    lines = missing({"integration": ran(passed(STORAGE), skipped)}, {}, ["integration"])

    assert lines == ["integration was required and 1 of its tests were skipped: no disk"]


def test_a_required_tier_that_was_not_asked_for_is_a_failure() -> None:
    assert missing({}, {}, ["chaos"]) == ["chaos was required and is not among the tiers that were asked for"]


def test_the_report_names_what_did_not_run_and_groups_over_their_budget(capsys: pytest.CaptureFixture[str]) -> None:
    cases = (passed(STORAGE, STORAGE.gate_s + 1.0), passed(DRIVER))

    print_report({"integration": ran(*cases)}, {"cluster": "no root", "chaos": "no root"}, gate=True)

    lines = capsys.readouterr().out.splitlines()
    assert "NOT RUN: cluster, chaos: no root" in lines
    assert [line.split()[0] for line in lines if line.endswith("OVER")] == ["integration/storage"]

    print_report({"integration": ran(*cases)}, {}, gate=False)

    assert "OVER" not in capsys.readouterr().out, "the budget of all tests is larger"


def test_tiers_without_a_single_test_are_told_from_those_with_some() -> None:
    assert nothing({"unit": ran(), "cluster": ran()})
    assert not nothing({"unit": ran(), "cluster": ran(passed(DRIVER))})
    assert not nothing({"unit": Ran(ok=False, cases=())}), "pytest ended before it wrote a report"
    assert not nothing({}), "every tier was left out because nothing had changed, or this machine lacks something"
