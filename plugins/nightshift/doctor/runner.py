"""Runs checks so that none hides another: each has a time limit, and its failure is a finding like any other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from nightshift.doctor.context import Surroundings
from nightshift.doctor.findings import Failed, Finding, Report, Skipped, is_bad

LIMIT_S: Final = 75.0
"""Seconds. Longer than the longest wait of a client for one answer (`nightshift.warehouse.jobs`), so that the client's
own words are shown."""
AGAIN: Final = "nightshift doctor"


@dataclass(frozen=True)
class Check:
    """One thing to ask.

    ask: gives a finding or several. breaks: what of a night fails if it cannot be answered. needs: names of checks that have to
    be well first. limit_s: seconds, for the whole check.
    """

    name: str
    ask: Callable[[Surroundings], Iterable[Finding]]
    breaks: str
    needs: tuple[str, ...] = ()
    limit_s: float = LIMIT_S


def examine(checks: Sequence[Check], surroundings: Surroundings) -> Report:
    """Asks everything, in order. Never raises for what a check does."""
    found: dict[str, list[Finding]] = {}
    for check in checks:
        obstacle = next((each for need in check.needs if (each := _obstacle(check, need, found[need]))), None)
        found[check.name] = [obstacle] if obstacle else _ask(check, surroundings)
    return Report(tuple(finding for findings in found.values() for finding in findings))


def _obstacle(check: Check, need: str, found: Sequence[Finding]) -> Skipped | None:
    if any(isinstance(each, Failed) for each in found):
        return Skipped(check.name, f"{need} is not ok", needs=need)
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
        except Exception as error:
            failed.append(error)

    # A daemon: a call that never returns must not keep the process.
    thread = threading.Thread(target=work, name=f"doctor-{check.name}", daemon=True)
    thread.start()
    thread.join(check.limit_s)
    problems = [f"there was no answer within {check.limit_s:g} s"] if thread.is_alive() else []
    problems = problems or [f"it could not be asked ({type(each).__name__}: {each})" for each in failed]
    return [*found, *(Failed(check.name, each, check.breaks, AGAIN) for each in problems)]
