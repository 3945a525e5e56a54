"""What a subscriber does with messages that share a request, come again, wait, or cannot be written. In virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from nightshift import exits
from nightshift.driver.backoff import Backoff
from nightshift.driver.engine import Replied, SendResult
from nightshift.stream.decoding import UnknownRevision
from nightshift.stream.in_flight import MESSAGE_BYTES
from nightshift.stream.messages import Dead
from nightshift.stream.ports import Collect, Standing, Unavailable, insist
from nightshift.stream.sink_writes import BLAMED_MOST
from nightshift.stream.subscriber import UNREAD_S
from nightshift.tasks.base import BadInput
from tests.simulation.virtual import VirtualLoop
from tests.unit.stream_bench import GARBAGE, Bench, FillingKind, Kind, capitals, refuses_bad, run

pytestmark = pytest.mark.unit


class TestMessagesThatShareARequest:
    def test_a_good_one_is_in_the_sink_and_acknowledged_while_a_bad_one_is_still_being_isolated(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            release = asyncio.Event()

            async def reply(texts: list[str]) -> SendResult:
                if texts == ["bad"]:
                    await release.wait()
                return await refuses_bad(texts)

            bench = Bench(loop, reply=reply)
            good = bench.deliver("a", "b", "c")
            (bad,) = bench.deliver("bad")
            bench.start()
            await bench.until(lambda: set(bench.source.acknowledged) == set(good))

            assert bench.engine.asked[0] == ["a", "b", "c", "bad"], "they share a request"
            assert bench.engine.asked[-1] == ["bad"]
            assert bench.sink.rows == {"a": "A", "b": "B", "c": "C"}
            assert (bench.sink.dead, bench.stats.held) == ({}, 1)
            release.set()
            await bench.until(lambda: bench.stats.held == 0)
            assert set(bench.source.acknowledged) == {*good, bad}
            assert bench.sink.dead["bad"].text == "I do not like it"

        run(main)

    def test_a_good_one_is_in_the_sink_while_a_bad_one_is_still_tried_again(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            async def reply(texts: list[str]) -> SendResult:
                return Replied(GARBAGE) if "bad" in texts else await capitals(texts)

            bench = Bench(loop, reply=reply, kind=Kind(2))
            bench.deliver("good", "bad")
            bench.start()
            others = 0
            while "good" not in bench.sink.rows:
                # A request that fails is judged only beside others that are answered.
                others += 1
                bench.deliver(f"other {others}", f"another {others}")
                await asyncio.sleep(1.0)

            assert "bad" not in bench.sink.dead
            tries = sum("bad" in texts for texts in bench.engine.asked)
            assert next(texts for texts in bench.engine.asked if "good" in texts) == ["good", "bad"]
            while "bad" not in bench.sink.dead:
                others += 1
                bench.deliver(f"other {others}", f"another {others}")
                await asyncio.sleep(1.0)
            assert sum("bad" in texts for texts in bench.engine.asked) > tries, "it was tried again after that"
            assert bench.sink.dead["bad"].reason == "invalid_output"

        run(main)

    def test_a_message_that_cannot_be_read_is_not_sent_and_keeps_nobody_waiting(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop)
            acks = bench.deliver("a", "?", "b")
            bench.start()
            await bench.until(lambda: set(bench.source.acknowledged) == set(acks))

            assert bench.engine.asked == [["a", "b"]]
            assert (bench.sink.dead["?"].reason, bench.sink.dead["?"].text) == ("bad_input", "the message is a question")
            assert [dead.message.id for dead in bench.topic.published] == ["?"]

        run(main)

    def test_whatever_reading_a_message_raises_costs_that_message_alone(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            for error in (OverflowError("date value out of range"), RecursionError(), KeyError("x" * 10_000), BadInput("")):
                bench = Bench(loop)
                bench.decoder.raises["strange"] = error
                acks = bench.deliver("a", "strange", "b")
                bench.start()
                await bench.until(lambda bench=bench, acks=acks: set(bench.source.acknowledged) == set(acks))  # type: ignore[misc]

                assert bench.engine.asked == [["a", "b"]]
                assert bench.sink.dead["strange"].reason == "bad_input"
                assert 0 < len(bench.sink.dead["strange"].text) <= 1000
                await bench.end()

        run(main)

    def test_a_message_of_an_unknown_revision_is_held_and_said_and_others_go_on(self, caplog: pytest.LogCaptureFixture) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop, ordered=True)
            bench.decoder.raises = {name: UnknownRevision("8d1f2a3b") for name in ("new 1", "new 2")}
            (first,) = bench.deliver("a", lane="one")
            held = bench.deliver("new 1", "new 2", "b", lane="one")
            (other,) = bench.deliver("c", lane="two")
            bench.start()
            await bench.until(lambda: set(bench.source.acknowledged) == {first, other})
            await asyncio.sleep(700.0)

            assert bench.sink.rows.keys() == {"a", "c"}, "b must not overtake them"
            assert bench.sink.dead == {}
            assert bench.subscriber.missing() == ["schema revision 8d1f2a3b"]
            assert bench.stats.held == 3
            assert await bench.end() == exits.DONE
            assert {name for name, _ in bench.source.given_back} == set(held)

        run(main)
        (said,) = [record for record in caplog.records if record.levelname == "ERROR"]
        assert said.__dict__["fields"]["revision"] == "8d1f2a3b"


def held_back() -> tuple[asyncio.Event, Callable[[list[str]], Awaitable[SendResult]]]:
    """An engine's reply that comes once the event is set."""
    release = asyncio.Event()

    async def slow(texts: list[str]) -> SendResult:
        await release.wait()
        return await capitals(texts)

    return release, slow


