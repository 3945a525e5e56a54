"""What every sink of a stream holds (`nightshift.stream.ports.Sink`), as tests that run against each of them.

A sink gets a `Place` in ``test_sinks.py`` and a class of tests there that inherits from `SinkContract`; a reader of it, one
from `OutcomesContract`.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Protocol, TypeVar

import pytest

from nightshift.stream.messages import Answered, Dead, Message
from nightshift.stream.ports import Locked, Sink, SinkRefused, Standing, Unavailable, Unwritable
from tests.integration.stream.tables import a_death, a_message, an_answer

T = TypeVar("T")

TRIES: Final = 20
HUGE: Final = 5_000_000
ODD: Final = {"NUL": "a\0b", "half a pair": "a\ud800b", "huge": "x" * HUGE, "beyond 16 bits": "🙂", "empty": ""}
"""Texts that some store cannot hold, or might not."""
KEYS: Final = pytest.mark.parametrize("keyed", [False, True], ids=["by id", "by key"])


@dataclass(frozen=True)
class Shown:
    """What a reader takes as a stream's outcomes, by message id: predictions, and dead letters' reasons."""

    answers: Mapping[str, str]
    dead: Mapping[str, str]

    def has(self, *names: str) -> bool:
        """Whether each has one outcome, and only one."""
        return all((name in self.answers) != (name in self.dead) for name in names)


class Place(Protocol):
    """Where one stream's outcomes go, and a reader of it.

    first: whether the outcome of a message that was written first counts; if not, an answer counts rather than a dead letter.
    asked: whether the sink knows what another process has written.
    """

    first: bool
    asked: bool

    async def opened(self) -> Sink:
        """A sink as another process has it."""
        ...

    def of_another_stream(self) -> Sink:
        """One that is not open yet, of another stream that is to write to the same place."""
        ...

    async def shown(self) -> Shown: ...

    def cut(self, *, after: bool) -> None:
        """The next write reaches nobody. after: it takes effect, and its reply is lost."""
        ...

    @property
    def cuts(self) -> int:
        """How many were."""
        ...


Placed = Callable[..., Place]
"""keyed: whether the stream names a key column."""


def answer(name: str, prediction: str = "yes", key: str = "", at: float = 0.0, *, keyed: bool = True) -> Answered:
    """key: by default the message's id, which it is without key columns."""
    return an_answer(a_message(name, at), prediction, *((key or name,) if keyed else ()))


def death(name: str, key: str | None = None, at: float = 0.0, reason: str = "rejected") -> Dead:
    return replace(a_death(a_message(name, at), reason), key=None if key is None else (key,))


async def insisted(call: Callable[[], Awaitable[T]]) -> T:
    """As the subscriber does: again until it is answered."""
    for _ in range(TRIES):
        try:
            return await call()
        except Unavailable:
            continue
    raise AssertionError(f"unavailable {TRIES} times")


async def standing(sink: Sink, each: Message, key: str | None = None) -> Standing | Dead:
    (found,) = await sink.known([(each, None if key is None else (key,))])
    return found


class Guarded(Place, Protocol):
    """One whose server may refuse to let a sink in."""

    def locked(self) -> Sink:
        """A sink that is not open yet, and that is not let in."""
        ...


