"""Whether a reply concerns its message, the engine or the configuration: shown by what becomes of others. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from nightshift import exits
from nightshift.driver.engine import Busy, Load, Replied, SendResult, judge
from nightshift.driver.served import WrongEngine
from nightshift.tasks.base import Answers, WrongModel
from tests.simulation.virtual import VirtualLoop
from tests.unit.stream_bench import Bench, Kind, Reply, capitals, run

pytestmark = pytest.mark.unit

SOON_S = 120.0
"""Within this time a mistake that concerns every message must be named."""
GOOD = [f"good {n}" for n in range(100)]
PAGE = b"<html>Sign in</html>"
AT_THE_DOOR = [302, 401, 402, 403, 404, 405, 407, 451, 501]


def says(status: int, body: bytes = b"go away", headers: Mapping[str, str] | None = None) -> SendResult:
    return judge(status, body, headers or {})


def to_bad_ones(outcome: SendResult) -> Reply:
    """An engine that says this to every request with a text that begins with bad."""

    async def reply(texts: list[str]) -> SendResult:
        return outcome if any(text.startswith("bad") for text in texts) else await capitals(texts)

    return reply


def to_everyone(outcome: SendResult) -> Reply:
    async def reply(_: list[str]) -> SendResult:
        return outcome

    return reply


class TestOneMessageAmongOthers:
    @pytest.mark.parametrize("rows_per_request", [1, 4])
    @pytest.mark.parametrize("status", [*AT_THE_DOOR, 200, 500])
    def test_it_is_a_dead_letter_and_costs_no_other(self, status: int, rows_per_request: int) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop, reply=to_bad_ones(says(status, PAGE)), kind=Kind(rows_per_request))
            bench.deliver(*GOOD[:50], "bad", *GOOD[50:])
            bench.start()
            await bench.until(lambda: len(bench.source.acknowledged) == 101)

            assert loop.time() < SOON_S
            assert bench.sink.rows.keys() == set(GOOD)
            (dead,) = bench.sink.dead.values()
            reasons = {200: ("invalid_output", None), 500: ("engine_error", 500)}
            assert (dead.reason, dead.status) == reasons.get(status, ("rejected", status))
            assert await bench.end() == exits.DONE

        run(main)

    def test_one_that_is_always_put_off_is_judged_within_minutes_and_holds_up_no_other(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop, reply=to_bad_ones(Busy("too large for your tier", None, 429)), kind=Kind(1))
            bench.deliver("bad", *GOOD)
            bench.start()
            await bench.until(lambda: len(bench.sink.rows) == 100)
            assert loop.time() < 30.0
            await bench.until(lambda: bench.sink.dead)

            assert loop.time() < 600.0
            assert (bench.sink.dead["bad"].reason, bench.sink.dead["bad"].status) == ("engine_error", 429)

        run(main)

    def test_what_the_engine_asks_it_to_wait_is_asked_of_others_but_once(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop, reply=to_bad_ones(Busy("later", 60.0, 429)), kind=Kind(1))
            bench.deliver(*GOOD[:20], "bad")
            bench.start()
            await bench.until(lambda: len(bench.sink.rows) == 20)
            await asyncio.sleep(300.0)
            waited = []
            for text in GOOD[20:40]:
                began = loop.time()
                bench.deliver(text)
                await bench.until(lambda text=text: text in bench.sink.rows)  # type: ignore[misc]
                waited.append(loop.time() - began)

            assert max(waited) < 5.0

        run(main)

    def test_a_reply_of_another_model_among_good_ones_is_its_own_affair(self) -> None:
        class Strict(Kind):
            def answers(self, reply: list[str], payloads: object) -> Answers:
                if reply == ["odd"]:
                    raise WrongModel("3 numbers, not 2")
                return super().answers(reply, payloads)  # type: ignore[arg-type]

        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop, reply=to_bad_ones(Replied(["odd"])), kind=Strict(1))
            bench.deliver("good")
            bench.start()
            await bench.until(lambda: bench.sink.rows)
            bench.deliver("bad", *GOOD)
            await bench.until(lambda: len(bench.source.acknowledged) == 102)

            assert bench.sink.dead["bad"].reason == "invalid_output"

        run(main)


class TestAMistakeOfTheConfiguration:
    @pytest.mark.parametrize("outcome", [*map(says, AT_THE_DOOR), says(200, PAGE, {"content-type": "text/html"}), says(400)])
    def test_it_ends_the_stream_soon_with_the_words_of_the_engine(self, outcome: SendResult) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop, reply=to_everyone(outcome))
            bench.deliver(*GOOD)
            running = bench.start()
            with pytest.raises(WrongEngine, match="has answered no request") as caught:
                await running

            assert loop.time() < SOON_S
            assert ("go away" in str(caught.value)) or ("text/html" in str(caught.value))
            assert bench.sink.rows == {}
            assert len(bench.sink.dead) <= 8, "no backlog becomes dead letters"
            assert not bench.source.acknowledged or len(bench.source.acknowledged) == len(bench.sink.dead)

        run(main)

    @pytest.mark.parametrize("status", [401, 407])
    def test_a_key_is_refused_for_one_message_as_for_many(self, status: int) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop, reply=to_everyone(says(status)))
            bench.deliver("a")
            with pytest.raises(WrongEngine, match=f"{status}: go away"):
                await bench.start()

            assert loop.time() < SOON_S

        run(main)

    def test_a_key_that_is_revoked_while_requests_are_computed_costs_no_message(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            revoked = False

            async def reply(texts: list[str]) -> SendResult:
                if revoked:
                    return says(401)
                await asyncio.sleep(5.0 + 0.1 * int(texts[0].split()[1]))
                return await capitals(texts)

            bench = Bench(loop, reply=reply, kind=Kind(1))
            bench.deliver(*GOOD)
            bench.start()
            await bench.until(lambda: bench.sink.rows)
            revoked = True
            await asyncio.sleep(200.0)
            assert bench.sink.dead == {}
            revoked = False
            await bench.until(lambda: len(bench.sink.rows) == 100)

        run(main)

    def test_a_message_that_is_alone_is_not_the_configuration(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop, reply=to_bad_ones(says(403)))
            bench.deliver("bad")
            bench.start()
            await asyncio.sleep(500.0)
            assert (bench.sink.dead, bench.stats.held) == ({}, 1)
            bench.deliver("good")
            await bench.until(lambda: bench.sink.rows)
            assert loop.time() < 530.0
            await bench.until(lambda: bench.sink.dead)

            assert loop.time() < 500.0 + SOON_S

        run(main)


class TestAnEngineThatIsFull:
    def test_it_is_left_alone_for_as_long_as_it_asks(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            refused: list[float] = []

            async def reply(texts: list[str]) -> SendResult:
                refused.append(loop.time())
                return Busy("full", 20.0, 429)

            bench = Bench(loop, reply=reply, kind=Kind(1))
            bench.deliver(*GOOD[:40])
            bench.start()
            await asyncio.sleep(300.0)

            early = [(sent, at) for at in refused for sent in bench.engine.sent if at < sent < at + 20.0]
            assert early == []
            assert len({round(at) for at in refused}) > 3, "it is asked again in between"

        run(main)

    def test_one_that_reports_a_queue_of_others_gets_nothing_new_until_it_is_gone(self) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop, kind=Kind(1))
            bench.engine.reported = Load(2, 40, 0.5, 0)
            bench.start()
            await asyncio.sleep(2.0)
            bench.deliver("a", "b", "c")
            await asyncio.sleep(120.0)
            assert (bench.engine.sent, bench.source.given_back) == ([], [])
            bench.engine.reported = Load(2, 0, 0.5, 0)
            await bench.until(lambda: len(bench.sink.rows) == 3)

            assert loop.time() < 130.0

        run(main)


class TestAColdStart:
    @pytest.mark.parametrize(("bad", "window"), [(8, 4), (60, 16)])
    @pytest.mark.parametrize("status", [500, 403])
    def test_good_messages_behind_bad_ones_are_answered(self, status: int, bad: int, window: int) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench(loop, reply=to_bad_ones(says(status)), kind=Kind(1), window=window)
            bench.deliver(*(f"bad {n}" for n in range(bad)), *GOOD)
            bench.start()
            await bench.until(lambda: len(bench.sink.rows) == 100)
            assert loop.time() < 300.0
            await bench.until(lambda: len(bench.sink.dead) == bad)

        run(main)