class TestAMessageThatComesAgain:
    def test_while_it_is_held_the_newest_delivery_is_acknowledged_and_it_is_computed_once(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            release, slow = held_back()
            bench = Bench(loop, reply=slow)
            first = bench.deliver("a")
            bench.start()
            await bench.until(lambda: bench.engine.asked)
            second = bench.deliver("a")
            await bench.until(lambda: bench.stats.repeated == 1)
            await asyncio.sleep(2.0)
            assert bench.source.acknowledged == []
            release.set()
            await bench.until(lambda: bench.stats.held == 0)

            assert bench.source.acknowledged == second
            assert dict.fromkeys(name for name, _ in bench.source.extended) == dict.fromkeys([*first, *second])
            assert bench.engine.asked == [["a"]]
            assert bench.sink.writes == [["a"]]

        run(main)

    def test_while_it_is_being_acknowledged_the_later_delivery_is_acknowledged_too(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop)
            bench.source.gate.clear()
            first = bench.deliver("a")
            bench.start()
            await bench.until(lambda: bench.source.acknowledging == 1)
            second = bench.deliver("a")
            await bench.until(lambda: bench.stats.repeated == 1)
            bench.source.gate.set()
            await bench.until(lambda: bench.stats.held == 0)

            assert set(bench.source.acknowledged) == {*first, *second}
            assert bench.stats.acknowledged == 1
            assert bench.engine.asked == [["a"]]

        run(main)

    def test_after_its_outcome_it_is_acknowledged_and_not_computed(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop)
            bench.sink.standings["a"] = Standing.OVER
            acks = bench.deliver("a", "b")
            bench.start()
            await bench.until(lambda: set(bench.source.acknowledged) == set(acks))

            assert bench.engine.asked == [["b"]]
            assert bench.stats.over == 1

        run(main)

    def test_after_its_burial_it_is_announced_again_and_acknowledged_only_then(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop)
            acks = bench.deliver("a")
            message = bench.source._waiting[0].message
            dead = Dead(message, "rejected", "no", 400, 1)
            bench.sink.standings["a"] = dead
            bench.topic.away = True
            bench.start()
            await bench.until(lambda: bench.topic.tries > 3)
            assert bench.source.acknowledged == []
            bench.topic.away = False
            await bench.until(lambda: bench.source.acknowledged == acks)

            assert bench.topic.published == [dead]
            assert bench.engine.asked == []

        run(main)


class TestReadiness:
    def test_what_is_away_is_missing_until_it_is_back(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop)
            bench.start()
            bench.deliver("a")
            await bench.until(lambda: bench.stats.acknowledged == 1)
            assert bench.subscriber.missing() == []
            bench.sink.away = bench.topic.away = True
            bench.deliver("b")
            await bench.until(lambda: bench.subscriber.missing() == ["answers"])
            bench.deliver("?c")
            await bench.until(lambda: bench.stats.held == 2)
            bench.source.away = True
            bench.deliver("d")
            await bench.until(lambda: set(bench.subscriber.missing()) == {"answers", "pull"})
            bench.sink.away = False
            await bench.until(lambda: "dead-letter topic" in bench.subscriber.missing())
            bench.source.away = bench.topic.away = False
            await bench.until(lambda: bench.stats.held == 0 and bench.subscriber.missing() == [])

        run(main)

    def test_a_sink_that_refuses_every_answer_is_missing(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop)
            bench.start()
            names = [f"a{n}" for n in range(9)]
            bench.sink.refused = set(names)
            bench.deliver(*names)
            await bench.until(lambda: bench.subscriber.missing() == ["a sink that takes answers"])
            bench.sink.refused.clear()
            await bench.until(lambda: bench.stats.held == 0 and bench.subscriber.missing() == [])

            # One that is refused while others are taken is that one's fault.
            bench.sink.refused = {"bad"}
            bench.deliver("bad", "good", "better")
            seen = set()
            while "bad" not in bench.sink.dead:
                seen.update(bench.subscriber.missing())
                await asyncio.sleep(0.1)
            assert seen == set()
            assert bench.sink.rows.keys() >= {"good", "better"}

        run(main)

    def test_an_engine_that_answers_nobody_is_missing(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop)
            bench.engine.well = False
            bench.start()
            await bench.until(lambda: bench.subscriber.missing() == ["the engine"])
            bench.engine.well = True
            await bench.until(lambda: bench.subscriber.missing() == [])

        run(main)


class TestLeasesThatAreOver:
    """As a subscription with exactly-once delivery says it."""

    def test_a_message_whose_lease_is_over_on_receipt_is_not_worked_on(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop)
            late, good = bench.deliver("late", "good")
            bench.source.over = {late}
            bench.start()
            await bench.until(lambda: bench.source.acknowledged == [good])

            assert bench.engine.asked == [["good"]]
            assert (bench.stats.held, bench.stats.late, bench.stats.acknowledged) == (0, 1, 1)
            (again,) = bench.deliver("late")
            await bench.until(lambda: bench.source.acknowledged == [good, again])
            assert bench.sink.rows.keys() == {"late", "good"}

        run(main)

    def test_a_lease_that_is_over_is_neither_extended_nor_acknowledged_again(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            release, slow = held_back()
            bench = Bench(loop, reply=slow)
            first, other = bench.deliver("a", "b")
            bench.start()
            await bench.until(lambda: bench.engine.asked)
            bench.source.over = {first}
            await asyncio.sleep(300.0)
            said = [name for name, _ in bench.source.extended]
            assert said.count(first) == 2, "on receipt, and when it was found to be over"
            assert said.count(other) > 4
            (second,) = bench.deliver("a")
            await bench.until(lambda: bench.stats.repeated == 1)
            release.set()
            await bench.until(lambda: bench.stats.held == 0)

            assert set(bench.source.acknowledged) == {second, other}
            assert first not in [name for call in bench.source.asked for name in call]
            assert bench.engine.asked == [["a", "b"]], "it is computed once"

        run(main)

    def test_one_that_has_no_other_lease_is_let_go_once_the_sink_has_it(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop)
            bench.sink.away = True
            (first,) = bench.deliver("a")
            bench.start()
            await bench.until(lambda: bench.sink.tries)
            bench.source.over = {first}
            await asyncio.sleep(60.0)
            bench.sink.away = False
            await bench.until(lambda: bench.stats.held == 0)

            assert bench.source.asked == []
            assert (bench.stats.answered, bench.stats.acknowledged) == (1, 0)

        run(main)

    def test_after_a_mixed_reply_only_what_failed_for_now_is_acknowledged_again(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop)
            one, two, three = bench.deliver("1", "2", "3")
            bench.source.gate.clear()
            bench.start()
            await bench.until(lambda: bench.source.asked)
            bench.source.for_now, bench.source.over = {one}, {two}
            bench.source.gate.set()
            await bench.until(lambda: len(bench.source.asked) > 3)
            assert bench.source.asked[0] == [one, two, three]
            assert {tuple(call) for call in bench.source.asked[1:]} == {(one,)}
            (four,) = bench.deliver("4")
            await bench.until(lambda: four in bench.source.acknowledged)
            bench.source.for_now = set()
            await bench.until(lambda: bench.stats.held == 0)

            assert bench.source.acknowledged == [three, four, one], "nobody waits for one that fails for now"
            assert bench.stats.acknowledged == 3

        run(main)


class TestADeadLetterThatItsTopicRefuses:
    def test_it_is_acknowledged_because_the_sink_has_it(self, caplog: pytest.LogCaptureFixture) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop)
            acks = bench.deliver("?1", "?2", "good")
            bench.topic.refused = {"?1"}
            bench.start()
            await bench.until(lambda: set(bench.source.acknowledged) == set(acks))

            assert bench.sink.dead.keys() == {"?1", "?2"}
            assert [dead.message.id for dead in bench.topic.published] == ["?2"]
            assert bench.stats.unannounced == 1

        run(main)
        (said,) = [record for record in caplog.records if record.levelname == "ERROR"]
        assert said.getMessage() == "the topic refuses a dead letter; only the sink has it"
        assert said.__dict__["fields"] == {"message_id": "?1", "reason": "bad_input", "error": "InvalidArgument: no"}

    def test_while_the_topic_is_away_those_that_come_meanwhile_go_along(self) -> None:
        """Whether others are taken shows if one of them is to blame, or the topic."""

        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop)
            bench.topic.away = True
            bench.deliver("?1")
            bench.start()
            await bench.until(lambda: bench.topic.tries > 2)
            bench.deliver("?2")
            await bench.until(lambda: "?2" in bench.sink.dead)
            bench.topic.refused, bench.topic.away = {"?1"}, False
            await bench.until(lambda: bench.stats.held == 0)

            assert [dead.message.id for dead in bench.topic.published] == ["?2"]

        run(main)

    def test_one_that_comes_again_is_not_announced_again_by_the_same_process(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop)
            first = bench.deliver("?1")
            bench.start()
            await bench.until(lambda: bench.source.acknowledged == first)
            bench.sink.standings["?1"] = bench.sink.dead["?1"]
            again = bench.deliver("?1")
            await bench.until(lambda: bench.source.acknowledged == [*first, *again])

            assert [dead.message.id for dead in bench.topic.published] == ["?1"]

        run(main)