class OutcomesContract:
    """What its readers see. The fixture `placed` makes places of the sink.

    unfit_keys: names of `ODD` that the stand-in behind the sink takes for no key, though the real one would.
    """

    unfit_keys: ClassVar[frozenset[str]] = frozenset()

    @KEYS
    async def test_what_is_written_is_there_whoever_reads_it_and_stays(self, placed: Placed, *, keyed: bool) -> None:
        place = placed(keyed=keyed)
        sink = await place.opened()
        assert await sink.write([answer(name, name.upper(), keyed=keyed) for name in "abc"]) == frozenset()
        assert await sink.write_dead_letters([death("d"), death("e", "e" if keyed else None)]) == frozenset()
        expected = Shown({"a": "A", "b": "B", "c": "C"}, {"d": "rejected", "e": "rejected"})
        assert await place.shown() == expected
        another = await place.opened()
        await another.write([answer("f", at=7200, keyed=keyed)])
        assert await another.write([]) == frozenset()

        assert await place.shown() == replace(expected, answers={**expected.answers, "f": "yes"})

    @KEYS
    async def test_of_all_outcomes_of_a_message_one_counts_and_the_same_each_time(self, placed: Placed, *, keyed: bool) -> None:
        """Processes to which it was delivered at one time, each with another outcome."""
        place = placed(keyed=keyed)
        sinks = [await place.opened() for _ in range(3)]
        key = "k" if keyed else None
        await sinks[0].write([answer("1", "one", "k1", keyed=keyed), answer("2", "one", "k2", keyed=keyed)])
        await sinks[1].write([answer("2", "two", "k2", keyed=keyed), answer("3", "two", "k3", keyed=keyed)])
        kept = await sinks[2].write_dead_letters([death(name, key and f"{key}{name}") for name in ("1", "4")])
        late = await sinks[0].write([answer("4", "late", "k4", keyed=keyed)])
        assert late <= {"4"}
        shown = await place.shown()
        assert shown.has("1", "2", "3", "4")
        assert shown.answers["1"] == "one", "neither a dead letter nor another answer takes an answer's place"
        assert kept <= {"1"}
        assert "4" in (shown.dead if place.first else shown.answers)
        assert await place.shown() == shown
        for sink in sinks:
            await sink.write([answer("2", "again", "k2", keyed=keyed)])

        assert await place.shown() == shown, "one that counts is not replaced"

    async def test_in_every_order_of_arrival_the_newest_message_of_a_key_counts(self, placed: Placed) -> None:
        versions = [answer(f"{n}", f"version {n}", "k", at=n) for n in range(3)]
        place = placed(keyed=True)
        sink = await place.opened()
        expected = {}
        for turn, (together, order) in enumerate(itertools.product((True, False), itertools.permutations(versions))):
            ours = [
                replace(each, key=(f"k{turn}",), message=replace(each.message, id=f"{turn}{each.message.id}")) for each in order
            ]
            for batch in [ours] if together else [[each] for each in ours]:
                assert await sink.write(batch) == frozenset()
            expected[f"{turn}2"] = "version 2"

        assert (await place.shown()).answers == expected

    @pytest.mark.parametrize(("older", "newer"), [("999999999999", "1000000000000"), ("1001", "1002"), ("a/b/9", "a/b/10")])
    async def test_of_one_instant_the_larger_number_is_the_newer_message(self, placed: Placed, older: str, newer: str) -> None:
        place = placed(keyed=True)
        first, second = await place.opened(), await place.opened()
        for key, order in {"k1": [older, newer], "k2": [newer, older]}.items():
            for sink, name in zip((first, second), order, strict=True):
                await sink.write([answer(f"{key}/{name}", name, key)])
        await first.write([answer(f"k3/{name}", name, "k3") for name in (older, newer)])

        assert set((await place.shown()).answers.values()) == {newer}

    async def test_a_message_whose_key_has_a_newer_answer_does_not_die(self, placed: Placed) -> None:
        """Its own answer may be gone; only its key tells."""
        place = placed(keyed=True)
        sink = await place.opened()
        await sink.write([answer("1", "old", "k", at=0)])
        await sink.write([answer("2", "new", "k", at=1)])
        others = await sink.write_dead_letters([death("1", "k"), death("3", "k", at=2), death("4", "other"), death("5")])

        assert others <= {"1"}
        assert await place.shown() == Shown({"2": "new"}, dict.fromkeys("345", "rejected"))

    @KEYS
    @pytest.mark.parametrize("after", [False, True], ids=["before its effect", "after its effect"])
    async def test_a_write_whose_reply_is_lost_is_repeated_without_harm(
        self, placed: Placed, *, keyed: bool, after: bool
    ) -> None:
        place = placed(keyed=keyed)
        sink = await place.opened()
        answers = [answer(name, name, keyed=keyed) for name in "abc"]
        place.cut(after=after)
        assert await insisted(lambda: sink.write(answers)) == frozenset()
        place.cut(after=after)
        assert await insisted(lambda: sink.write_dead_letters([death("d"), death("e")])) == frozenset()
        assert place.cuts == 2
        expected = Shown({name: name for name in "abc"}, dict.fromkeys("de", "rejected"))
        assert await place.shown() == expected
        another = await place.opened()
        await another.write(answers)
        await another.write_dead_letters([death("e"), death("d")])

        assert await place.shown() == expected

    @KEYS
    async def test_what_is_not_returned_is_kept_and_what_is_has_another_outcome(self, placed: Placed, *, keyed: bool) -> None:
        place = placed(keyed=keyed)
        sink, another = await place.opened(), await place.opened()
        await sink.write([answer("1", keyed=keyed)])
        for each in (sink, another, sink):
            refused = await each.write_dead_letters([death("1", "1" if keyed else None), death("2")])
            assert refused <= {"1"}, "nothing that has no other outcome"
            assert not place.first or refused == {"1"}

        assert await place.shown() == Shown({"1": "yes"}, {"2": "rejected"})

    @pytest.mark.parametrize("odd", ODD)
    async def test_an_answer_with_an_odd_text_is_kept_or_unwritable_and_others_go_on(self, placed: Placed, odd: str) -> None:
        """Any other error would end the process, or hold every message behind this one."""
        text, place = ODD[odd], placed(keyed=True)
        sink = await place.opened()
        assert await sink.write([answer("before")]) == frozenset()
        expected = {"before": "yes"}
        bads = {"1": answer("1", text), "2": replace(answer("2"), key=(text,))}
        for name, bad in bads.items() if odd not in self.unfit_keys else [("1", bads["1"])]:
            good = answer(f"good {name}")
            try:
                assert await sink.write([good, bad]) == frozenset()
            except Unwritable:
                assert await sink.sound(), "the answer is to blame"
                assert await sink.write([good]) == frozenset()
                with pytest.raises(Unwritable):
                    await sink.write([bad])
            else:
                expected[name] = bad.prediction
            expected[good.message.id] = "yes"

        assert (await place.shown()).answers == expected

    @pytest.mark.parametrize("odd", ODD.values(), ids=list(ODD))
    async def test_a_dead_letter_is_kept_whatever_is_in_it(self, placed: Placed, odd: str) -> None:
        """There is nowhere else for it to go: one that is not taken is held for ever."""
        place = placed(keyed=True)
        sink = await place.opened()
        # What Pub/Sub delivers is UTF-8; what an engine says, or a key, may be half a surrogate pair from JSON.
        theirs = odd.encode(errors="replace").decode()
        message = Message("1", theirs.encode(), {"tenant": theirs}, theirs[:1000], a_message("1").published)
        letters = [Dead(message, "rejected", odd, 400, 2, ("k",)), death("2", odd), death("3")]
        for each in letters:
            assert await sink.write_dead_letters([each]) == frozenset()

        assert await place.shown() == Shown({}, dict.fromkeys("123", "rejected"))


