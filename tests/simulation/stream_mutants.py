"""The subscriber with one mistake in it: what `streams` must notice.

stream_mutants.json names a schedule for each, as mutants.json does for the driver's (`mutants`).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from nightshift.driver.fault_search import FaultSearch
from nightshift.driver.health import EngineBudget
from nightshift.store import StoreUnavailable
from nightshift.stream import files, folder_source
from nightshift.stream.folder_source import Watched
from nightshift.stream.in_flight import HeldMessage, InFlight, Lanes, Place
from nightshift.stream.leases import Leases
from nightshift.stream.messages import Dead, Delivery, Outcome
from nightshift.stream.parquet import Format
from nightshift.stream.ports import Collect, Standing, Unwritable, insist
from nightshift.stream.remembered_ids import RememberedIds
from nightshift.stream.settle import Settler
from nightshift.stream.sink_writes import Writer
from nightshift.stream.subscriber import Subscriber, SubscriberLimits
from tests.simulation import stream_parts, streams, watching
from tests.simulation.mutants import Mutant
from tests.simulation.replaced import Change
from tests.simulation.streams import simulate, simulate_files

SEEDS_FILE: Final = Path(__file__).with_suffix(".json")


def seeds() -> dict[str, int]:
    return dict(json.loads(SEEDS_FILE.read_text()))


def search(tried: range) -> Iterator[tuple[Mutant, int | None, str]]:
    """For each mutant the first schedule that catches it."""
    for mutants, run in ((STREAM_MUTANTS, simulate), (FILE_MUTANTS, simulate_files), (WATCHED_MUTANTS, watching.simulate)):
        for mutant in mutants:
            found = ((seed, broken[0]) for seed in tried if (broken := mutant.broken(run, seed)))
            seed, what = next(found, (None, "NOT CAUGHT"))
            yield mutant, seed, what


def _acknowledged_early() -> tuple[Change, ...]:
    put = Settler.put

    def hasty(self: Settler, held: HeldMessage, outcome: Any) -> None:
        put(self, held, outcome)
        self.acknowledge(held)

    return ((Settler, "put", hasty),)


def _not_announced() -> tuple[Change, ...]:
    def silent(self: Settler, held: HeldMessage, _dead: Dead) -> None:
        self.acknowledge(held)

    return ((Settler, "announce", silent),)


def _never_extended() -> tuple[Change, ...]:
    return ((Leases, "due", lambda self, now: {}),)


def _extended_too_late() -> tuple[Change, ...]:
    schedule = Leases._schedule

    def late(self: Leases, message: str, lease: Any, due: float) -> None:
        schedule(self, message, lease, due + 15.0)

    return ((Leases, "_schedule", late),)


def _in_any_order() -> tuple[Change, ...]:
    return ((Lanes, "enter", lambda self, lane, item: True), (Lanes, "leave", lambda self, lane: None))


def _sink_not_asked() -> tuple[Change, ...]:
    async def nothing(self: stream_parts.Sink, messages: Sequence[Any]) -> list[Standing]:
        return [Standing.NEW for _ in messages]

    return ((stream_parts.Sink, "known", nothing),)


def _pulls_without_end() -> tuple[Change, ...]:
    return ((InFlight, "room", lambda self, rows: 50 if self.asked < 50 else 0),)


def _pulls_by_count_alone() -> tuple[Change, ...]:
    return ((InFlight, "room", lambda self, rows: max(0, rows - self.open)),)


def _pulls_for_the_same_room() -> tuple[Change, ...]:
    room = InFlight.room

    def forgetful(self: InFlight, rows: int) -> int:
        return room(self, rows + self.asked) if self.asked < 100 else 0

    return ((InFlight, "room", forgetful),)


def _answers_weigh_nothing() -> tuple[Change, ...]:
    move = InFlight.move

    def light(self: InFlight, held: HeldMessage, place: Place, size: int | None = None) -> None:
        move(self, held, place, size)
        if place is Place.JUDGED:
            self._bytes[place] -= held.size
            self._stats.held_bytes -= held.size
            held.size = 0

    return ((InFlight, "move", light),)


def _engines_budget_of_a_night() -> tuple[Change, ...]:
    return ((streams, "SubscriberLimits", functools.partial(SubscriberLimits, engine=EngineBudget())),)


def _tries_decide_soon() -> tuple[Change, ...]:
    budget = EngineBudget(absent_s=float("inf"), losses=float("inf"), failing_s=30.0)
    return ((streams, "SubscriberLimits", functools.partial(SubscriberLimits, engine=budget)),)


def _keeps_all_at_the_end() -> tuple[Change, ...]:
    async def keep(self: Subscriber, messages: Sequence[HeldMessage], seconds: int, deadline: float | None) -> None:
        for held in messages:
            self._hold.let_go(held)

    return ((Subscriber, "_give_back", keep),)


def _pulls_nothing_to_compare() -> tuple[Change, ...]:
    return ((FaultSearch, "needs_others", property(lambda self: False)),)


def _a_batch_is_refused_whole() -> tuple[Change, ...]:
    async def whole(self: Writer, answered: Any) -> Any:
        try:
            await insist(self.patience, lambda: self.sink.write([each for _, each in answered]), "answers", set())
        except Unwritable as error:
            return [(*each, str(error)) for each in answered]
        self._taken += len(answered)
        self.answered([held for held, _ in answered])
        return []

    return ((Writer, "_write", whole),)


def _a_duplicate_is_new() -> tuple[Change, ...]:
    def twice(self: InFlight, deliveries: Any, now: float) -> list[HeldMessage]:
        fresh = []
        for delivery in deliveries:
            self.leases.received(delivery.message.id, delivery.ack_id, now)
            fresh.append(held := HeldMessage(delivery.message))
            self._held[delivery.message.id] = held
            self._take(held, 1)
        return fresh

    return ((InFlight, "take", twice),)


def _named_anew() -> tuple[Change, ...]:
    name, numbers = Format.name, itertools.count()

    def numbered(self: Format, kind: str, outcomes: Sequence[Outcome]) -> str:
        return f"{name(self, kind, outcomes)}-{next(numbers)}"

    return ((Format, "name", numbered),)


def _hours_together() -> tuple[Change, ...]:
    return ((files, "_by_hour", lambda outcomes: [list(outcomes)]),)


def _forgets() -> tuple[Change, ...]:
    return ((files, "RememberedIds", lambda most: RememberedIds(0)),)


def _collects(**terms: float) -> tuple[Change, ...]:
    return ((files, "Collect", lambda **said: Collect(**{**said, **terms})),)


def _done_when_read() -> tuple[Change, ...]:
    finish = Watched._finish

    async def hasty(self: Watched, of: Any) -> None:
        if of.exhausted:
            of.left.clear()
        await finish(self, of)

    return ((Watched, "_finish", hasty),)


def _read_on_after_a_fault() -> tuple[Change, ...]:
    def deaf(rows: Iterator[bytes], most: int) -> tuple[list[bytes], None]:
        taken = []
        with contextlib.suppress(StoreUnavailable):
            for data in rows:
                taken.append(data)
                if len(taken) == most:
                    break
        return taken, None

    return ((folder_source, "_take", deaf),)


def _rows_named_by_their_delivery() -> tuple[Change, ...]:
    row = Watched._row

    def counted(self: Watched, of: Any, data: bytes) -> Delivery:
        delivery = row(self, of, data)
        return replace(delivery, message=replace(delivery.message, id=f"{of.found.name}/{delivery.ack_id}"))

    return ((Watched, "_row", counted),)


def _of(*names: str) -> frozenset[str]:
    return frozenset(names)


STREAM_MUTANTS: Final = (
    Mutant("acknowledged before the sink has it", _of("never acked unanswered"), _acknowledged_early),
    Mutant("a dead letter is acknowledged before its topic has it", _of("never acked unanswered"), _not_announced),
    Mutant("leases are not extended", _of("attempts"), _never_extended),
    Mutant("leases are extended when they are over", _of("attempts"), _extended_too_late),
    Mutant("ordering keys are ignored", _of("order"), _in_any_order),
    Mutant("the sink is not asked what it has", _of("computed again"), _sink_not_asked),
    Mutant("pulls without end", _of("pull"), _pulls_without_end),
    Mutant("pulls by count alone", _of("pull"), _pulls_by_count_alone),
    Mutant("a pull under way does not count", _of("pull"), _pulls_for_the_same_room),
    Mutant("gives up on an absent engine as a night does", _of("attempts", "liveness"), _engines_budget_of_a_night),
    Mutant("tries decide when an engine answers nobody", _of("poison"), _tries_decide_soon),
    Mutant("a drain gives nothing back", _of("drain"), _keeps_all_at_the_end),
    Mutant("nothing is pulled to compare a failing message with", _of("poison"), _pulls_nothing_to_compare),
    Mutant("a batch with one unwritable answer is refused whole", _of("poison"), _a_batch_is_refused_whole),
    Mutant("a duplicate counts as new", _of("computed again", "crash"), _a_duplicate_is_new),
)
FILE_MUTANTS: Final = (
    Mutant("acknowledged before the file is there", _of("never acked unanswered"), _acknowledged_early),
    Mutant("a file has a new name each time it is put", _of("twice"), _named_anew),
    Mutant("a folder gets messages of the next hour", _of("folder"), _hours_together),
    Mutant("what was written is forgotten at once", _of("twice", "computed again"), _forgets),
    Mutant("a file waits until it is full", _of("liveness", "poison"), functools.partial(_collects, age_s=1e6)),
    Mutant("what waits for its file takes no bytes", _of("pull"), _answers_weigh_nothing),
)
"""Those of files as the sink, caught by `simulate_files`."""
WATCHED_MUTANTS: Final = (
    Mutant("an object is done when it is read", _of("done early"), _done_when_read),
    Mutant("a fault of the store is the end of an object", _of("done early", "answered once"), _read_on_after_a_fault),
    Mutant("a row is named by its delivery", _of("answered once"), _rows_named_by_their_delivery),
)
"""Those of a watched folder as the source, caught by `watching.simulate`."""
