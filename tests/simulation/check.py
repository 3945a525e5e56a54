"""Holds a simulated run to the invariants of the design: some at every step, the rest when it is over.

A violation names its invariant: conservation, exactly once, bounded loss, recomputed, no mixing, flat memory, bad row, exit
code, dead letters, notes, liveness, crash. What is not checked here: time that one worker loses to another, which a benchmark
measures, and publishing.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

from nightshift import exits
from nightshift.driver.engine import Failed, Gone, Refused, Replied, SendResult, Unsent
from nightshift.run.chunks import NotAChunk
from nightshift.run.tolerance import ToleranceExceeded
from nightshift.store import StoreUnavailable
from nightshift.tasks.base import Reason
from tests.simulation.codecs import Decoded
from tests.simulation.engines import EngineEvents
from tests.simulation.rows import ABORTED, GARBAGE, Kept, Nature
from tests.simulation.scenario import RUN, WORK, AnswerBounds, Scenario
from tests.simulation.storage import Bucket, ClientEvents, Effect

DRAIN_S: Final = 15.0
STOPPED_S: Final = 1.0
"""A worker that has seen a chunk committed lets go of its rows at once; this is for what is under way between two tasks."""
WAITING_MOST: Final = 8
"""Finished chunks that may wait for the store before no further chunk is opened. Stated here, not taken from the driver."""
LET_GO_S: Final = 5.0
"""After a chunk's end nothing of it stays in memory: seconds for threads and for the note of what became of it."""
BACKOFF_S: Final = 60.0
"""So long after trouble with the store, commits may still wait for their next try, or for the place of one that waits."""
FAILING_S: Final = 900.0
"""So long an engine may answer nobody before its worker may leave work to the next one."""
ABSENT_S: Final = 300.0
LOSSES: Final = 7
"""So long, or so often, engines may be gone without an answer of any of them before their worker may."""
DRAIN_WAITS_S: Final = 5.9
"""So long a worker that drains waits for the requests in flight."""
STORE_S: Final = 550.0
"""So long a worker tries to store a chunk at least, unless it is done."""
JUDGED_S: Final = 60.0
"""A worker looks at the run's dead letters every 39 s at least."""
NAMED: Final = 5
"""Violations that an error lists; the first one is usually the cause of the rest."""

_CHUNK: Final = re.compile(rf"{re.escape(WORK.prefix)}/ledger/chunk-(\d{{8}})\.parquet")
_PARTIAL: Final = re.compile(rf"{re.escape(WORK.prefix)}/partials/chunk-(\d{{8}})/([^/]+)\.parquet")
_DEAD: Final = re.compile(rf"{re.escape(WORK.prefix)}/notes/dead/chunk-(\d{{8}})-(\d+)")
_LOST: Final = re.compile(rf"{re.escape(WORK.prefix)}/notes/lost/chunk-(\d{{8}})/(.+)-(\d+)")
_MARK: Final = re.compile(rf"{re.escape(WORK.prefix)}/attempts/([^/]+)/\d{{8}}\.json")
_FOLDER: Final = f"{WORK.prefix}/"


class Violated(AssertionError):
    """The schedule broke invariants. violations: each as "invariant: what happened"."""

    def __init__(self, seed: int, violations: list[str]) -> None:
        more = f"\n... and {len(violations) - NAMED} more" if len(violations) > NAMED else ""
        super().__init__(f"seed {seed}:\n" + "\n".join(violations[:NAMED]) + more)
        self.seed = seed
        self.violations = violations
        self.trace: tuple[str, ...] = ()

    def __reduce__(self) -> tuple[type[Violated], tuple[int, list[str]]]:
        return Violated, (self.seed, self.violations)


