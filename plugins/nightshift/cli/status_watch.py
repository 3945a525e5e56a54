"""How far a run has got: once, or again and again until its night has ended."""

from __future__ import annotations

import json
import shutil
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nightshift import exits
from nightshift.cli.terminal import OF_STATES, cut, move_up, paint
from nightshift.status.report import Status
from nightshift.status.runs import day_of
from nightshift.status.summary import Summarizer, Summary
from nightshift.status.survey import Survey
from nightshift.status.text import text
from nightshift.store import StoreUnavailable

if TYPE_CHECKING:
    from nightshift.cli.target import Target
    from nightshift.planner.costs.prices import Prices

AGAIN_S: Final = 120.0
"""How long a watch waits for a new try of a night that had failed before it began. The bucket does not show that a task was
cleared: the task infer says where its pods are about once a minute."""
SEALED_S: Final = 3600.0
"""A run that has been sealed for so long is not waited for: it is of an earlier release, or its night was given up."""


@dataclass(frozen=True)
class Seen:
    """A run at one moment. night: None if its folder is not one of a night, as that of `nightshift batch`."""

    status: Status
    night: Summary | None

    @property
    def ended(self) -> tuple[str, int] | None:
        """Why there is nothing to wait for, in words, and what the exit code of a watch is; None while there is."""
        night, status = self.night, self.status
        if night is None:
            over = status.complete or status.sealed_at is not None
            return ("all chunks are committed", exits.DONE) if over else None
        if night.state == "published":
            return f"published at {night.ended_at}", exits.DONE
        if night.state == "failed":
            task = f" in the task {night.failed_task}" if night.failed_task else ""
            return f"failed{task} at {night.ended_at}: {night.error or 'it does not say why'}", exits.FAILED
        if status.sealed_at is not None and status.observed_at - status.sealed_at > SEALED_S:
            return "sealed more than an hour ago, and nothing says that it was published", exits.FAILED
        return None

    @property
    def failed_at(self) -> str | None:
        """When the last night failed; None if it has not."""
        return self.night.ended_at if self.night is not None and self.night.state == "failed" else None

    def lines(self) -> list[str]:
        """For a terminal."""
        lines = text(self.status).splitlines()
        if self.night is None:
            return lines
        if self.night.place:
            lines.append(f"{paint('table', 'yellow' if self.night.other else 'green')}     {self.night.place}")
        if self.night.completes:
            lines.append(f"redo      {self.night.completes}")
        if self.night.state in ("published", "failed") and self.ended:
            state, _, rest = self.ended[0].partition(" ")
            lines.append(f"{paint(f'{state:<9}', OF_STATES[state])} {rest}")
        lines += [
            f"{paint('attention', 'red')} {each.words}"
            for each in self.night.attention
            if each.kind not in ("failed", "unreadable")
        ]
        return [part for line in lines for part in line.splitlines()]

    def to_json(self) -> dict[str, object]:
        night = self.night
        said = night and {
            "state": night.state,
            "ended_at": night.ended_at,
            "failed_task": night.failed_task,
            "error": night.error,
            "due_at": night.due_at,
            "place": night.place and night.place.word,
            "shown_run": night.place and night.place.run_id,
            "redo_of": night.redo_of,
            "redo_rows": night.redo_rows,
            "attention": [{"kind": each.kind, "words": each.words} for each in night.attention],
        }
        return {**self.status.to_json(), "night": said}


class Watched:
    """One run, looked at again and again."""

    def __init__(self, found: Target, prices: Prices) -> None:
        self._store, self._run = found.store, found.run
        self._survey = Survey(found.store, found.run, found.url, prices)
        self._summarizer = Summarizer(found.store, found.run)

    def look(self) -> Seen:
        """Raises NoSuchRun, StoreUnavailable."""
        status = self._survey.refresh()
        night = self._summarizer.summary(lambda _: None, done=lambda: self._survey.progress)
        if night is None or night.state == "unreadable":
            return Seen(status, None)
        return Seen(status, night.beside(day_of(self._store, self._run)))


def show(found: Target, prices: Prices, every_s: float | None, *, as_json: bool) -> int:
    """Prints the status; returns the exit code. every_s: seconds between two looks; None for one look.

    The last word of a watch goes to standard error. Raises NoSuchRun, and StoreUnavailable for the first look.
    """
    watched, screen = Watched(found, prices), _Screen()
    began = time.monotonic()
    seen: Seen | None = None
    earlier: str | None = None
    while True:
        try:
            first, seen = seen is None, watched.look()
        except StoreUnavailable as error:
            if every_s is None or seen is None:
                raise
            print(f"nightshift status: the store cannot be read, trying again: {error}", file=sys.stderr)
        else:
            if as_json:
                print(json.dumps(seen.to_json()), flush=True)
            else:
                screen.show(seen.lines(), redraw=every_s is not None)
            if every_s is None:
                return exits.DONE
            if first and seen.failed_at:
                earlier = seen.failed_at
                print(f"{found.run.prefix}: failed at {earlier}; waits {AGAIN_S:.0f} s for a new try", file=sys.stderr)
            waits = earlier is not None and seen.failed_at == earlier and time.monotonic() - began < AGAIN_S
            if not waits and (ended := seen.ended) is not None:
                why, code = ended
                print(f"{found.run.prefix}: {why}", file=sys.stderr)
                return code
        time.sleep(every_s)


class _Screen:
    """On a terminal each status replaces the last one; elsewhere it follows after an empty line."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._lines = 0

    def show(self, lines: list[str], *, redraw: bool) -> None:
        if self._terminal and redraw:
            # A wrapped line takes two rows, and the cursor would move up too little.
            columns = shutil.get_terminal_size().columns
            lines = [cut(line, columns) for line in lines]
            if self._lines:
                move_up(self._lines)
        elif self._lines:
            print()
        print("\n".join(lines), flush=True)
        self._lines = len(lines)