class TestWhenARequestIsMade:
    def test_a_full_one_is_sent_at_once_and_the_rest_when_its_oldest_has_waited(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            release, slow = held_back()
            bench = Bench(loop, kind=Kind(3), flush_s=100.0, reply=slow)
            bench.start()
            bench.deliver("a", "b", "c", "d")
            await asyncio.sleep(40.0)
            bench.deliver("e")
            await bench.until(lambda: len(bench.engine.requests) == 2)

            (at_once, full), (later, rest) = bench.engine.requests
            assert (full, rest) == (["a", "b", "c"], ["d", "e"])
            assert at_once < 1.0
            assert later == pytest.approx(100.0, abs=0.1), "it counts from the oldest"
            release.set()
            await bench.until(lambda: bench.stats.acknowledged == 5)

        run(main)

    @pytest.mark.gate
    def test_while_the_engine_is_idle_nothing_waits_for_others(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            release, slow = held_back()
            bench = Bench(loop, kind=Kind(3), flush_s=1000.0, reply=slow)
            bench.start()
            bench.deliver("a")
            await asyncio.sleep(10.0)
            bench.deliver("b")
            await asyncio.sleep(10.0)
            bench.deliver("c")
            await asyncio.sleep(10.0)
            assert bench.engine.asked == [["a"]], "while it works on one, others may come"
            release.set()
            await bench.until(lambda: bench.stats.acknowledged == 3)

            (first, _), (second, both) = bench.engine.requests
            assert first < 1.0
            assert second == pytest.approx(30.0, abs=1.0)
            assert both == ["b", "c"]

        run(main)

    def test_one_that_is_full_by_its_characters_is_sent_at_once(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop, kind=FillingKind(100, 10), flush_s=100.0)
            bench.start()
            bench.deliver("aaaaa", "bbbbb", "cc", "d" * 50)
            await bench.until(lambda: bench.stats.acknowledged == 4)

            assert bench.engine.asked == [["aaaaa", "bbbbb"], ["cc"], ["d" * 50]]
            assert all(at < 1.0 for at, _ in bench.engine.requests)

        run(main)

    def test_messages_of_one_ordering_key_go_one_after_the_other_once_the_sink_has_the_one_before(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            seen: list[tuple[list[str], set[str]]] = []
            bench = Bench(loop, ordered=True, reply=refuses_bad)

            async def reply(texts: list[str]) -> SendResult:
                seen.append((texts, bench.sink.rows.keys() | bench.sink.dead.keys()))
                return await refuses_bad(texts)

            bench.engine.reply = reply
            bench.deliver("1", "bad 2", "3", lane="one")
            bench.deliver("x", lane="two")
            bench.start()
            await bench.until(lambda: bench.stats.acknowledged == 4)

            assert [texts for texts, _ in seen] == [["1", "x"], ["bad 2"], ["3"]]
            assert [had for _, had in seen] == [set(), {"1", "x"}, {"1", "x", "bad 2"}]

        run(main)


class TestRoom:
    """What is held is bounded by bytes; an engine's places are for what it could work on."""

    @pytest.mark.gate
    @pytest.mark.parametrize("ordered", [False, True])
    def test_messages_of_an_unknown_revision_never_stop_others(self, ordered: bool) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop, window=4, ordered=ordered, buffer_bytes=80 * (MESSAGE_BYTES + 100))
            new = [f"new {n}" for n in range(100)]
            bench.decoder.raises = {name: UnknownRevision("8d1f2a3b") for name in new}
            for at, name in enumerate(new):
                bench.deliver(name, lane=f"lane {at % 50}" if ordered else "")
            acks = bench.deliver(*(f"known {n}" for n in range(20)), lane="other" if ordered else "")
            bench.start()
            await bench.until(lambda: set(bench.source.acknowledged) == set(acks))
            await asyncio.sleep(5.0)

            assert bench.sink.rows.keys() == {f"known {n}" for n in range(20)}
            given_back = {name.partition(" #")[0] for name, _ in bench.source.given_back}
            returned = [seconds for _, seconds in bench.source.extended if seconds == UNREAD_S]
            assert given_back == set()
            assert bench.stats.held + bench.stats.given_back == 100
            assert len(returned) == bench.stats.given_back > 0
            assert 15 <= bench.stats.held <= 20, "a quarter of the bytes"
            assert bench.subscriber.missing() == ["schema revision 8d1f2a3b"]
            # Those that are returned come again, and are returned again.
            gone = [name.partition(" #")[0] for name, seconds in bench.source.extended if seconds == UNREAD_S]
            again = [ack for at, name in enumerate(gone[:10]) for ack in bench.deliver(name, lane=f"{at}" if ordered else "")]
            (last,) = bench.deliver("last", lane="last" if ordered else "")
            await bench.until(lambda: last in bench.source.acknowledged)
            await asyncio.sleep(5.0)
            assert bench.stats.held <= 20
            assert {name for name, seconds in bench.source.extended if seconds == UNREAD_S} >= set(again[-5:])

        run(main)

    def test_a_key_that_was_blocked_by_one_is_as_any_other_once_it_is_given_back(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            release, slow = held_back()
            bench = Bench(loop, window=4, kind=Kind(1), ordered=True, flush_s=0.1, reply=slow, buffer_bytes=40 * MESSAGE_BYTES)
            new = [f"new {n}" for n in range(30)]
            bench.decoder.raises = {name: UnknownRevision("8d1f2a3b") for name in new}
            for name in new:
                bench.deliver(name, lane=f"lane of {name}")
            bench.start()
            await bench.until(lambda: bench.stats.given_back > 10)
            await asyncio.sleep(5.0)
            gone = {name.partition(" #")[0] for name, seconds in bench.source.extended if seconds == UNREAD_S}
            before = bench.stats.given_back
            lane = f"lane of {max(gone)}"
            acks = bench.deliver("first", "second", lane=lane)
            await bench.until(lambda: ["first"] in bench.engine.asked)
            await asyncio.sleep(5.0)
            assert bench.stats.given_back == before, "nothing of an unknown revision blocks it"
            release.set()
            await bench.until(lambda: bench.source.acknowledged == acks)

        run(main)

    def test_few_of_them_are_held_and_spend_no_attempts(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop, window=2)
            new = [f"new {n}" for n in range(64)]
            bench.decoder.raises = {name: UnknownRevision("8d1f2a3b") for name in new}
            bench.deliver(*new)
            acks = bench.deliver(*(f"known {n}" for n in range(20)))
            bench.start()
            await bench.until(lambda: set(bench.source.acknowledged) == set(acks))
            await asyncio.sleep(900.0)

            assert (bench.stats.held, bench.stats.given_back) == (64, 0)

        run(main)

    def test_those_that_wait_behind_another_of_their_key_leave_the_engine_to_others(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            release, slow = held_back()

            async def reply(texts: list[str]) -> SendResult:
                return await (slow if texts[0].startswith("busy") else capitals)(texts)

            bench = Bench(loop, window=2, kind=Kind(1), ordered=True, flush_s=0.1, reply=reply)
            bench.deliver(*(f"busy {n}" for n in range(50)), lane="busy")
            others = [ack for n in range(20) for ack in bench.deliver(f"other {n}", lane=f"lane {n}")]
            bench.start()
            await bench.until(lambda: set(bench.source.acknowledged) == set(others))
            assert bench.engine.asked.count(["busy 0"]) == 1
            release.set()
            await bench.until(lambda: bench.stats.held == 0)
            assert [texts[0] for texts in bench.engine.asked if texts[0].startswith("busy")] == [f"busy {n}" for n in range(50)]

        run(main)

    @pytest.mark.gate
    def test_answered_messages_take_no_place_of_the_engine(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop, window=2, kind=Kind(1), flush_s=0.1)
            bench.source.gate.clear()
            bench.start()
            bench.deliver(*(f"{n}" for n in range(100)))
            await bench.until(lambda: len(bench.sink.rows) == 100)
            assert bench.stats.held == 100, "none is acknowledged yet"
            bench.sink.away = True
            bench.deliver(*(f"more {n}" for n in range(100)))
            await bench.until(lambda: len(bench.engine.asked) == 200)
            assert bench.stats.held == 200, "nor kept"

        run(main)

    @pytest.mark.gate
    def test_answers_that_wait_for_the_sink_take_bytes_and_at_the_bound_nothing_is_computed(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            async def huge(texts: list[str]) -> SendResult:
                return Replied(["x" * 1_000_000 for _ in texts])

            bench = Bench(loop, window=4, kind=Kind(1), flush_s=0.1, reply=huge, buffer_bytes=10_000_000)
            bench.start()
            bench.sink.away = True
            bench.deliver(*(f"{n}" for n in range(100)))
            await asyncio.sleep(600.0)
            assert 8_000_000 < bench.stats.held_bytes < 13_000_000
            assert len(bench.engine.asked) <= 12
            assert bench.source.wanted == 0
            bench.sink.away = False
            await bench.until(lambda: bench.stats.held == 0)
            assert len(bench.sink.rows) == 100
            assert bench.stats.held_bytes == 0
            assert len(bench.engine.asked) == 100, "nothing is computed again"

        run(main)

    @pytest.mark.gate
    def test_beside_many_small_messages_huge_answers_that_are_under_way_count(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            async def huge(texts: list[str]) -> SendResult:
                return Replied(["x" * 200_000 for _ in texts])

            bench = Bench(loop, window=64, kind=Kind(1), flush_s=0.1, reply=huge, buffer_bytes=16_000_000)
            bench.start()
            bench.deliver("first")
            await bench.until(lambda: bench.stats.held == 0)
            bench.sink.away = True
            bench.deliver(*(f"{n}" for n in range(200)))
            await asyncio.sleep(60.0)
            assert 15_000_000 < bench.stats.held_bytes < 17_000_000

        run(main)

    @pytest.mark.gate
    def test_no_time_is_waited_for_while_the_engine_is_idle_and_nothing_more_can_come(self) -> None:
        """Two messages fill the bytes, and a request would have four."""

        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop, flush_s=100.0, buffer_bytes=2 * MESSAGE_BYTES + 25_000)
            bench.start()
            bench.deliver(*("abcdefgh"[n] * 10_000 for n in range(8)))
            await bench.until(lambda: bench.stats.acknowledged == 8)
            assert loop.time() < 10.0

        run(main)

    @pytest.mark.gate
    def test_there_are_as_many_pulls_as_the_room_needs_and_no_more_messages(self) -> None:
        """A reply has 25 messages after 50 ms, as Pub/Sub's often have: one at a time would be 500 a second."""

        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop, window=256, kind=Kind(16), flush_s=0.1)
            bench.source.reply_most, bench.source.pull_s = 25, 0.05
            count, over = 8000, []
            acks = bench.deliver(*(f"{n}" for n in range(count)))
            bench.start()
            while bench.stats.acknowledged < count:
                unanswered = bench.stats.delivered - sum(map(len, bench.engine.asked))
                over.append(unanswered + bench.source.wanted - 2 * 256)
                await asyncio.sleep(0.05)
            assert loop.time() < 4.0
            assert 8 < bench.source.pulls_most <= 20
            assert max(over) <= 0
            assert set(bench.source.acknowledged) == set(acks)

        run(main)

    def test_full_replies_need_few_pulls_and_order_has_one_at_a_time(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            for ordered, most in ((False, 6), (True, 1)):
                bench = Bench(loop, window=256, kind=Kind(16), flush_s=0.1, ordered=ordered)
                bench.source.pull_s = 0.05
                if ordered:
                    bench.source.reply_most = 25
                for n in range(100):
                    bench.deliver(*(f"{n} {m}" for m in range(20)), lane=f"lane {n}" if ordered else "")
                bench.start()
                await bench.until(lambda bench=bench: bench.stats.acknowledged == 2000)  # type: ignore[misc]
                assert 1 <= bench.source.pulls_most <= most
                await bench.end()

        run(main)

    def test_while_pubsub_is_away_pulls_go_on_and_one_line_says_so_first(self, caplog: pytest.LogCaptureFixture) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop, window=64, kind=Kind(4), flush_s=0.1)
            bench.source.reply_most, bench.source.pull_s = 2, 0.05
            bench.start()
            bench.deliver(*(f"{n}" for n in range(200)))
            await bench.until(lambda: bench.source.pulls > 5)
            bench.source.away = True
            await asyncio.sleep(1.0)
            assert sum(record.message == "no answer" for record in caplog.records) == 1
            bench.source.away = False
            await bench.until(lambda: bench.stats.acknowledged == 200)

        run(main)

    def test_with_files_bad_first_messages_do_not_keep_others_from_being_pulled(self) -> None:
        """Those that cannot be read wait for their file; whose fault the others are shows only if one is answered."""

        async def main(loop: VirtualLoop) -> None:
            async def reply(texts: list[str]) -> SendResult:
                return Replied(GARBAGE) if texts[0].startswith("bad") else await capitals(texts)

            files = Collect(rows=1000, size=1e9, age_s=100.0)
            bench = Bench(loop, window=1, kind=Kind(1), flush_s=0.1, reply=reply, collect=files)
            bench.deliver(*(f"?{n}" for n in range(40)), "bad 1", "bad 2", *(f"good {n}" for n in range(10)))
            bench.start()
            await bench.until(lambda: any(asked[0].startswith("good") for asked in bench.engine.asked))
            assert loop.time() < 60.0
            await bench.until(lambda: bench.stats.held == 0)
            assert bench.sink.dead.keys() == {*(f"?{n}" for n in range(40)), "bad 1", "bad 2"}

        run(main)


class TestTheSink:
    def test_one_answer_that_it_refuses_does_not_touch_the_others(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop, kind=Kind(8))
            bench.sink.refused = {"c"}
            acks = bench.deliver(*"abcdefgh")
            bench.start()
            await bench.until(lambda: set(bench.source.acknowledged) == set(acks))

            assert bench.sink.rows == {name: name.upper() for name in "abdefgh"}
            assert bench.sink.dead.keys() == {"c"}
            assert (bench.sink.dead["c"].reason, bench.sink.dead["c"].text) == ("unwritable", "the database refuses ['c']")
            assert sorted(name for write in bench.sink.writes for name in write) == list("abdefgh"), "each is written once"
            assert [dead.message.id for dead in bench.topic.published] == ["c"]
            assert bench.engine.asked == [list("abcdefgh")], "nothing is computed again"
            assert (bench.stats.answered, dict(bench.stats.dead_reasons)) == (7, {"unwritable": 1})

        run(main)

    def test_answers_that_are_all_refused_are_held_until_it_takes_one(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop, kind=Kind(8))
            bench.deliver("first")
            bench.start()
            await bench.until(lambda: bench.sink.rows)
            bench.sink.refused = {"first", *"abcdefgh"}
            acks = bench.deliver(*"abcdefgh")
            await bench.until(lambda: bench.sink.tries > 30)
            await asyncio.sleep(600.0)
            assert (bench.sink.dead, bench.source.given_back) == ({}, [])
            bench.sink.refused = {"c"}
            await bench.until(lambda: set(acks) <= set(bench.source.acknowledged))

            assert bench.sink.rows.keys() == {"first", *"abdefgh"}
            assert bench.sink.dead.keys() == {"c"}
            assert sum("a" in asked for asked in bench.engine.asked) == 1, "nothing is computed again"

        run(main)

    def test_answers_of_another_form_are_held_though_it_takes_the_earlier_ones(self) -> None:
        """An engine that was replaced, say: the tables are as they were."""

        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop, kind=Kind(8))
            bench.deliver("first")
            bench.start()
            await bench.until(lambda: bench.sink.rows)
            names = [f"{n}" for n in range(40)]
            bench.sink.refused = set(names)
            for n in range(0, 40, 8):
                bench.deliver(*names[n : n + 8])
                await asyncio.sleep(30.0)
            assert len(bench.sink.dead) <= BLAMED_MOST
            bench.deliver("last")
            await bench.until(lambda: bench.sink.dead.keys() == set(names))

            assert bench.sink.rows.keys() == {"first", "last"}

        run(main)

    @pytest.mark.parametrize("written", [True, False])
    def test_a_bad_answer_that_comes_alone_is_dead_once_another_was_taken_ever(self, written: bool) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop)
            bench.sink.refused = {"bad"}
            bench.start()
            if written:
                bench.deliver("good")
                await bench.until(lambda: bench.sink.rows)
            bench.deliver("bad")
            await asyncio.sleep(600.0)
            assert bool(bench.sink.dead) == written
            bench.deliver("better")
            await bench.until(lambda: bench.sink.dead.keys() == {"bad"})

        run(main)

    def test_an_answer_whose_row_is_locked_holds_up_no_other_but_those_of_its_key(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop, kind=Kind(8))
            bench.sink.locked = {"c"}
            acks = bench.deliver(*"abcdefgh")
            bench.start()
            await bench.until(lambda: len(bench.source.acknowledged) == 7)
            assert bench.sink.rows.keys() == set("abdefgh")
            later = bench.deliver("i")
            await bench.until(lambda: set(later) <= set(bench.source.acknowledged))
            bench.sink.locked = set()
            await bench.until(lambda: set(acks) <= set(bench.source.acknowledged))

            assert (bench.sink.rows["c"], bench.sink.dead) == ("C", {})

        run(main)

    def test_a_dead_letter_that_it_refuses_is_held_and_holds_up_nothing(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop, kind=Kind(8))
            bench.sink.unburied = {"?c"}
            (bad,) = bench.deliver("?c")
            acks = bench.deliver("?d", "a", "b")
            bench.start()
            await bench.until(lambda: set(acks) <= set(bench.source.acknowledged))
            await asyncio.sleep(600.0)
            assert bad not in bench.source.acknowledged
            bench.sink.unburied = set()
            await bench.until(lambda: bad in bench.source.acknowledged)

            assert bench.sink.dead.keys() == {"?c", "?d"}

        run(main)

    def test_what_waits_is_given_back_by_a_drain(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop)
            bench.sink.refused = set("ab")
            acks = bench.deliver(*"ab")
            bench.start()
            await bench.until(lambda: bench.sink.tries > 3)
            await bench.end()

            assert {ack_id for ack_id, _ in bench.source.given_back} == set(acks)

        run(main)

    def test_while_it_is_away_answers_are_held_and_leased_and_nothing_is_computed_again(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop)
            bench.sink.away = True
            acks = bench.deliver("a", "b")
            bench.start()
            await bench.until(lambda: bench.sink.tries)
            await asyncio.sleep(1000.0)
            assert bench.source.acknowledged == []
            assert bench.source.given_back == []
            assert {ack_id for ack_id, _ in bench.source.extended} == set(acks)
            bench.sink.away = False
            await bench.until(lambda: bench.source.acknowledged)

            assert bench.sink.rows == {"a": "A", "b": "B"}
            assert bench.engine.asked == [["a", "b"]]

        run(main)

    def test_latency_is_counted_from_publishing_to_the_sink(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop)
            bench.sink.away = True
            bench.deliver("a")
            bench.start()
            await bench.until(lambda: bench.sink.tries)
            await asyncio.sleep(200.0)
            bench.sink.away = False
            await bench.until(lambda: bench.stats.answered == 1)

            assert 200.0 <= bench.stats.latency.total_s <= loop.time()

        run(main)


class TestADrain:
    def test_what_was_not_sent_is_given_back_now_and_what_was_is_stored(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            release, slow = held_back()
            bench = Bench(loop, reply=slow, kind=Kind(2), flush_s=100.0)
            sent = bench.deliver("a", "b")
            waiting = bench.deliver("c")
            bench.start()
            await bench.until(lambda: bench.engine.asked and bench.stats.held == 3)
            loop.after(1.0, release.set)
            code = await bench.end()

            assert code == exits.DONE
            assert bench.source.acknowledged == sent
            assert bench.source.given_back == [(ack_id, 0) for ack_id in waiting]
            assert bench.sink.rows == {"a": "A", "b": "B"}
            assert bench.engine.asked == [["a", "b"]]

        run(main)

    def test_what_the_engine_does_not_answer_in_time_is_given_back_too(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            async def never(texts: list[str]) -> SendResult:
                await asyncio.Event().wait()
                raise AssertionError

            bench = Bench(loop, reply=never, kind=Kind(2))
            acks = bench.deliver("a", "b", "c")
            bench.start()
            await bench.until(lambda: len(bench.engine.asked) == 2)
            code = await bench.end()

            assert code == exits.DONE
            assert sorted(bench.source.given_back) == [(ack_id, 0) for ack_id in acks]
            assert bench.source.acknowledged == []

        run(main)

    def test_an_outcome_that_the_sink_does_not_take_in_time_is_given_back_unacknowledged(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop)
            bench.sink.away = True
            acks = bench.deliver("a")
            bench.start()
            await bench.until(lambda: bench.sink.tries)
            await asyncio.sleep(5.0)
            await bench.end()

            assert bench.source.acknowledged == []
            assert bench.source.given_back == [(ack_id, 0) for ack_id in acks]

        run(main)


def test_an_error_that_no_retry_mends_ends_the_subscriber_and_gives_back_what_is_held() -> None:
    class Refused(Exception):
        """As the real source raises it."""

    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, flush_s=100.0, reply=held_back()[1])
        acks = bench.deliver("a")
        running = bench.start()
        await bench.until(lambda: bench.engine.asked)
        acks += bench.deliver("waits for others")
        await bench.until(lambda: bench.stats.held == 2)

        async def refuses(most: int) -> None:
            raise Refused("no such subscription")

        bench.source.pull = refuses  # type: ignore[method-assign, assignment]
        bench.deliver("b")
        with pytest.raises(Refused):
            await running

        given_back = [ack_id for ack_id, _ in bench.source.given_back]
        assert set(given_back) >= set(acks)
        assert bench.source.acknowledged == []

    run(main)


def test_a_call_is_repeated_until_it_is_answered_and_the_log_says_so_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    async def main(loop: VirtualLoop) -> None:
        tries = 0

        async def call() -> str:
            nonlocal tries
            tries += 1
            if tries <= 25:
                raise Unavailable("away")
            return "answer"

        assert await insist(Backoff(random.Random(1), asyncio.Event()), call, "the test", set()) == "answer"
        assert tries == 26

    run(main)
    said = [record.__dict__["fields"] for record in caplog.records if record.message == "no answer"]
    assert said == [{"what": "the test", "tries": tries, "error": "away"} for tries in (1, 11, 21)]