class Audit:
    """What is known of the whole run. say(who, what): a line for the trace."""

    def __init__(
        self,
        scenario: Scenario,
        decode: Callable[[bytes], Decoded],
        clock: Callable[[], float],
        say: Callable[[str, str], None],
    ) -> None:
        self.scenario = scenario
        self.violations: list[str] = []
        self.committed: dict[int, bytes] = {}
        self.saved: set[int] = set()
        self.computed: Counter[int] = Counter()
        self.dead: Counter[int] = Counter()
        self.noted = 0
        """Dead letters that notes name."""
        self.too_many_since = math.inf
        """Since when notes name more dead letters than the job tolerates."""
        self.pods: list[PodAudit] = []
        self.winners: dict[int, str] = {}
        """Who committed which chunk."""
        self.planted: dict[str, bytes] = {}
        self.seen: Counter[str] = Counter()
        """How often what is worth simulating has happened."""
        self.clock = clock
        self.say = say
        self._decode = decode

    def fail(self, invariant: str, what: str) -> None:
        """Records a violation."""
        self.violations.append(f"{invariant}: {what} (at {self.clock():.3f} s)")
        self.say("CHECK", f"{invariant} violated: {what}")

    def chunk_of(self, ordinal: int) -> int:
        return ordinal // self.scenario.plan.chunk_rows

    def durable(self, ordinal: int) -> bool:
        """Whether a row's result is in the store, committed or saved."""
        return self.chunk_of(ordinal) in self.committed or ordinal in self.saved

    def effect(self, effect: Effect, body: bytes) -> None:
        """A create arrived at the store: what it made must be right, whoever made it and when."""
        self.say(effect.who, f"{'creates' if effect.won else 'finds'} {effect.path.removeprefix(_FOLDER)}")
        if not effect.won:
            self.seen["creates that found the object there"] += 1
            return
        if match := _CHUNK.fullmatch(effect.path):
            self._committed(int(match[1]), body)
        elif match := _PARTIAL.fullmatch(effect.path):
            content = self._content(body, int(match[1]), "bounded loss")
            self.seen["partials"] += 1
            self.saved.update(result.ordinal for result in content.results)
        elif match := _DEAD.fullmatch(effect.path):
            if self.dead[int(match[1])] != int(match[2]):
                self.fail("conservation", f"{effect.path} notes what the chunk does not hold ({self.dead[int(match[1])]})")
            self.noted += int(match[2])
            allowed = self.scenario.limits.dead_letters
            if allowed is not None and self.noted > allowed:
                self.too_many_since = min(self.too_many_since, self.clock())
        elif match := _LOST.fullmatch(effect.path):
            if int(match[1]) not in self.committed:
                self.fail("conservation", f"{effect.path} says that a chunk is lost that nobody has committed")
            elif self.winners[int(match[1])] == match[2]:
                self.fail("conservation", f"{effect.path} says that a copy was for nothing that is the committed one")
        elif (match := _MARK.fullmatch(effect.path)) and match[1] == effect.who:
            self.seen["marks"] += 1
        else:
            self.fail("no mixing", f"{effect.who} created {effect.path}")

    def _committed(self, chunk: int, body: bytes) -> None:
        self.committed[chunk] = body
        content = self._content(body, chunk, "conservation")
        expected = list(self.scenario.plan.chunk_range(chunk))
        if [result.ordinal for result in content.results] != expected:
            self.fail("exactly once", f"chunk {chunk} holds {[result.ordinal for result in content.results]}, not {expected}")
        self.winners[chunk] = content.attempt
        self.seen["chunks with rows of earlier attempts"] += bool(content.merged)
        self.dead[chunk] = sum(result.reason is not None for result in content.results)

    def _content(self, body: bytes, chunk: int, invariant: str) -> Decoded:
        try:
            content = self._decode(body)
        except NotAChunk as error:
            self.fail(invariant, f"chunk {chunk}: {error}")
            return Decoded(RUN.run_id, chunk, "", [], [], {})
        if (content.run_id, content.chunk) != (RUN.run_id, chunk):
            self.fail("no mixing", f"chunk {chunk} holds what belongs to chunk {content.chunk} of run {content.run_id}")
        if content.keys != [result.ordinal for result in content.results]:
            self.fail(invariant, f"chunk {chunk} has the keys {content.keys} beside the ordinals of other rows")
        if sum(content.merged.values()) > len(content.results):
            self.fail(invariant, f"chunk {chunk} claims {content.merged} rows of others, and has {len(content.results)}")
        for result in content.results:
            if wrong := self.scenario.rows.wrong_with(result):
                self.fail("bad row" if result.reason else invariant, wrong)
        return content

    def over(self, bucket: Bucket, stopped: bool) -> None:
        """The run is over. stopped: it was given up for its dead letters, so that it need not be complete."""
        plan = self.scenario.plan
        missing = [chunk for chunk in range(plan.chunk_count) if chunk not in self.committed]
        if missing and not stopped:
            self.fail("conservation", f"chunks {missing} were never committed")
        for chunk, body in self.committed.items():
            if bucket.objects.get(f"{WORK.prefix}/ledger/chunk-{chunk:08d}.parquet") != body:
                self.fail("exactly once", f"committed chunk {chunk} was changed afterwards")
        for path, body in self.planted.items():
            if bucket.objects.get(path) != body:
                self.fail("no mixing", f"{path} was changed")
        for pod in self.pods:
            pod.judge_notes(bucket)


