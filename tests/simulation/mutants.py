"""The protocol with one mistake in it: what the simulator must notice.

Each mutant changes the real code in one place while a schedule runs; mutants.json names a schedule (seed) that catches it and
passes without it. They were found by search: `PYTHONPATH=plugins python -m tests.simulation --mutants` searches again and
writes the file, as a change of the driver may need, since it shifts what each seed does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from nightshift.driver import commits, worker
from nightshift.driver.attribution import Canary, Verdict
from nightshift.driver.budget import ByteBudget
from nightshift.driver.codec import ParquetCodec
from nightshift.driver.commits import Commits
from nightshift.driver.engine import Gone, Refused, SendResult, Unsent
from nightshift.driver.engines import Engine, Engines
from nightshift.driver.fault_search import FaultSearch
from nightshift.driver.feeder import Feeder, Opened
from nightshift.driver.health import EngineHealth
from nightshift.driver.open_chunk import OpenChunk
from nightshift.driver.request_loop import RequestLoop
from nightshift.driver.scheduler import DeadLetterCause, Group, Scheduler
from nightshift.driver.sender import Sender
from nightshift.driver.window import Window
from nightshift.driver.work_stealing import Ranges
from nightshift.driver.worker import Worker
from nightshift.run.chunks import Saved, decode_results, results_of
from nightshift.run.ledger import Chunks, Ledger
from nightshift.store import StoreUnavailable
from nightshift.tasks.base import Answer, Answers, NotDone, Reason
from tests.simulation.check import Violated
from tests.simulation.replaced import Change, replaced
from tests.simulation.world import simulate


@dataclass(frozen=True)
class Mutant:
    """breaks: the invariants (`check`), one of which must be seen broken."""

    name: str
    breaks: frozenset[str]
    changes: Callable[[], tuple[Change, ...]]

    def applied(self) -> AbstractContextManager[None]:
        """Makes the mistake for as long as the context lasts."""
        return replaced(self.changes())

    def broken(self, simulate: Callable[[int], object], seed: int) -> list[str]:
        """What the schedule finds wrong with it, if it is its kind of wrong."""
        with self.applied():
            try:
                simulate(seed)
            except Violated as error:
                return [line for line in error.violations if line.split(":")[0] in self.breaks]
        return []


SEEDS_FILE: Final = Path(__file__).with_suffix(".json")


def seeds() -> dict[str, int]:
    """The schedule that catches each mutant, by its name."""
    return dict(json.loads(SEEDS_FILE.read_text()))


def caught(mutant: Mutant, seed: int) -> str | None:
    """What the schedule finds wrong with the mutant, if it is the mutant's kind of wrong; None too where it passes nothing."""
    found = mutant.broken(simulate, seed)
    if not found:
        return None
    try:
        simulate(seed)
    except Violated:
        return None
    return found[0]


def _commit_early() -> tuple[Change, ...]:
    return ((OpenChunk, "complete", property(lambda self: len(self.results) >= max(1, self.expected - 1))),)


def _count_partials_twice() -> tuple[Change, ...]:
    open_chunk = Scheduler.open_chunk

    def trusting(
        self: Scheduler, number: int, ordinals: range, rows: Any, known: Mapping[str, Saved], names: Any = None
    ) -> None:
        open_chunk(self, number, ordinals, rows, known, names)
        chunk = self._open.get(number)
        if chunk is not None:
            claimed = sum(len(saved.results) for saved in known.values())
            chunk.expected -= claimed - len(chunk.theirs)

    return ((Scheduler, "open_chunk", trusting),)


def _done_on_drain() -> tuple[Change, ...]:
    return ((Worker, "_work_left", property(lambda self: False)),)


def _lost_race_is_an_error() -> tuple[Change, ...]:
    commit = Ledger.commit

    async def touchy(self: Ledger, chunk: int, body: bytes) -> bool:
        if not await commit(self, chunk, body):
            raise RuntimeError("412 Precondition Failed")
        return True

    return ((Ledger, "commit", touchy),)


def _unknown_is_done() -> tuple[Change, ...]:
    commit = Ledger.commit

    async def hopeful(self: Ledger, chunk: int, body: bytes) -> bool:
        try:
            return await commit(self, chunk, body)
        except StoreUnavailable:
            return True

    return ((Ledger, "commit", hopeful),)


def _own_copy_is_anothers() -> tuple[Change, ...]:
    async def commit(self: Ledger, chunk: int, body: bytes) -> bool:
        return await self._objects.create(self._work.chunk_path(chunk), body)

    return ((Ledger, "commit", commit),)


def _opened_twice() -> tuple[Change, ...]:
    return ((Ranges, "open", lambda self, chunk: None),)


