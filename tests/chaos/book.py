"""What the proxies saw of one run, and what must be true of it. The checkers share no code with what they check.

Seen: which rows were sent to the engine when and by which life of a driver, which answers reached it, when each chunk was
committed and what was saved of open ones. A commit whose reply nobody saw (the emulator died) counts from when it first showed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from nightshift.run import chunks
from nightshift.run.plan import Plan
from tests.chaos.proxy import Exchange

HOUSEKEEPING_S: Final = 40.0
"""For so long at most a worker may go on with an open chunk that somebody else has committed: it looks that often."""
SLACK_S: Final = 10.0
"""What two busy cores may add to that."""
_CHUNK: Final = re.compile(r"/ledger/chunk-(\d{8})\.parquet")
_PARTIAL: Final = re.compile(r"/partials/chunk-(\d{8})/(.+)-[0-9a-f]{8}\.parquet$")


@dataclass(frozen=True)
class Seen:
    """Rows that passed in one request. life: which process sent it."""

    at: float
    life: str
    ordinals: tuple[int, ...]


@dataclass(frozen=True)
class Commit:
    """When a chunk was known to be in the ledger; the writer and the digest of what it wrote, where the write was seen."""

    at: float
    life: str | None
    sha256: str | None


@dataclass
class Life:
    """One process of a driver. frozen: spans in which it was stopped. asked: when it got its first SIGTERM or SIGINT."""

    name: str
    began: float
    asked: float | None = None
    ended: float | None = None
    code: int | None = None
    frozen: list[tuple[float, float]] = field(default_factory=list)


@dataclass
class Book:
    """The record of one run. ordinal_of: which row a text is. outages: spans in which the store was out of order."""

    plan: Plan
    ordinal_of: Mapping[str, int]
    lives: dict[str, Life] = field(default_factory=dict)
    sent: list[Seen] = field(default_factory=list)
    answered: list[Seen] = field(default_factory=list)
    delivered: list[Seen] = field(default_factory=list)
    saved: list[Seen] = field(default_factory=list)
    commits: dict[int, Commit] = field(default_factory=dict)
    outages: list[tuple[float, float]] = field(default_factory=list)
    overwritten: list[str] = field(default_factory=list)

    def chunk_of(self, ordinal: int) -> int:
        return ordinal // self.plan.chunk_rows

    def rows_of(self, exchange: Exchange) -> tuple[int, ...]:
        texts = json.loads(exchange.body)["input"]
        return tuple(self.ordinal_of[text] for text in texts)

    def committed(self, chunk: int, life: str | None = None, sha256: str | None = None) -> None:
        """The chunk is in the ledger by now. life, sha256: of a write that succeeded; a second one is for `overwritten`."""
        now = asyncio.get_running_loop().time()
        known = self.commits.get(chunk)
        if known is None:
            self.commits[chunk] = Commit(now, life, sha256)
        elif sha256 is not None and known.sha256 is None:
            self.commits[chunk] = Commit(known.at, life, sha256)
        elif sha256 is not None:
            self.overwritten.append(f"chunk {chunk} was created twice, by {known.life} and by {life}")

    def rows_sent_again(self) -> int:
        """Rows sent to the engine beyond once for each row that was sent."""
        counts = Counter(ordinal for request in self.sent for ordinal in request.ordinals)
        return counts.total() - len(counts)

    def rows_sent_after_commit(self) -> int:
        """Rows of chunks that were committed already, sent by those who did not know it yet."""
        return sum(1 for _ in self._late())

    def violations(self) -> list[str]:
        """What must not have happened, in words; empty when all is well."""
        return [*self.overwritten, *self._recomputed(), *self._computed_despite_partial(), *self._forgotten_by_drain()]

    def _late(self) -> Iterable[tuple[Seen, int, Commit]]:
        for request in self.sent:
            for ordinal in request.ordinals:
                commit = self.commits.get(self.chunk_of(ordinal))
                if commit is not None and request.at > commit.at:
                    yield request, ordinal, commit

    def _recomputed(self) -> Iterable[str]:
        """Nothing committed is computed again: never by a life that began later, and not for long by one that was at it."""
        for request, ordinal, commit in self._late():
            life = self.lives[request.life]
            where = f"row {ordinal} of chunk {self.chunk_of(ordinal)}, committed {request.at - commit.at:.1f} s before"
            if life.began > commit.at:
                yield f"{life.name}, which began after the commit, sent {where}"
                continue
            # While it was stopped, or could not ask the store, it had no way to know.
            excused = _overlap([*life.frozen, *self.outages], commit.at, request.at)
            if request.at - commit.at - excused > HOUSEKEEPING_S + SLACK_S:
                yield f"{life.name} sent {where}"

    def _computed_despite_partial(self) -> Iterable[str]:
        """What a drain saved is not computed again by a life that began later."""
        saved: dict[int, Seen] = {}
        for partial in self.saved:
            for ordinal in partial.ordinals:
                saved.setdefault(ordinal, partial)
        for request in self.sent:
            for ordinal in request.ordinals:
                partial = saved.get(ordinal)  # type: ignore[assignment]
                if partial is not None and self.lives[request.life].began > partial.at:
                    yield f"{request.life} sent row {ordinal}, which {partial.life} had saved before it began"

    def _forgotten_by_drain(self) -> Iterable[str]:
        """A drain keeps every row whose answer had arrived, unless the store was out of order meanwhile."""
        for life in self.lives.values():
            if life.asked is None or life.ended is None or life.code not in (0, 75):
                continue
            if _overlap(self.outages, life.asked - 1.0, life.ended) or _overlap(life.frozen, life.asked, life.ended):
                continue
            kept = {ordinal for partial in self.saved if partial.life == life.name for ordinal in partial.ordinals}
            arrived = {
                ordinal
                for reply in self.delivered
                if reply.life == life.name and reply.at < life.asked
                for ordinal in reply.ordinals
            }
            for ordinal in sorted(arrived - kept):
                commit = self.commits.get(self.chunk_of(ordinal))
                if commit is None or commit.at > life.ended:
                    yield f"{life.name} had the answer for row {ordinal}, drained, and neither committed nor saved it"


def _overlap(spans: Iterable[tuple[float, float]], start: float, end: float) -> float:
    return sum(max(0.0, min(end, stop) - max(start, begin)) for begin, stop in spans)


def _is_of_a_row(exchange: Exchange) -> bool:
    """Whether it computes: a canary's answer is thrown away, so it computes nothing again."""
    return exchange.method == "POST" and not exchange.canary