class MarkAudit(ClientEvents):
    """What is known of one attempt's marks: they fail as requests do, and that excuses the attempt for nothing."""

    def __init__(self, audit: Audit, name: str) -> None:
        self._audit = audit
        self._name = name

    def touched(self, path: str) -> None:
        if not (match := _MARK.fullmatch(path)) or match[1] != self._name:
            self._audit.fail("no mixing", f"{self._name} asks for {path} with its marks")

    def troubled(self, call: str, seconds: float) -> None:
        self._audit.seen["marks in trouble"] += 1


class EngineAudit(EngineEvents):
    """One of the engines of a pod."""

    def __init__(self, pod: PodAudit, number: int) -> None:
        self._pod = pod
        self._number = number

    def sent(self, ordinals: list[int], *, canary: bool) -> None:
        self._pod.sent(ordinals, self._number, canary=canary)

    def computing(self, ordinals: list[int]) -> None:
        self._pod.computing(ordinals)

    def answered(self, ordinals: list[int], outcome: SendResult) -> None:
        self._pod.answered(ordinals, outcome, self._number)

    def hung_up(self, ordinals: list[int]) -> None:
        self._pod.hung_up(ordinals, self._number)

    def died(self, why: str) -> None:
        self._pod.died(why, self._number)

    def asked_restart(self) -> None:
        self._pod.asked_restart(self._number)