def _open_chunk_goes_on() -> tuple[Change, ...]:
    return ((Worker, "_drop_what_others_did", lambda self: self._pump.run()),)


def _blind_to_the_ledger() -> tuple[Change, ...]:
    refresh = Ledger.refresh

    async def blind(self: Ledger, known: Chunks, chunks: range) -> None:
        await refresh(self, Chunks(self._chunk_count), chunks)

    return ((Ledger, "refresh", blind),)


def _start_without_a_look() -> tuple[Change, ...]:
    async def skip(self: Feeder, chunks: range) -> None:
        return None

    return ((Feeder, "look_again", skip),)


def _helper_is_always_done() -> tuple[Change, ...]:
    return ((Worker, "_work_left", property(lambda self: not self._ranges.home_committed)),)


def _busy_rows_forgotten() -> tuple[Change, ...]:
    def returned(self: Scheduler, group: Group) -> None:
        self._landed(group)

    return ((Scheduler, "returned", returned),)


def _partial_saved_as_chunk() -> tuple[Change, ...]:
    async def save(self: Ledger, chunk: int, attempt: str, body: bytes) -> None:
        await self._objects.create(self._work.chunk_path(chunk), body)

    return ((Ledger, "save_partial", save),)


def _partials_of_all_under_one_name() -> tuple[Change, ...]:
    save_partial = Ledger.save_partial

    async def save(self: Ledger, chunk: int, attempt: str, body: bytes) -> None:
        await save_partial(self, chunk, "saved", body)

    return ((Ledger, "save_partial", save),)


def _death_blamed_on_all() -> tuple[Change, ...]:
    def engine_died(self: Scheduler, message: str, status: int | None = None, engine: int = 0) -> int:
        groups = list(self._flying)
        for group in groups:
            chunk = self._landed(group)
            if chunk is not None:
                for row in group.rows:
                    self._give_up(chunk, row.ordinal, DeadLetterCause(Reason.ENGINE_KILLED, message, status), row.tries)
                self._settle(chunk)
        return len(groups)

    return ((Scheduler, "engine_died", engine_died),)


def _group_condemned_whole() -> tuple[Change, ...]:
    def condemn(self: Scheduler, chunk: OpenChunk, group: Group, cause: DeadLetterCause) -> None:
        for row in group.rows:
            self._give_up(chunk, row.ordinal, cause, row.tries)
        self._settle(chunk)

    return ((Scheduler, "_condemn", condemn),)


def _abort_is_an_answer() -> tuple[Change, ...]:
    answers = Sender._answers

    def easy(self: Sender, payloads: list[Any], body: Any) -> Answers:
        try:
            return answers(self, payloads, body)
        except NotDone:
            return Answers([Answer("") for _ in payloads])

    return ((Sender, "_answers", easy),)


def _drain_saves_nothing() -> tuple[Change, ...]:
    return ((Scheduler, "unfinished", lambda self: []),)


def _drain_waits_for_the_engine() -> tuple[Change, ...]:
    return ((worker, "DRAIN_IN_FLIGHT_S", 3600.0),)


def _foreign_partials_trusted() -> tuple[Change, ...]:
    def decode(self: ParquetCodec, body: bytes, chunk: int, first: int, keys: pa.Table) -> Saved:
        results, made = decode_results(body, results_of)
        return Saved(results, made.parts[0])

    return ((ParquetCodec, "decode", decode),)


def _folder_of_all_runs() -> tuple[Change, ...]:
    create = Ledger.__init__

    def init(self: Ledger, objects: Any, run: Any, plan: Any) -> None:
        create(self, objects, run, plan)
        self._work = replace(run, digest="0" * 16, generation=1).work(plan.uid)

    return ((Ledger, "__init__", init),)


def _no_window() -> tuple[Change, ...]:
    return ((Window, "limit", property(lambda self: 1 << 20)),)


def _given_up_for_others_dead_letters() -> tuple[Change, ...]:
    noted = Ledger.dead_letters_noted

    async def double(self: Ledger, enough: int) -> int:
        return 2 * await noted(self, enough)

    return ((Ledger, "dead_letters_noted", double),)


def _buffer_ignored() -> tuple[Change, ...]:
    return ((Worker, "_room_for", lambda self, opened: self._scheduler.hungry and not self._commits.crowded),)


def _never_crowded() -> tuple[Change, ...]:
    return ((Commits, "crowded", property(lambda self: False)),)


def _always_hungry() -> tuple[Change, ...]:
    return ((Scheduler, "hungry", property(lambda self: True)),)


def _finished_chunks_kept() -> tuple[Change, ...]:
    pop_finished = Scheduler.pop_finished

    def keeping(self: Scheduler) -> OpenChunk | None:
        chunk = pop_finished(self)
        self.__dict__.setdefault("kept", []).append(chunk)
        return chunk

    return ((Scheduler, "pop_finished", keeping),)


