"""The result of a check: ok, failed or skipped. Values, made into lines and JSON here only. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Ok:
    """As a night needs it. found: what the answer was."""

    check: str
    found: str


@dataclass(frozen=True)
class Failed:
    """problem: what is wrong. affects: what of a night fails because of it. fix: the command that helps."""

    check: str
    problem: str
    affects: str
    fix: str


@dataclass(frozen=True)
class Skipped:
    """Nothing is known, which is not the same as well.

    needs: the check that has to be well first, and is not. Empty if it cannot be asked from here, or does not concern this
    deployment.
    """

    check: str
    because: str
    needs: str = ""


Finding = Ok | Failed | Skipped


class NotKnown(Exception):
    """Ends a check that cannot be answered from here: `Skipped`. The text says why, and what would allow it."""


_STATES: Final = {Ok: "ok", Failed: "failed", Skipped: "skipped"}


def is_bad(finding: Finding) -> bool:
    """Whether a night should not start before it is fixed: a check failed, or was skipped because another one failed."""
    return isinstance(finding, Failed) or (isinstance(finding, Skipped) and bool(finding.needs))


@dataclass(frozen=True)
class Report:
    """The findings of all checks, in their order."""

    findings: tuple[Finding, ...]

    @property
    def problems(self) -> tuple[Failed, ...]:
        return tuple(each for each in self.findings if isinstance(each, Failed))

    @property
    def exit_code(self) -> int:
        """0: every check that ran is ok. 1: one has failed, or was skipped because another one has failed."""
        return int(any(is_bad(each) for each in self.findings))

    def lines(self) -> list[str]:
        """One for each finding, and a sum."""
        return [*(_line(each) for each in self.findings), f"{self._sum()}."]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON (keys: docs/operate/doctor.md)."""
        checks = [{"state": _STATES[type(each)], **asdict(each)} for each in self.findings]
        return {"exit_code": self.exit_code, "checks": checks}

    def _sum(self) -> str:
        counts = {kind: sum(isinstance(each, kind) for each in self.findings) for kind in _STATES}
        return ", ".join(f"{count} {_STATES[kind]}" for kind, count in counts.items())


def _line(finding: Finding) -> str:
    head = f"{_STATES[type(finding)]:<7} {finding.check}: "
    match finding:
        case Ok(_, found):
            return head + _flat(found)
        case Failed(_, problem, affects, fix):
            return f"{head}{_flat(problem)}. Affects: {_flat(affects)}. Fix: {_flat(fix)}"
        case Skipped(_, because, _):
            return f"{head}because {_flat(because)}"


def _flat(text: str) -> str:
    """On one line, without the full stop that the line itself puts there."""
    return " ".join(text.split()).removesuffix(".")