class PodAudit(ClientEvents):
    """What is known of one attempt. home: chunks that it must see committed before it may exit with 0. kept: of its memory."""

    def __init__(self, audit: Audit, name: str, home: range, kept: Kept) -> None:
        self.name = name
        self._audit = audit
        self._home = home
        self._kept = kept
        self._started = audit.clock()
        self._saved_before = frozenset(audit.saved)
        """Rows of partials that it finds when it opens their chunks."""
        self._listed = False
        self._seen: dict[int, float] = {}
        """Chunks that it knows are committed, and since when."""
        self._in_flight: Counter[int] = Counter()
        """Rows in flight, by chunk."""
        self._held: dict[tuple[int, ...], int] = {}
        """Bytes of its requests, by their rows."""
        self._sent: set[int] = set()
        self._chunks_sent: set[int] = set()
        """Chunks of which it has sent a row."""
        self._finished: dict[int, None] = {}
        self._finished_in: Counter[int] = Counter()
        """How many of `_finished` are of which chunk."""
        self._waiting: dict[int, float] = {}
        """Chunks of which it has every answer and does not know that they are committed, and since when."""
        self._tried: set[int] = set()
        """Chunks whose commit was answered, in its favour or not."""
        self._begun_crowded = 0
        """Chunks that it has begun since `WAITING_MOST` are waiting, or too many bytes of answers."""
        self._encoded: dict[int, tuple[int, float]] = {}
        """Bytes of answers that are being encoded and stored, by chunk, and since when."""
        self._trouble_until = -math.inf
        self._still_until = -math.inf
        """Until when it was frozen."""
        self._drained_at: float | None = None
        self._canaries: dict[int, list[int]] = {}
        """By engine, the rows of a request that is only to show whether it answers."""
        self.asked: dict[int, list[float]] = {}
        """By engine, when the worker asked for it to be started again."""
        self._failed_at: dict[int, int] = {}
        """Rows that an engine did not answer, and which one it was."""
        self.carried_until: dict[int, float] = {}
        """By engine, when it last had a row, or one that it had not answered went to another engine."""
        self._faults: dict[int, float] = {}
        """Engines of which a request has failed since their last answer, and since when."""
        self._turned_away: dict[int, int] = {}
        """Rows that were turned away last, and at which engine."""
        self._flying: Counter[int] = Counter()
        """Rows in flight, by ordinal."""
        self._last_answer = audit.clock()
        self._losses = 0
        """Connections that broke, and deaths of engines, since the last answer of any."""
        self._read: set[int] = set()
        """Chunks whose rows it has read."""
        self._excused = False
        self._done = False
        audit.pods.append(self)

    def touched(self, path: str) -> None:
        if not path.startswith(_FOLDER):
            self._audit.fail("no mixing", f"{self.name} asks for {path}, outside the run's folder")

    def listed(self, folder: str, paths: list[str]) -> None:
        if folder == f"{WORK.prefix}/ledger":
            self._listed = True
            for path in paths:
                self._learns(path)
            self._audit.say(self.name, f"lists {len(paths)} chunks")

    def settled(self, path: str) -> None:
        if match := _CHUNK.fullmatch(path) or _PARTIAL.fullmatch(path):
            self._encoded.pop(int(match[1]), None)
        if match := _CHUNK.fullmatch(path):
            self._tried.add(int(match[1]))
        self._learns(path)

    def _learns(self, path: str) -> None:
        if match := _CHUNK.fullmatch(path):
            chunk = int(match[1])
            self._seen.setdefault(chunk, self._audit.clock())
            self._waiting.pop(chunk, None)
            if not self._crowded():
                self._begun_crowded = 0

    def troubled(self, call: str, seconds: float) -> None:
        self._trouble_until = max(self._trouble_until, self._audit.clock() + seconds)
        self._audit.seen[f"store: {call.removeprefix('create: ')}"] += 1
        self._audit.say(self.name, f"STORE {call} is in trouble for {seconds:.1f} s")

    def frozen(self) -> None:
        self._still_until = math.inf

    def thawed(self) -> None:
        self._still_until = self._audit.clock()

    def reading(self, chunk: int) -> None:
        """It is about to read a chunk's rows, one chunk ahead of need: what it opened before must fit, and have been needed."""
        if self._drained_at is not None:
            return
        now, limits = self._audit.clock(), self._audit.scenario.limits
        tables = {number: size for number, size in self._kept.tables().items() if number != chunk}
        # The one that it opened last is let go when it opens the next one.
        if len(over := [number for number in tables if self._should_be_let_go(number)]) > 1:
            self._audit.fail("flat memory", f"{self.name} keeps rows of chunks {over}, which are committed")
        # A chunk that is committed or open is not opened: an answered row of it is wanted, as canary.
        again, self._read = chunk in self._seen or chunk in self._read, self._read | {chunk}
        if again:
            return
        tables = {number: size for number, size in tables.items() if number not in self._seen}
        held = sum(tables.values())
        if held > max([limits.buffer_bytes, *tables.values()]):
            self._audit.fail("flat memory", f"{self.name} holds {held} bytes of rows ({tables}), not {limits.buffer_bytes}")
        if len(unsent := [number for number in tables if self._unsent(number)]) > 1:
            self._audit.fail("flat memory", f"{self.name} has opened chunk {unsent[-1]} before it needed it, at {now:.1f} s")
        answers = sum(
            len(self._audit.scenario.rows.prediction(ordinal))
            for ordinal in self._finished
            if not self._should_be_let_go(self._audit.chunk_of(ordinal))
        )
        if self._kept.answers > answers:
            self._audit.fail("flat memory", f"{self.name} keeps {self._kept.answers} bytes of answers where {answers} are due")

    def _should_be_let_go(self, chunk: int) -> bool:
        ordinals = self._audit.scenario.plan.chunk_range(chunk)
        finished = self._finished_in[chunk] == len(ordinals) or any(n in self._audit.scenario.rows.natures for n in ordinals)
        if finished and chunk not in self._tried:
            # Its copy is on its way to the store still, though another's is there.
            return False
        if self._trouble_until > -math.inf or self._audit.scenario.reader_error:
            # An error that was caught refers to what its call held until garbage is collected, which a simulation never does.
            return False
        since = max(self._seen.get(chunk, math.inf), self._still_until)
        slowest = 2 * self._audit.scenario.thread_s + 6 * self._audit.scenario.weather.latency_s
        return self._audit.clock() > since + LET_GO_S + slowest

    def _unsent(self, chunk: int) -> list[int]:
        """Rows of a chunk that were never sent, and should be."""
        rows = self._audit.scenario.rows
        return [
            ordinal
            for ordinal in self._audit.scenario.plan.chunk_range(chunk)
            if ordinal not in self._sent and ordinal not in self._audit.saved and rows.natures.get(ordinal) != Nature.BAD_INPUT
        ]

    def sent(self, ordinals: list[int], engine: int, *, canary: bool) -> None:
        if canary:
            self._judge_canary(ordinals, engine)
            self._canaries[engine] = ordinals
            self._audit.seen["canaries"] += 1
            self._audit.say(self.name, f"sends {_named(ordinals)} as canary{f' to engine {engine}' if engine else ''}")
            return
        chunks = {self._audit.chunk_of(ordinal): None for ordinal in ordinals}
        self._begins(chunks)
        self._sent.update(ordinals)
        if again := [ordinal for ordinal in ordinals if ordinal in self._saved_before]:
            self._audit.fail("recomputed", f"{self.name} sends rows {again}, which an earlier attempt has saved")
        self._judge_early_stop()
        if twice := [ordinal for ordinal in ordinals if self._flying[ordinal]]:
            self._audit.fail("recomputed", f"{self.name} sends rows {twice}, which an engine has already")
        self._fly(ordinals, 1)
        for left in [self._failed_at.pop(ordinal, engine) for ordinal in ordinals]:
            self.carried_until[left] = self._audit.clock()
        # As payload and in the request's body.
        self._held[tuple(ordinals)] = 2 * sum(len(self._audit.scenario.rows.text(ordinal)) for ordinal in ordinals)
        self._audit.say(self.name, f"sends {_named(ordinals)}{f' to engine {engine}' if engine else ''}")
        if not self._listed:
            self._audit.fail("recomputed", f"{self.name} sends rows {ordinals} before it knows what is committed")
        for chunk in [chunk for chunk in chunks if chunk in self._seen]:
            self._audit.fail("recomputed", f"{self.name} sends rows {ordinals} of chunk {chunk}, which it knows is committed")
        late = self._audit.clock() - STOPPED_S
        for chunk in [chunk for chunk, count in self._in_flight.items() if count and self._seen.get(chunk, late) < late]:
            self._audit.fail(
                "recomputed", f"{self.name} still has rows of chunk {chunk} in flight, which it knows is committed"
            )
        limits, step = self._audit.scenario.limits, self._audit.scenario.rows_per_request
        rows = self._in_flight.total()
        if (held := sum(self._held.values())) > limits.flight_bytes and len(self._held) > 1:
            self._audit.fail("flat memory", f"{self.name} holds {held} bytes of requests, more than {limits.flight_bytes}")
        if rows > self._audit.scenario.engines * (max(limits.window_most, step) + step - 1):
            self._audit.fail("flat memory", f"{self.name} has {rows} rows in flight, more than {limits.window_most}")

    def _judge_canary(self, ordinals: list[int], engine: int) -> None:
        """A row that is answered already may be sent again, one request at a time, while a request to its engine has failed and
        no other was answered since."""
        # What is committed may be known from the pages of a listing that goes on.
        known = all(n in self._finished or self._audit.durable(n) for n in ordinals)
        # An answer to one that was let in before says nothing of what is turned away.
        failed = engine in self._faults or engine in self._turned_away.values()
        if not (known and failed and engine not in self._canaries):
            self._audit.fail("recomputed", f"{self.name} sends rows {ordinals} again as a canary, for no reason")

    def _fly(self, ordinals: list[int], copies: int) -> None:
        for ordinal in ordinals:
            self._in_flight[self._audit.chunk_of(ordinal)] += copies
            self._flying[ordinal] += copies

    def computing(self, ordinals: list[int]) -> None:
        self._audit.computed.update(ordinals)

    def answered(self, ordinals: list[int], outcome: SendResult, engine: int) -> None:
        if _is_answer(outcome):
            self._last_answer, self._losses = self._audit.clock(), 0
        self._losses += isinstance(outcome, Gone)
        if ordinals == self._canaries.get(engine):
            del self._canaries[engine]
            self._audit.say(self.name, f"gets {_shown(outcome)} for the canary {_named(ordinals)}")
            return
        self._lands(ordinals, engine)
        for ordinal in ordinals:
            self._turned_away.pop(ordinal, None)
        if isinstance(outcome, Failed) and outcome.lasting:
            self._turned_away.update(dict.fromkeys(ordinals, engine))
        if _is_answer(outcome):
            self._faults.pop(engine, None)
        elif not isinstance(outcome, Refused | Unsent):
            self._faults.setdefault(engine, self._audit.clock())
        self._audit.say(self.name, f"gets {_shown(outcome)} for {_named(ordinals)}")
        if isinstance(outcome, Gone) or (isinstance(outcome, Failed) and outcome.reason is Reason.TIMEOUT):
            self._excused = True
        self._audit.seen[f"engine: {_kind_of(outcome)}"] += 1
        if _is_answer(outcome) or (isinstance(outcome, Refused) and len(ordinals) == 1):
            for ordinal in ordinals:
                self._finish(ordinal)

    def _finish(self, ordinal: int) -> None:
        chunk = self._audit.chunk_of(ordinal)
        if ordinal not in self._finished:
            self._finished[ordinal] = None
            self._finished_in[chunk] += 1
            if self._finished_in[chunk] == len(self._audit.scenario.plan.chunk_range(chunk)) and chunk not in self._seen:
                self._waiting[chunk] = self._audit.clock()

    def _lands(self, ordinals: list[int], engine: int) -> None:
        self._fly(ordinals, -1)
        del self._held[tuple(ordinals)]
        self._failed_at.update(dict.fromkeys(ordinals, engine))
        self.carried_until[engine] = self._audit.clock()

    def hung_up(self, ordinals: list[int], engine: int) -> None:
        if ordinals == self._canaries.get(engine):
            del self._canaries[engine]
            return
        self._judge_hanging_up(ordinals)
        self._lands(ordinals, engine)
        self._audit.say(self.name, f"gives up waiting for {_named(ordinals)}")

    def _judge_hanging_up(self, ordinals: list[int]) -> None:
        """A worker that drains waits for its requests, unless their chunk is committed or an engine seems to be gone."""
        chunks = {self._audit.chunk_of(ordinal) for ordinal in ordinals}
        if self._audit.too_many_since < math.inf:
            return  # It may have begun to end before it was told to.
        if self._drained_at is None or self._excused or chunks & self._seen.keys() or self._trouble_until > -math.inf:
            return
        if (waited := self._audit.clock() - self._drained_at) < DRAIN_WAITS_S and self._still_until < self._drained_at:
            self._audit.fail("bounded loss", f"{self.name} waits only {waited:.1f} s for {_named(ordinals)} as it drains")

    def died(self, why: str, engine: int) -> None:
        self._excused = True
        self._losses += 1
        self._audit.seen["engine: deaths"] += 1
        self._audit.seen["engine: deaths beside another"] += self._audit.scenario.engines > 1
        self._audit.say(self.name, f"ENGINE{f' {engine}' if engine else ''} DIES ({why})")

    def asked_restart(self, engine: int) -> None:
        self.asked.setdefault(engine, []).append(self._audit.clock())
        self._audit.say(self.name, f"asks for engine {engine} to be started again")

    def drained(self) -> None:
        """The worker has just been told to drain, for the first time."""
        self._drained_at = self._audit.clock()

    def killed(self) -> None:
        """SIGKILL. Of the chunks whose finished rows die with the worker one at most was not sent whole.

        Those that were finished had no time to be stored.
        """
        self._audit.seen["kills"] += 1
        lost = dict.fromkeys(self._audit.chunk_of(ordinal) for ordinal in self._finished if not self._audit.durable(ordinal))
        self._audit.seen["kills that lost rows"] += bool(lost)
        if len(begun := [chunk for chunk in lost if self._unsent(chunk)]) > 1:
            self._audit.fail("bounded loss", f"{self.name} takes rows of {begun} with it, and had not sent all of any of them")
        scenario = self._audit.scenario
        # A commit: into a thread and out of it, and one way or there and back; four at once.
        commit_s = 2 * scenario.thread_s + 4.5 * scenario.weather.latency_s
        at_once = 4 if scenario.answers.encoded == AnswerBounds().encoded else 1
        due = self._audit.clock() - 1.0 - commit_s * (len(self._waiting) // at_once + 1)
        for chunk, since in self._waiting.items():
            if chunk not in lost or self._trouble_until + BACKOFF_S > since or max(since, self._still_until) > due:
                continue
            self._audit.fail("bounded loss", f"{self.name} takes chunk {chunk} with it, finished at {since:.1f} s")

    def _crowded(self) -> str:
        """Why no further chunk may be opened, by what the checker knows for certain of the worker's answers."""
        bounds = self._audit.scenario.answers
        if len(self._waiting) >= WAITING_MOST:
            return f"{len(self._waiting)} wait for the store"
        if (size := self._answers_of(self._waiting)) >= bounds.waiting:
            return f"{size} bytes of answers wait for the store, {bounds.waiting} at most"
        if (size := self._answers_of(self._chunks_sent - self._seen.keys())) >= bounds.open:
            return f"it has {size} bytes of answers, {bounds.open} at most"
        return ""

    def _answers_of(self, chunks: Collection[int]) -> int:
        rows = self._audit.scenario.rows
        return sum(
            len(rows.prediction(ordinal))
            for ordinal in self._finished
            if self._audit.chunk_of(ordinal) in chunks and ordinal not in rows.natures
        )

    def encodes(self, chunk: int, size: int) -> None:
        """It is about to encode a chunk, or what is finished of it."""
        now, most = self._audit.clock(), self._audit.scenario.answers.encoded
        # A commit that was given up is not heard of.
        others = [each for number, (each, since) in self._encoded.items() if number != chunk and now < since + STORE_S]
        # A chunk without answers takes no room, and waits for none that is there.
        if size and (held := sum(others)) and size + held > most:
            self._audit.fail("flat memory", f"{self.name} encodes {size} bytes of answers beside {others}, {most} at most")
        self._encoded[chunk] = (size, now)

    def _begins(self, chunks: Iterable[int]) -> None:
        """It sends rows of these chunks."""
        for chunk in [chunk for chunk in chunks if chunk not in self._chunks_sent]:
            self._chunks_sent.add(chunk)
            self._begun_crowded += bool(why := self._crowded())
            # One was opened before they were too many.
            if self._begun_crowded > 1:
                self._audit.fail("flat memory", f"{self.name} begins chunk {chunk} while {why}")

    def _judge_early_stop(self) -> None:
        audit, weather = self._audit, self._audit.scenario.weather
        pages = 2 * audit.scenario.plan.chunk_count / weather.page + 10
        since = max(audit.too_many_since, self._started, self._trouble_until, self._still_until)
        if audit.clock() > since + JUDGED_S + 1.5 * weather.latency_s * pages:
            audit.fail("dead letters", f"{self.name} works on, and notes name {audit.noted} since {audit.too_many_since:.1f} s")

    def judge_notes(self, bucket: Bucket) -> None:
        """The run is over. A worker that had no trouble has told of its dead letters and of what it computed for nothing."""
        if not self._done or self._excused or self._drained_at is not None or self._trouble_until > -math.inf:
            return
        audit = self._audit
        for chunk, winner in audit.winners.items():
            if winner == self.name and audit.dead[chunk]:
                path = f"{WORK.prefix}/notes/dead/chunk-{chunk:08d}-{audit.dead[chunk]}"
                if path not in bucket.objects:
                    audit.fail("notes", f"{self.name} did not write {path}")
            if winner != self.name and self._finished_in[chunk]:
                folder = f"{WORK.prefix}/notes/lost/chunk-{chunk:08d}"
                if not any(path.startswith(f"{self.name}-") for path in _names(bucket, folder)):
                    audit.fail("notes", f"{self.name} computed rows of chunk {chunk} for {winner}, and did not note it")

    def exited(self, code: int | None, error: BaseException | None) -> None:
        """The worker's `run` returned a code or raised."""
        audit = self._audit
        self._done = code == exits.DONE
        audit.say(self.name, f"EXITS with {code if error is None else repr(error)}")
        missing = [chunk for chunk in self._home if chunk not in audit.committed]
        if isinstance(error, ToleranceExceeded):
            allowed = audit.scenario.limits.dead_letters
            if allowed is None or sum(audit.dead.values()) <= allowed:
                audit.fail("exit code", f"{self.name} gave up for {sum(audit.dead.values())} dead letters of {allowed}")
        elif error is not None and not isinstance(error, StoreUnavailable):
            audit.fail("exit code", f"{self.name} crashed: {error!r}")
        elif error is None and code not in (exits.DONE, exits.RESUME):
            audit.fail("exit code", f"{self.name} exited with {code}")
        elif code != exits.DONE and not self._may_give_up():
            audit.fail("exit code", f"{self.name} gave up ({code}, {error!r}) though nothing was wrong")
        elif code == exits.DONE and missing:
            audit.fail("exit code", f"{self.name} exited with 0, and chunks {missing} of its work are not committed")
        took = 0.0 if self._drained_at is None else audit.clock() - self._drained_at
        if took > DRAIN_S:
            audit.fail("bounded loss", f"{self.name} took {took:.1f} s to drain")
        self._judge_what_is_saved(by_itself=self._drained_at is None or error is not None)

    def _may_give_up(self) -> bool:
        """Whether anything has happened for which a worker may leave work to the next one."""
        reader = self._audit.scenario.reader_error > 0
        now, engines = self._audit.clock(), self._audit.scenario.engines
        failing = len(self._faults) == engines and now > min(self._faults.values()) + FAILING_S
        # Of several engines, not one has answered for so long.
        gone = self._excused and (engines == 1 or now > self._last_answer + ABSENT_S or self._losses >= LOSSES * engines)
        return gone or self._drained_at is not None or self._trouble_until > -math.inf or reader or failing

    def _judge_what_is_saved(self, *, by_itself: bool) -> None:
        """Every row that was finished must be in the store, unless that gave trouble since the worker began to end.

        by_itself: it did so before it was told to drain.
        """
        lost = [ordinal for ordinal in self._finished if not self._audit.durable(ordinal)]
        if by_itself or self._drained_at is None:
            # At most so long ago. If it was frozen meanwhile, its time was over when it thawed.
            excused = max(self._trouble_until, self._still_until) >= self._audit.clock() - DRAIN_S
        else:
            excused = self._trouble_until >= self._drained_at
        if lost and not excused:
            self._audit.fail("bounded loss", f"{self.name} ended in order and did not save rows {_named(lost)}")


def _names(bucket: Bucket, folder: str) -> list[str]:
    return [path.removeprefix(f"{folder}/") for path in bucket.objects if path.startswith(f"{folder}/")]


def _named(ordinals: list[int]) -> str:
    return " ".join(map(str, ordinals))


def _shown(outcome: SendResult) -> str:
    return "an answer" if _is_answer(outcome) else str(outcome)


def _kind_of(outcome: SendResult) -> str:
    return str(outcome.body) if isinstance(outcome, Replied) and not _is_answer(outcome) else type(outcome).__name__


def _is_answer(outcome: SendResult) -> bool:
    body: Any = outcome.body if isinstance(outcome, Replied) else GARBAGE
    return body not in (ABORTED, GARBAGE)