def _commits_wait() -> tuple[Change, ...]:
    commit = Commits._commit

    async def late(self: Commits, chunk: OpenChunk, keys: Any) -> None:
        await self.patience.pause(10.0)
        await commit(self, chunk, keys)

    return ((Commits, "_commit", late),)


def _chunks_side_by_side() -> tuple[Change, ...]:
    next_group = Scheduler.next_group

    def in_turn(self: Scheduler) -> Group | None:
        group = next_group(self)
        self._sources.rotate()
        return group

    return ((Scheduler, "next_group", in_turn), (Scheduler, "hungry", property(lambda self: len(self._sources) < 3)))


def _never_judged() -> tuple[Change, ...]:
    async def judge(self: Worker) -> None:
        return None

    return ((Worker, "_judge", judge),)


def _dead_not_noted() -> tuple[Change, ...]:
    async def note(self: Ledger, chunk: int, reasons: Mapping[str, int]) -> None:
        return None

    return ((Ledger, "note_dead", note),)


def _lost_not_noted() -> tuple[Change, ...]:
    async def note(self: Ledger, chunk: int, attempt: str, rows: int) -> None:
        return None

    return ((Ledger, "note_lost", note),)


def _abandoned_not_noted() -> tuple[Change, ...]:
    return ((Commits, "lost", lambda self, chunk: None),)


def _partials_ignored() -> tuple[Change, ...]:
    async def saved(self: Feeder, opened: Opened) -> dict[str, Saved]:
        return {}

    return ((Feeder, "saved", saved),)


def _rows_are_blamed() -> tuple[Change, ...]:
    async def verdict(self: FaultSearch, group: Group, error: str) -> Verdict:
        return Verdict.ROWS

    return ((FaultSearch, "verdict", verdict),)


def _engine_is_blamed() -> tuple[Change, ...]:
    async def verdict(self: FaultSearch, group: Group, error: str) -> Verdict:
        return Verdict.ENGINE

    return ((FaultSearch, "verdict", verdict),)


def _given_up_for_a_descriptor() -> tuple[Change, ...]:
    settle = Sender._settle

    async def blaming(self: Sender, group: Group, request: Canary, outcome: SendResult) -> Any:
        refused = Refused(Reason.REJECTED, "no descriptor")
        return await settle(self, group, request, refused if isinstance(outcome, Unsent) else outcome)

    return ((Sender, "_settle", blaming),)


def _bytes_without_end() -> tuple[Change, ...]:
    return ((ByteBudget, "_fits", lambda self, size: True),)


def _open_answers_ignored() -> tuple[Change, ...]:
    return ((Scheduler, "answer_bytes", property(lambda self: 0)),)


def _waiting_answers_ignored() -> tuple[Change, ...]:
    return ((Commits, "crowded", property(lambda self: len(self._running) >= commits.WAITING_MOST)),)


def _encoded_all_at_once() -> tuple[Change, ...]:
    create = Commits.__init__

    def init(self: Commits, *parts: Any, **hooks: Any) -> None:
        create(self, *parts, **hooks)
        self._encoded = ByteBudget(1 << 60)

    return ((Commits, "__init__", init),)


def _dead_engines_rows_failed() -> tuple[Change, ...]:
    settle = Sender._settle

    async def blaming(self: Sender, group: Group, request: Canary, outcome: SendResult) -> Any:
        if isinstance(outcome, Gone) and not await self.engines.of(group).client.healthy():
            return await settle(self, group, request, Refused(Reason.ENGINE_ERROR, outcome.message))
        return await settle(self, group, request, outcome)

    return ((Sender, "_settle", blaming),)


def _not_called_back() -> tuple[Change, ...]:
    def resend(self: EngineHealth) -> None:
        if self._hung:
            self._hung = False
            for group in [group for group in self.scheduler._flying if group.engine == self.number]:
                self.scheduler.returned(group)

    return ((EngineHealth, "_resend_what_hangs", resend),)


def _no_other_engine() -> tuple[Change, ...]:
    return ((Engines, "others_answer", lambda self, engine: False),)


def _first_engine_drained() -> tuple[Change, ...]:
    land = RequestLoop.land

    async def hasty(self: RequestLoop, deadline: float) -> None:
        for group, task in list(self._attempts.items()):
            if group.engine:
                task.cancel()
        await land(self, deadline)

    return ((RequestLoop, "land", hasty),)


def _engines_are_one() -> tuple[Change, ...]:
    note = FaultSearch.note_answer

    def everywhere(self: FaultSearch, sent: float, _: Engine) -> None:
        for engine in self.engines:
            note(self, sent, engine)

    return ((FaultSearch, "note_answer", everywhere),)


