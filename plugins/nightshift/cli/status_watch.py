"""How far a run has got: once, or again and again until its night has ended. `nightshift run --wait` watches so too."""

from __future__ import annotations

import json
import shutil
import sys
import time
from typing import TYPE_CHECKING, Final

from nightshift import exits
from nightshift.cli.terminal import OF_STATES, cut, move_up, paint
from nightshift.status.overview import Overview, RunLook
from nightshift.status.text import text
from nightshift.store import StoreUnavailable

if TYPE_CHECKING:
    from nightshift.cli.target import Target
    from nightshift.planner.costs.prices import Prices

OF_NIGHT: Final = ("state", "ended_at", "failed_task", "error", "due_at", "place", "shown_run", "redo_of", "redo_rows")
"""Keys of the summary that `night` has, too, beside its attention."""
AGAIN_S: Final = 120.0
"""How long a watch waits for a new try of a night that had failed before it began. The bucket does not show that a task was
cleared: the task infer says where its pods are about once a minute."""
SEALED_S: Final = 3600.0
"""A run that has been sealed for so long is not waited for: it is of an earlier release, or its night was given up."""


def ended(look: Overview) -> tuple[str, int] | None:
    """Why there is nothing to wait for, in words, and what the exit code of a watch is; None while there is."""
    night = look.night
    if night is None:
        return ("all chunks are committed", exits.DONE) if look.state in ("complete", "sealed") else None
    if night.state == "published":
        return f"published at {night.ended_at}", exits.DONE
    if night.state == "failed":
        task = f" in the task {night.failed_task}" if night.failed_task else ""
        return f"failed{task} at {night.ended_at}: {night.error or 'it does not say why'}", exits.FAILED
    if look.sealed_at is not None and look.at - look.sealed_at > SEALED_S:
        return "sealed more than an hour ago, and nothing says that it was published", exits.FAILED
    return None


def lines(look: Overview) -> list[str]:
    """For a terminal."""
    made, night = text(look).splitlines(), look.night
    if night is None:
        return made
    if night.place:
        made.append(f"{paint('table', 'yellow' if night.other else 'green')}     {night.place}")
    if night.completes:
        made.append(f"redo      {night.completes}")
    if night.state in ("published", "failed") and (how := ended(look)):
        state, _, rest = how[0].partition(" ")
        made.append(f"{paint(f'{state:<9}', OF_STATES[state])} {rest}")
    made += [f"{paint('attention', 'red')} {each.words}" for each in night.attention if each.kind != "failed"]
    return [part for line in made for part in line.splitlines()]


def to_json(look: Overview) -> dict[str, object]:
    said = look.night.to_json() if look.night else {}
    return {**look.status(), "night": {name: said[name] for name in (*OF_NIGHT, "attention")} if said else None}


def show(found: Target, prices: Prices | None, every_s: float | None, *, as_json: bool) -> int:
    """Prints the status; returns the exit code. every_s: seconds between two looks; None for one look.

    The last word of a watch goes to standard error. Raises NoSuchRun, and StoreUnavailable for the first look.
    """
    watch = Watch(found, prices, as_json=as_json, redraw=every_s is not None)
    began, earlier = time.monotonic(), watch.look().failed_at
    if every_s is None:
        return exits.DONE
    if earlier:
        print(f"{found.run.prefix}: failed at {earlier}; waits {AGAIN_S:.0f} s for a new try", file=sys.stderr)
    while True:
        waits = earlier is not None and watch.seen.failed_at == earlier and time.monotonic() - began < AGAIN_S
        if not waits and (over := ended(watch.seen)) is not None:
            why, code = over
            print(f"{found.run.prefix}: {why}", file=sys.stderr)
            return code
        time.sleep(every_s)
        try:
            watch.look()
        except StoreUnavailable as error:
            print(f"nightshift status: the store cannot be read, trying again: {error}", file=sys.stderr)


class Watch:
    """One run, looked at and shown again and again. On a terminal each status replaces the last one; elsewhere it follows after
    an empty line. seen: the last look."""

    seen: Overview

    def __init__(self, found: Target, prices: Prices | None, *, as_json: bool = False, redraw: bool = True) -> None:
        self._look = RunLook(found.store, found.run, found.url, prices)
        self._as_json, self._redraw = as_json, redraw and sys.stdout.isatty()
        self._lines = 0

    def look(self) -> Overview:
        """Raises NoSuchRun, StoreUnavailable."""
        self.seen = self._look.look(fresh_s=0.0)
        if self._as_json:
            print(json.dumps(to_json(self.seen)), flush=True)
            return self.seen
        shown = lines(self.seen)
        if self._redraw:
            # A wrapped line takes two rows, and the cursor would move up too little.
            columns = shutil.get_terminal_size().columns
            shown = [cut(line, columns) for line in shown]
            if self._lines:
                move_up(self._lines)
        elif self._lines:
            print()
        print("\n".join(shown), flush=True)
        self._lines = len(shown)
        return self.seen
