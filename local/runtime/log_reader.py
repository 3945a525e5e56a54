"""The log of one life of a container, as ``pods/NAME/log`` serves it: lines with times, to the end while it runs.

The file has only what the container wrote. A line's time is that at which it was first read, kept beside the log, so that it is
the same in every reply, and later lines have later times.
"""

from __future__ import annotations

import asyncio
import bisect
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

PERIOD_S: Final = 0.1
CHUNK: Final = 1 << 19
"""Bytes read at once: fewer than there are nanoseconds in the millisecond before their time."""


class LogReader:
    """log: a file; it may be missing."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._times = log.with_suffix(".times")

    async def lines(self, ended: Callable[[], bool], *, follow: bool) -> AsyncIterator[tuple[str, bytes]]:
        """(time, line), time in RFC 3339 and sortable as text. ended: whether the container's life is over."""
        try:
            file = open(self._log, "rb")  # noqa: ASYNC230, SIM115 -- of this machine; closed below
        except FileNotFoundError:
            return
        with file:
            stamps, rest, offset = _Stamps(self._times), b"", 0
            while True:
                over = ended()
                while part := file.read(CHUNK):
                    *lines, rest = (rest + part).split(b"\n")
                    stamps.seen(file.tell() - len(rest))
                    for line in lines:
                        offset += len(line) + 1
                        yield stamps.of(offset), line
                if over or not follow:
                    break
                await asyncio.sleep(PERIOD_S)
            if rest:
                stamps.seen(offset + len(rest))
                yield stamps.of(offset + len(rest)), rest


class _Stamps:
    """When the bytes up to an offset had been read: lines "OFFSET NANOSECONDS" of a file, both ascending."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offsets: list[int] = []
        self._moments: list[int] = []
        self._read()

    def seen(self, offset: int) -> None:
        if self._offsets and offset <= self._offsets[-1]:
            return
        # Another reader may have noted it meanwhile: what it said first counts.
        self._read()
        if not self._offsets or offset > self._offsets[-1]:
            now = max(time.time_ns(), self._moments[-1] + 1_000_000 if self._moments else 0)
            self._offsets.append(offset)
            self._moments.append(now)
            if self._path.parent.exists():
                with open(self._path, "a", encoding="ascii") as file:
                    file.write(f"{offset} {now}\n")

    def _read(self) -> None:
        for line in _text(self._path).splitlines()[len(self._offsets) :]:
            offset, moment = map(int, line.split())
            self._offsets.append(offset)
            self._moments.append(moment)

    def of(self, end: int) -> str:
        """Of the line that ends at an offset: no two lines have the same."""
        at = bisect.bisect_left(self._offsets, end)
        begin = self._offsets[at - 1] if at else 0
        # Bytes are at least as many as lines; their share of the millisecond before the moment keeps lines in their order.
        within = 999_999 * (end - begin) // (self._offsets[at] - begin)
        return rfc3339(self._moments[at] - 999_999 + within)


def rfc3339(nanoseconds: int) -> str:
    """Of a time since the epoch, always with nine digits."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest:09d}Z"


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii")
    except FileNotFoundError:
        return ""
