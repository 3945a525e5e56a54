"""Runs checks so that none hides another: each has a time limit, and its failure is a finding like any other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from nightshift.doctor.context import Surroundings
from nightshift.doctor.findings import Failed, Finding, NotKnown, Report, Skipped, is_bad
from nightshift.hooks.services import Wrong

LIMIT_S: Final = 75.0
"""Seconds. Longer than the longest wait of a client for one answer (`nightshift.warehouse.jobs`), so that the client's
own words are shown."""
AGAIN: Final = "nightshift doctor"


@dataclass(frozen=True)
class Check:
    """One thing to ask.

    ask: gives a finding or several; it may end with NotKnown or Wrong. breaks: what of a night fails if it cannot be answered.
    needs: names of checks that have to be well first. explained_by: names of checks whose failure is the cause if this one
    fails, too; if they could only not be asked, this one is. limit_s: seconds, for the whole check.
    """

    name: str
    ask: Callable[[Surroundings], Iterable[Finding]]
    breaks: str
    needs: tuple[str, ...] = ()
    explained_by: tuple[str, ...] = ()
    limit_s: float = LIMIT_S


def examine(checks: Sequence[Check], surroundings: Surroundings) -> Report:
    """Asks everything, in order. Never raises for what a check does."""
    found: dict[str, list[Finding]] = {}
    for check in checks:
        obstacles = (
            *(_obstacle(check, need, found[need]) for need in check.needs),
            *(_cause(check, name, found[name]) for name in check.explained_by),
        )
        obstacle = next((each for each in obstacles if each), None)
        found[check.name] = [obstacle] if obstacle else _ask(check, surroundings)
    return Report(tuple(finding for findings in found.values() for finding in findings))


def _cause(check: Check, name: str, found: Sequence[Finding]) -> Skipped | None:
    return Skipped(check.name, f"{name} is not ok", needs=name) if any(isinstance(each, Failed) for each in found) else None


def _obstacle(check: Check, need: str, found: Sequence[Finding]) -> Skipped | None:
    if cause := _cause(check, need, found):
        return cause
    silent = next((each for each in found if isinstance(each, Skipped)), None)
    if silent is None:
        return None
    return Skipped(check.name, silent.because, needs=need if is_bad(silent) else "")


def _ask(check: Check, surroundings: Surroundings) -> list[Finding]:
    found: list[Finding] = []
    failed: list[Exception] = []

    def work() -> None:
        try:
            for finding in check.ask(surroundings):
                found.append(finding)  # noqa: PERF402 - one by one: what is known when the time is over is kept
        except NotKnown as error:
            found.append(Skipped(check.name, str(error)))
        except Wrong as error:
            found.append(Failed(check.name, str(error), check.breaks, error.fix))
        except Exception as error:
            failed.append(error)

    # A daemon: a call that never returns must not keep the process.
    thread = threading.Thread(target=work, name=f"doctor-{check.name}", daemon=True)
    thread.start()
    thread.join(check.limit_s)
    problems = [f"there was no answer within {check.limit_s:g} s"] if thread.is_alive() else []
    problems = problems or [f"it could not be asked ({type(each).__name__}: {each})" for each in failed]
    return [*found, *(Failed(check.name, each, check.breaks, AGAIN) for each in problems)]