def _of(*names: str) -> frozenset[str]:
    return frozenset(names)


MUTANTS: Final = (
    Mutant("a chunk is committed before its last row", _of("exactly once"), _commit_early),
    Mutant("a partial is trusted twice", _of("exactly once"), _count_partials_twice),
    Mutant("a drain exits with 0", _of("exit code"), _done_on_drain),
    Mutant("a 412 is an error", _of("exit code", "liveness"), _lost_race_is_an_error),
    Mutant("a commit without an answer counts as done", _of("exit code", "bounded loss"), _unknown_is_done),
    Mutant("one's own copy is taken for another's", _of("conservation"), _own_copy_is_anothers),
    Mutant("a chunk may be opened twice", _of("exactly once", "crash", "exit code", "liveness"), _opened_twice),
    Mutant("an open chunk that another committed goes on", _of("recomputed"), _open_chunk_goes_on),
    Mutant("the listing of committed chunks is ignored", _of("recomputed"), _blind_to_the_ledger),
    Mutant("work begins without a listing", _of("recomputed"), _start_without_a_look),
    Mutant("a helper is done when it is told to go", _of("exit code"), _helper_is_always_done),
    Mutant("rows that met a busy engine are forgotten", _of("liveness"), _busy_rows_forgotten),
    Mutant("a partial is saved as the chunk", _of("exactly once"), _partial_saved_as_chunk),
    Mutant("all attempts save under one name", _of("bounded loss"), _partials_of_all_under_one_name),
    Mutant("the engine's death is blamed on all rows in flight", _of("bad row"), _death_blamed_on_all),
    Mutant("a refused group is condemned whole", _of("bad row"), _group_condemned_whole),
    Mutant("an aborted request counts as answered", _of("conservation", "bounded loss"), _abort_is_an_answer),
    Mutant("a drain saves nothing", _of("bounded loss"), _drain_saves_nothing),
    Mutant("a drain waits for the engine", _of("bounded loss"), _drain_waits_for_the_engine),
    Mutant("partials of other runs are trusted", _of("conservation", "bounded loss"), _foreign_partials_trusted),
    Mutant("runs share a folder", _of("no mixing"), _folder_of_all_runs),
    Mutant("there is no window", _of("flat memory"), _no_window),
    Mutant("dead letters are counted twice", _of("exit code"), _given_up_for_others_dead_letters),
    Mutant("the buffer's size is ignored", _of("flat memory"), _buffer_ignored),
    Mutant("finished chunks may wait without end", _of("flat memory"), _never_crowded),
    Mutant("chunks are opened before they are needed", _of("flat memory"), _always_hungry),
    Mutant("finished chunks are kept", _of("flat memory"), _finished_chunks_kept),
    Mutant("finished chunks wait before they are stored", _of("bounded loss"), _commits_wait),
    Mutant("chunks are worked on side by side", _of("bounded loss"), _chunks_side_by_side),
    Mutant("dead letters are never judged", _of("dead letters"), _never_judged),
    Mutant("dead letters are not noted", _of("notes"), _dead_not_noted),
    Mutant("lost chunks are not noted", _of("notes"), _lost_not_noted),
    Mutant("abandoned chunks are not noted", _of("notes"), _abandoned_not_noted),
    Mutant("partials of earlier attempts are ignored", _of("recomputed"), _partials_ignored),
    Mutant("an engine that fails everybody is blamed on the rows", _of("bad row"), _rows_are_blamed),
    Mutant("rows are never to blame", _of("liveness"), _engine_is_blamed),
    Mutant("a row is given up for want of a descriptor", _of("bad row"), _given_up_for_a_descriptor),
    Mutant("requests hold bytes without end", _of("flat memory"), _bytes_without_end),
    Mutant("answers of open chunks take bytes without end", _of("flat memory"), _open_answers_ignored),
    Mutant("answers that wait for the store take bytes without end", _of("flat memory"), _waiting_answers_ignored),
    Mutant("all that is finished is encoded at once", _of("flat memory"), _encoded_all_at_once),
    Mutant("rows of a dead engine have failed", _of("bad row"), _dead_engines_rows_failed),
    Mutant("a drain waits for the first engine alone", _of("bounded loss"), _first_engine_drained),
)

OF_SEVERAL_ENGINES: Final = (
    Mutant("rows of an engine that hangs are with two engines", _of("recomputed"), _not_called_back),
    Mutant("a worker leaves though one engine answers", _of("exit code"), _no_other_engine),
    Mutant("an answer of one engine blames rows of another", _of("bad row"), _engines_are_one),
)
"""Each is caught by a schedule made for it, in test_mutants.py."""
