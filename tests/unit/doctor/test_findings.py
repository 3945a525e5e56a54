"""Lines, JSON and exit codes; and that no check hides another."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from nightshift.doctor.context import Surroundings
from nightshift.doctor.findings import Failed, Finding, Ok, Report, Skipped
from nightshift.doctor.runner import Check, examine
from tests.unit.doctor.fakes import here

pytestmark = pytest.mark.unit

PROBLEM = Failed("bucket", "it is\nnot there.", "every task", "make it")


def says(*findings: Finding) -> Any:
    return lambda _: iter(findings)


def test_each_finding_is_one_line() -> None:
    report = Report((Ok("identity", "somebody"), PROBLEM, Skipped("queue", "no job was named")))

    assert report.lines() == [
        "ok      identity: somebody",
        "failed  bucket: it is not there. Affects: every task. Fix: make it",
        "skipped queue: because no job was named",
        "1 ok, 1 failed, 1 skipped.",
    ]


def test_the_json_has_every_part_of_a_problem() -> None:
    assert Report((PROBLEM,)).to_json() == {
        "exit_code": 1,
        "checks": [
            {"state": "failed", "check": "bucket", "problem": "it is\nnot there.", "affects": "every task", "fix": "make it"}
        ],
    }


@pytest.mark.parametrize(
    ("findings", "code"),
    [
        ((Ok("a", ""),), 0),
        ((Ok("a", ""), Skipped("b", "it cannot be asked")), 0),
        ((Ok("a", ""), Skipped("b", "a is not ok", needs="a")), 1),
        ((Ok("a", ""), PROBLEM), 1),
    ],
)
def test_what_cannot_be_asked_is_no_fault_and_what_waits_for_a_fix_is(findings: tuple[Finding, ...], code: int) -> None:
    assert Report(findings).exit_code == code


class TestChecks:
    def test_one_that_raises_is_a_problem_and_the_next_is_asked(self) -> None:
        def fails(_: Surroundings) -> Iterator[Finding]:
            yield Ok("half", "was asked")
            raise RuntimeError("no route")

        report = examine([Check("first", fails, "all"), Check("second", says(Ok("second", "")), "")], here())

        assert report.findings == (
            Ok("half", "was asked"),
            Failed("first", "it could not be asked (RuntimeError: no route)", "all", "nightshift doctor"),
            Ok("second", ""),
        )

    def test_one_that_hangs_is_given_up_and_keeps_what_it_had_found(self) -> None:
        release = threading.Event()

        def hangs(_: Surroundings) -> Iterator[Finding]:
            yield Ok("half", "was asked")
            release.wait()

        report = examine([Check("first", hangs, "all", limit_s=0.1), Check("second", says(Ok("second", "")), "")], here())
        release.set()

        assert [type(each) for each in report.findings] == [Ok, Failed, Ok]
        assert "no answer within 0.1 s" in report.problems[0].problem

    def test_one_whose_need_is_not_met_is_not_asked_and_not_well(self) -> None:
        checks = [
            Check("first", says(Ok("part", ""), PROBLEM), ""),
            Check("second", says(Ok("second", "")), "", needs=("first",)),
            Check("third", says(Ok("third", "")), "", needs=("second",)),
        ]

        report = examine(checks, here())

        assert report.findings[2:] == (
            Skipped("second", "first is not ok", needs="first"),
            Skipped("third", "first is not ok", needs="second"),
        )

    def test_one_that_cannot_be_asked_passes_its_reason_on(self) -> None:
        silent = Skipped("cluster", "there is none")
        report = examine([Check("cluster", says(silent), ""), Check("rights", says(), "", needs=("cluster",))], here())

        assert report.findings == (silent, Skipped("rights", "there is none"))
        assert report.exit_code == 0
