"""The report at the end: what did not run and why, and the time of each group beside its budget.

What failed and what was skipped is in the output of pytest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from local.test.groups import Group
from local.test.running import Ran


def print_report(ran: Mapping[str, Ran], not_run: Mapping[str, str], *, gate: bool) -> None:
    """ran: by tier. not_run: group -> why."""
    for reason in dict.fromkeys(not_run.values()):
        print(f"NOT RUN: {', '.join(name for name, why in not_run.items() if why == reason)}: {reason}")
    _print_times(ran, gate=gate)


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


def _print_times(ran: Mapping[str, Ran], *, gate: bool) -> None:
    print("== seconds of each group's tests added up, beside the budget in local/test/groups.py")
    by_group: dict[Group, list[float]] = {}
    for each in ran.values():
        for case in each.cases:
            by_group.setdefault(case.group, []).append(case.seconds)
    for group, seconds in by_group.items():
        budget = group.gate_s if gate else group.all_s
        over = "  OVER" if sum(seconds) > budget else ""
        print(f"{group.name:<24} {len(seconds):>5} tests {sum(seconds):>7.0f} s  of {budget:>5} s{over}")