class EngineWitness:
    """Watches the proxy before the engine. requests_done counts up over all runs: the measure of progress."""

    def __init__(self) -> None:
        self.book: Book | None = None
        self.requests_done = 0

    def forwarded(self, exchange: Exchange) -> None:
        if self.book is not None and _is_of_a_row(exchange):
            self.book.sent.append(self._seen(self.book, exchange))

    def answered(self, exchange: Exchange) -> None:
        if self.book is not None and _is_of_a_row(exchange) and exchange.status == 200:
            self.book.answered.append(self._seen(self.book, exchange))

    def delivered(self, exchange: Exchange) -> None:
        if self.book is not None and _is_of_a_row(exchange) and exchange.status == 200:
            self.requests_done += 1
            self.book.delivered.append(self._seen(self.book, exchange))

    def _seen(self, book: Book, exchange: Exchange) -> Seen:
        return Seen(asyncio.get_running_loop().time(), exchange.client, book.rows_of(exchange))


class StoreWitness:
    """Watches the proxy before the store: what is written into the ledger and what it is said to hold."""

    def __init__(self) -> None:
        self.book: Book | None = None

    def forwarded(self, exchange: Exchange) -> None: ...

    def delivered(self, exchange: Exchange) -> None: ...

    def answered(self, exchange: Exchange) -> None:
        if self.book is None:
            return
        path = unquote(exchange.target.partition("?")[0])
        if exchange.method == "GET" and exchange.status == 200 and "list-type" in exchange.target:
            for number in _CHUNK.findall(exchange.reply.decode(errors="replace")):
                self.book.committed(int(number))
        elif exchange.method == "PUT" and (match := _CHUNK.search(path)):
            if exchange.status == 200:
                self.book.committed(int(match[1]), exchange.client, hashlib.sha256(exchange.body).hexdigest())
            elif exchange.status == 412:
                self.book.committed(int(match[1]))
        elif exchange.method == "PUT" and exchange.status == 200 and (match := _PARTIAL.search(path)):
            table, _ = chunks.decode(exchange.body)
            ordinals = tuple(table.column("ordinal").to_pylist())
            self.book.saved.append(Seen(asyncio.get_running_loop().time(), match[2], ordinals))