class SinkContract(OutcomesContract):
    """The sink itself."""

    @KEYS
    async def test_each_message_is_known_by_its_id_in_the_order_in_which_it_was_asked_for(
        self, placed: Placed, *, keyed: bool
    ) -> None:
        place = placed(keyed=keyed)
        sink = await place.opened()
        old, answered, dead, new = (a_message(f"{n}", n) for n in range(1, 5))
        await sink.write([answer("2", key="k", at=2, keyed=keyed)])
        await sink.write_dead_letters([a_death(dead, "too_long", "too many tokens")])
        key = "k" if keyed else None
        asked = [(each, (key or each.id,)) for each in (new, dead, answered, old)]
        letter = Dead(dead, "too_long", "too many tokens", 400, 2)
        for process in (sink, await place.opened()):
            found = await process.known(asked)
            mine = process is sink or place.asked
            assert found[0] is Standing.NEW
            assert found[1] in ((Standing.OVER, letter) if mine else (Standing.NEW,))
            assert found[2] is (Standing.OVER if mine else Standing.NEW)
            # That a newer one of its key is answered, not every sink can tell.
            assert found[3] is (Standing.OVER if keyed and place.asked else Standing.NEW)
            assert await process.known([]) == []
        assert await standing(sink, dead) != Standing.NEW, "a dead letter's key may not be readable"

    async def test_what_may_be_lost_is_not_known(self, placed: Placed) -> None:
        place = placed(keyed=True)
        sink = await place.opened()
        place.cut(after=False)
        try:
            await sink.write([answer("1", key="k")])
        except Unavailable:
            assert await insisted(lambda: standing(sink, a_message("1"), "k")) is Standing.NEW
            assert (await place.shown()).answers == {}
        else:
            # The store's client has tried again.
            assert await standing(sink, a_message("1"), "k") is Standing.OVER
            assert (await place.shown()).answers == {"1": "yes"}
        assert place.cuts == 1

    @KEYS
    async def test_it_is_sound_after_what_it_took(self, placed: Placed, *, keyed: bool) -> None:
        place = placed(keyed=keyed)
        sink = await place.opened()
        await sink.write([answer("1", keyed=keyed)])
        before = await place.shown()
        assert await sink.sound()
        assert await (await place.opened()).sound(), "another process took it, with the same model"

        assert await place.shown() == before, "asking writes nothing"

    async def test_processes_that_open_one_after_the_other_are_at_one_place(self, placed: Placed) -> None:
        place = placed(keyed=True)
        sinks: Sequence[Any] = [await place.opened() for _ in range(3)]
        for n, sink in enumerate(sinks):
            await sink.write([answer(f"{n}")])
            await sink.open()

        assert (await place.shown()).answers == dict.fromkeys("012", "yes")

    async def test_another_streams_place_is_refused_before_anything_is_computed(self, placed: Placed) -> None:
        place = placed(keyed=True)
        await place.opened()
        with pytest.raises(SinkRefused):
            await place.of_another_stream().open()


class GuardedContract(SinkContract):
    """The same where somebody decides who may write."""

    async def test_a_server_that_will_not_let_it_in_is_locked_not_away(self, placed: Callable[..., Guarded]) -> None:
        with pytest.raises(Locked):
            await placed(keyed=True).locked().open()
