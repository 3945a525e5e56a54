"""What you see at the terminal: a line every few seconds, the driver's warnings, and a summary. All on stderr."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from typing import Final

from nightshift.batch.output import OutputCounts
from nightshift.driver.stats import Stats

EVERY_S: Final = 5.0
REPEAT_S: Final = 5.0
"""A warning is not repeated within this time: a server in trouble fails thousands of lines a second."""


def say(text: str) -> None:
    """Prints one line immediately."""
    print(f"nightshift batch: {text}", file=sys.stderr, flush=True)


class Lines(logging.Formatter):
    """A log record of the driver as one line for a person."""

    def format(self, record: logging.LogRecord) -> str:
        fields = ", ".join(f"{name} {value}" for name, value in getattr(record, "fields", {}).items())
        text = f"nightshift batch: {record.getMessage()}{f': {fields}' if fields else ''}"
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
    """Counts of one command. before: lines that the ledger held when it began."""

    def __init__(self, lines: int, before: int, stats: Stats) -> None:
        self._lines = lines
        self._before = before
        self._stats = stats
        self._began = time.monotonic()

    def line(self) -> str:
        """done, rate, left, failed."""
        stats = self._stats
        here = stats.rows_answered + stats.rows_dead
        done = min(self._lines, self._before + stats.rows_from_partials + here)
        rate = here / max(time.monotonic() - self._began, 1e-3)
        left = f"{format_duration((self._lines - done) / rate)} left" if rate else "no answer yet"
        failed = f", {stats.rows_dead:,} failed" if stats.rows_dead else ""
        return f"{done:,} of {self._lines:,} lines, {rate:,.1f}/s, {left}{failed}, {stats.rows_in_flight:,} in flight"

    async def watch(self) -> None:
        """Prints the line every few seconds until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            say(self.line())


def summary(counts: OutputCounts, out: str, seconds: float, stats: Stats) -> str:
    """The last line of a finished batch."""
    failed = sum(counts.failed.values())
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(counts.failed.items()))
    tokens = f"; {counts.prompt_tokens:,} prompt and {counts.output_tokens:,} output tokens" if counts.prompt_tokens else ""
    return (
        f"{out}: {counts.answered + failed:,} lines in {format_duration(seconds)}, "
        f"{counts.answered:,} answered, {failed:,} failed{f' ({reasons})' if reasons else ''}; "
        f"{stats.requests_sent:,} requests sent{tokens}"
    )


def format_duration(seconds: float) -> str:
    """For people: 8.4 s, 3 min, 2.5 h."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
