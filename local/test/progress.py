"""How far a tier is, from what `local.test.events` writes of it: what is said at once, and the result at its end. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from local.test.groups import GROUPS, Group, group_of


@dataclass(frozen=True)
class Case:
    """One test. seconds: with its set-up and tear-down. skipped: why, or None."""

    test: str
    group: Group
    seconds: float
    skipped: str | None = None
    failed: bool = False


@dataclass(frozen=True)
class Ran:
    """The result of a tier. ok: pytest ended without a failure. wall_s: how long it took."""

    ok: bool
    cases: tuple[Case, ...]
    wall_s: float = 0.0
    cut_short: frozenset[str] = frozenset()
    """Groups of which tests did not run."""

    def whole(self, group: Group) -> bool:
        """Whether every test of the group ran, and passed."""
        cases = [case for case in self.cases if case.group == group]
        passed = all(case.skipped is None and not case.failed for case in cases)
        return bool(cases) and passed and group.name not in self.cut_short


@dataclass
class Progress:
    """Of one tier. gate: whether its time is compared with the budget of `make test`, or of `make test-all`."""

    tier: str
    gate: bool
    cases: dict[str, Case] = field(default_factory=dict)
    """By test."""
    _left: Counter[str] = field(default_factory=Counter)
    """Group -> tests that have not ended."""

    def take(self, event: dict[str, Any]) -> list[str]:
        """Notes an event; returns the lines to print now."""
        if "collected" in event:
            for file, count in event["collected"].items():
                self._left[group_of(self.tier, file).name] += count
            return []
        test, outcome, text = event["test"], event["outcome"], event["text"]
        group = group_of(self.tier, test.partition("::")[0])
        case = self.cases.get(test, Case(test, group, 0.0))
        failed = outcome == "failed"
        skipped = text if outcome == "skipped" else case.skipped
        self.cases[test] = Case(test, group, case.seconds + event["seconds"], skipped, case.failed or failed)
        said = [f"FAILED {test} ({event['when']})\n{text}"] if failed else []
        if event["when"] not in ("setup", "call", "collect"):
            self._left[group.name] -= 1
            if not self._left[group.name]:
                said.append(self.line(group))
        return said

    def line(self, group: Group) -> str:
        """What became of a group: state, counts, why tests were skipped, seconds beside the budget."""
        cases = [case for case in self.cases.values() if case.group == group]
        counts = Counter("failed" if case.failed else "passed" if case.skipped is None else "skipped" for case in cases)
        state = "FAILED" if counts["failed"] else "ended" if self._left[group.name] else "passed"
        parts = [f"{counts[what]} {what}" for what in ("failed", "passed", "skipped") if counts[what]]
        if self._left[group.name]:
            parts.append(f"{self._left[group.name]} not run")
        why = "; ".join(dict.fromkeys(case.skipped for case in cases if case.skipped is not None and not case.failed))
        seconds, budget = sum(case.seconds for case in cases), group.gate_s if self.gate else group.all_s
        over = " OVER" if seconds > budget else ""
        return (
            f"{state:<7} {group.name:<23} {', '.join(parts)}, {seconds:.0f} s of {budget} s{over}{f' ({why})' if why else ''}"
        )

    def unfinished(self) -> list[Group]:
        """The groups that pytest's end cut short."""
        return [group for group in GROUPS if self._left[group.name] > 0]
