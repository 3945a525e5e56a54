"""The screen at the end: what did not run and why, the totals of each tier, and what failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from local.test.progress import Ran
from local.test.running import REPORTS


def print_report(ran: Mapping[str, Ran], not_run: Mapping[str, str]) -> None:
    """ran: by tier. not_run: group -> why."""
    for reason in dict.fromkeys(not_run.values()):
        print(f"NOT RUN: {', '.join(name for name, why in not_run.items() if why == reason)}: {reason}")
    print(f"== all; of each tier, what pytest said lies in {REPORTS.name}/")
    _print_totals(ran)


def missing(ran: Mapping[str, Ran], not_run: Mapping[str, str], required: Sequence[str]) -> list[str]:
    """What did not run of the required tiers, one line each."""
    lines = [f"{name} was required and did not run: {why}" for name, why in not_run.items() if name.split("/")[0] in required]
    for tier in required:
        skipped = [case.skipped for case in ran[tier].cases if case.skipped is not None] if tier in ran else []
        if skipped:
            lines.append(f"{tier} was required and {len(skipped)} of its tests were skipped: {skipped[0]}")
        elif tier not in ran and not any(name.split("/")[0] == tier for name in not_run):
            lines.append(f"{tier} was required and is not among the tiers that were asked for")
    return lines


def nothing(ran: Mapping[str, Ran]) -> bool:
    """Whether pytest found no test and no fault, for example because a path after ``--`` is misspelt."""
    return bool(ran) and all(each.ok and not each.cases for each in ran.values())


def _print_totals(ran: Mapping[str, Ran]) -> None:
    for tier, each in ran.items():
        skipped = sum(case.skipped is not None for case in each.cases)
        failed = [case.test for case in each.cases if case.failed]
        passed = len(each.cases) - skipped - len(failed)
        print(f"{tier:<12} {passed:>6} passed {len(failed):>4} failed {skipped:>4} skipped {each.wall_s:>7.0f} s")
    for test in (case.test for each in ran.values() for case in each.cases if case.failed):
        print(f"FAILED {test}")
