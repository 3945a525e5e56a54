"""What a smoke test found, a line each: the doctor's, the open questions' and the night's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from google.api_core.exceptions import GoogleAPICallError

from local.smoke import night
from local.smoke.deployment import CommandFailed, Deployment
from local.smoke.open_questions import Question
from local.smoke.place import JOB_S, Place, reason

WELL: Final = "well"
AS_DOCUMENTED: Final = "as documented"
HANDLED: Final = "other than documented; nightshift works with it"
BREAKS: Final = "other than it should be"
FAILED: Final = "not answered"
DOCTOR_S: Final = 3600.0
"""Longer than all limits of the doctor's own checks together."""


@dataclass(frozen=True)
class Line:
    """One question's line of the report. verdict: one of the five above. breaks: what goes wrong if it does."""

    question: str
    found: str
    verdict: str
    breaks: str = ""


def doctor(deployment: Deployment, job_file: Path | None) -> list[Line]:
    """A line for each thing that is wrong, and one that counts. Raises CommandFailed."""
    arguments = ["-m", "nightshift.cli", "doctor", "--json", *([str(job_file)] if job_file else [])]
    said = json.loads(deployment.run("python", *arguments, limit_s=DOCTOR_S, codes=(0, 1)).splitlines()[-1])
    checks: Sequence[Mapping[str, Any]] = said["checks"]
    counts = ", ".join(f"{sum(each['state'] == state for each in checks)} {state}" for state in ("ok", "failed", "skipped"))
    wrong = [
        Line(f"Doctor: {each['check']}", each["problem"], BREAKS, f"{each['affects']}. Fix: `{each['fix']}`")
        for each in checks
        if each["state"] == "failed"
    ]
    verdict = BREAKS if said["exit_code"] else WELL
    return [Line("Is everything there for a night?", counts, verdict, "see the doctor's lines"), *wrong]


def open_questions(place: Place, questions: Iterable[Question]) -> list[Line]:
    """Asks one after the other. A question that the service does not let us ask hides no other."""
    return [_line(place, question) for question in questions]


def _line(place: Place, asked: Question) -> Line:
    try:
        answer = asked.ask(place)
    except GoogleAPICallError as error:
        return Line(asked.question, reason(error), FAILED, asked.breaks)
    except TimeoutError:
        return Line(asked.question, f"no answer within {JOB_S:.0f} s", FAILED, asked.breaks)
    verdict = (AS_DOCUMENTED if answer.documented else HANDLED) if answer.works else BREAKS
    return Line(asked.question, answer.found, verdict, asked.breaks)


def whole_night(place: Place, deployment: Deployment, job: Mapping[str, Any]) -> Line:
    """Runs it."""
    question, breaks = f"Is a night of {night.ROWS:,} rows whole?", "a night"
    try:
        spent = night.spend(place, deployment, job)
    except (CommandFailed, GoogleAPICallError) as error:
        return Line(question, str(error), FAILED, breaks)
    found = f"{spent.published} rows with {spent.keys} keys in {spent.seconds:.0f} s on {job['compute']['profile']}"
    return Line(question, found, WELL if spent.whole else BREAKS, breaks)


def exit_code(lines: Iterable[Line]) -> int:
    """0 if every line is good, otherwise 1."""
    return int(any(line.verdict in (BREAKS, FAILED) for line in lines))


def table(lines: Iterable[Line]) -> str:
    """Markdown. A cell is one line: of a longer text, the first one."""
    rows = ["| Question | Found | So |", "|---|---|---|"]
    for line in lines:
        so = f"**{line.verdict}. Affects: {line.breaks}**" if line.verdict in (BREAKS, FAILED) else line.verdict
        rows.append(
            "| " + " | ".join(text.partition("\n")[0].replace("|", "\\|") for text in (line.question, line.found, so)) + " |"
        )
    return "\n".join(rows)
