"""What you see at the terminal: a line every few seconds, the driver's warnings, and a summary. All on stderr."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from typing import Final

from nightshift.batch.output import OutputCounts
from nightshift.driver.stats import Stats
from nightshift.fields.terminal import harmless
from nightshift.fields.text import n

EVERY_S: Final = 5.0
SILENT_S: Final = 15.0
"""After so long without an answer the line says that, and no longer how much time is left."""
EXAMPLE_CHARS: Final = 300
REPEAT_S: Final = 5.0
"""A warning is not repeated within this time: a server in trouble fails thousands of lines a second."""


def say(text: str) -> None:
    """Prints it immediately."""
    print(f"nightshift batch: {text}", file=sys.stderr, flush=True)


def one_line(text: str) -> str:
    """What a server or a file says, in a form that can neither move the cursor nor begin another line."""
    return harmless(" ".join(text.split()))


class Lines(logging.Formatter):
    """A log record of the driver as one line for a user."""

    def format(self, record: logging.LogRecord) -> str:
        fields = ", ".join(f"{name} {value}" for name, value in getattr(record, "fields", {}).items())
        text = one_line(f"nightshift batch: {record.getMessage()}{f': {fields}' if fields else ''}")
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class Seldom(logging.Filter):
    """Passes a message once per `REPEAT_S`."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now - self._last.get(record.msg, float("-inf")) < REPEAT_S:
            return False
        self._last[record.msg] = now
        return True


def log_to_stderr() -> None:
    """Logs warnings and errors to stderr; the driver's counts are in the progress line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines())
    handler.addFilter(Seldom())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


class Progress:
    """Counts of one command. before: lines of chunks that were committed when it began. why(): why the server seems away."""

    def __init__(self, lines: int, before: int, stats: Stats, why: Callable[[], str]) -> None:
        self._lines = lines
        self._before = before
        self._stats = stats
        self._why = why
        self._began = self._moved = time.monotonic()
        self._answered = 0

    def line(self) -> str:
        """done, rate, left or since when nothing was answered, failed."""
        stats, now = self._stats, time.monotonic()
        here = stats.rows_answered + stats.rows_dead
        done = min(self._lines, self._before + stats.rows_from_partials + here)
        rate = here / max(now - self._began, 1e-3)
        left = f"{format_duration((self._lines - done) / rate)} left" if rate else "no answer yet"
        if stats.rows_answered != self._answered:
            self._answered, self._moved = stats.rows_answered, now
        if now - self._moved >= SILENT_S:
            why = self._why()
            left = f"no answer for {format_duration(now - self._moved)}{f' ({why})' if why else ''}"
        failed = f", {stats.rows_dead:,} failed" if stats.rows_dead else ""
        return f"{done:,} of {n(self._lines, 'line')}, {rate:,.1f}/s, {left}{failed}, {stats.rows_in_flight:,} in flight"

    async def watch(self) -> None:
        """Prints the line every few seconds until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            say(self.line())


def summary(counts: OutputCounts, out: str, seconds: float, stats: Stats) -> str:
    """What is said of a finished batch: a line of counts, and below it the first messages of each reason."""
    failed = sum(counts.failed.values())
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(counts.failed.items()))
    tokens = f"; {counts.prompt_tokens:,} prompt and {n(counts.output_tokens, 'output token')}" if counts.prompt_tokens else ""
    examples = "".join(
        f"\n  {reason}, line {number:,}: {one_line(message)[:EXAMPLE_CHARS]}"
        for reason, messages in sorted(counts.examples.items())
        for message, number in messages.items()
    )
    return (
        f"{out}: {n(counts.answered + failed, 'line')} in {format_duration(seconds)}, "
        f"{counts.answered:,} answered, {failed:,} failed{f' ({reasons})' if reasons else ''}; "
        f"{n(stats.requests_sent, 'request')} sent{tokens}{examples}"
    )


def format_duration(seconds: float) -> str:
    """For people: 8.4 s, 3 min, 2.5 h."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
