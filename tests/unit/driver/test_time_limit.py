"""Calls that hold the event loop are broken off: by the clock, and by the signal that ends the process."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from nightshift.driver import backoff, time_limit
from nightshift.driver.attribution import Canary
from nightshift.driver.backoff import Backoff, Silence
from nightshift.driver.budget import ByteBudget
from nightshift.driver.engine import Replied
from nightshift.driver.engines import Engine, Engines
from nightshift.driver.health import EngineBudget
from nightshift.driver.scheduler import Row, Scheduler
from nightshift.driver.sender import Sender
from nightshift.driver.stats import Stats
from nightshift.driver.time_limit import Stopped, TooLong
from nightshift.driver.window import Window
from nightshift.tasks.base import Answer, Answers, TaskKind, load_kind
from tests.builders import a_spec

pytestmark = pytest.mark.unit

LIMIT_S = 0.02
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Watches this process as a driver's is, with a shorter limit."""
    monkeypatch.setattr(time_limit, "LIMIT_S", LIMIT_S)
    monkeypatch.setattr(time_limit, "STOPPING_S", LIMIT_S / 5)
    monkeypatch.setattr(time_limit, "TICK_S", LIMIT_S / 4)
    before = signal.getsignal(signal.SIGPROF)
    time_limit.watch()
    signal.signal(signal.SIGUSR1, lambda *_: time_limit.stop())
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    time_limit._state.stopping = False


def compute(seconds: float) -> str:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return "done"


def swallow() -> None:
    """As a destructor would, or code that expects anything."""
    try:
        compute(60)
    except TooLong:
        compute(60)


def backtrack() -> None:
    re.search(r"(a+)+$", "a" * 60 + "b")


@pytest.mark.parametrize("call", [lambda: compute(60), swallow, backtrack])
def test_a_call_that_takes_too_long_is_broken_off(call: Callable[[], Any]) -> None:
    with pytest.raises(TooLong, match=r"more than 0\.02 s of processor time"):
        time_limit.timely(call)


def test_short_calls_may_take_long_together() -> None:
    end = time.thread_time() + 4 * LIMIT_S
    while time.thread_time() < end:
        assert time_limit.timely(compute, LIMIT_S / 10) == "done"


def test_outside_of_calls_nothing_is_broken_off() -> None:
    time_limit.timely(compute, 0)
    assert compute(4 * LIMIT_S) == "done"
    signal.raise_signal(signal.SIGUSR1)
    assert time_limit.stopping()


def test_a_signal_breaks_off_the_call_in_progress() -> None:
    def call() -> None:
        signal.raise_signal(signal.SIGUSR1)

    with pytest.raises(Stopped):
        time_limit.timely(call)


def test_a_signal_breaks_off_what_reads_an_answer_for_long() -> None:
    def call() -> None:
        signal.raise_signal(signal.SIGUSR1)
        compute(60)

    with pytest.raises(Stopped):
        time_limit.reading(call)


def test_a_signal_lets_an_answer_be_read() -> None:
    def call() -> str:
        signal.raise_signal(signal.SIGUSR1)
        return compute(LIMIT_S / 50)

    # In a process, a signal comes between any two steps, and what the timer saw before it is any other call.
    for _ in range(20):
        assert time_limit.reading(call) == "done"


@pytest.mark.parametrize("watched_as", [time_limit.timely, time_limit.reading])
def test_what_hides_the_signal_once_is_broken_off_again(watched_as: Callable[[Callable[[], None]], None]) -> None:
    def hide() -> None:
        try:
            signal.raise_signal(signal.SIGUSR1)
            compute(60)
        except Stopped:
            compute(60)

    with pytest.raises(Stopped):
        watched_as(hide)


def rows(texts: list[str]) -> Iterator[dict[str, str]]:
    return iter([{"text": text} for text in texts])


def test_a_template_that_takes_too_long_costs_its_own_row() -> None:
    scheduler = Scheduler(load_kind(a_spec(request__input="{% if text == 'b' %}" + ENDLESS + "{% endif %}{{ text }}")))
    scheduler.open_chunk(0, range(3), rows(["a", "b", "c"]), {})

    group = scheduler.next_group()
    assert group is not None
    assert group.payloads == ["a", "c"]
    scheduler.answered(group, Answers([Answer(1), Answer(3)]))
    chunk = scheduler.pop_finished()
    assert chunk is not None
    assert [result.prediction for result in chunk.in_order()] == [1, None, 3]
    dead = chunk.results[1]
    assert (dead.reason, dead.attempts) == ("bad_input", 0)
    assert dead.message == "the template failed on this row: it took more than 0.02 s of processor time"


def test_a_signal_during_a_template_leaves_the_rows_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = load_kind(a_spec(request__input="{{ text }}"))
    scheduler = Scheduler(kind)
    scheduler.open_chunk(0, range(12), rows([str(n) for n in range(12)]), {})
    first = scheduler.next_group()
    assert first is not None
    scheduler.answered(first, Answers([Answer(n) for n in range(4)]))
    render = kind.render

    def signalled(row: Any, ordinal: int) -> Any:
        if ordinal == 6:
            signal.raise_signal(signal.SIGUSR1)
        return render(row, ordinal)

    monkeypatch.setattr(kind, "render", signalled)
    assert scheduler.next_group() is None
    assert scheduler.next_group() is None, "nothing more is rendered"
    assert scheduler.requests_in_flight == 0
    (chunk,) = scheduler.unfinished()
    assert sorted(chunk.results) == [0, 1, 2, 3], "no row has a result that nobody gave it"


class Replying:
    """An engine with one reply. meanwhile(): called before it comes."""

    def __init__(self, content: str) -> None:
        self._reply = {"choices": [{"message": {"content": content}, "finish_reason": "stop"}]}
        self.meanwhile: Callable[[], None] = lambda: None

    async def send(self, path: str, body: bytes, *, canary: bool = False, headers: object = None) -> Replied:
        self.meanwhile()
        return Replied(self._reply)


def sent(kind: TaskKind, content: str, *, ends: bool = False) -> Scheduler:
    """One row sent, and its reply read.

    Meanwhile the engine answers another request, or, where it `ends`, the worker is told to end.
    """
    scheduler = Scheduler(kind)
    scheduler.open_chunk(0, range(1), rows(["a"]), {})
    group = scheduler.next_group()
    assert group is not None
    health: Any = SimpleNamespace(answered=lambda: None, good=True)

    async def send() -> None:
        calm, engine = Backoff(random.Random(1), asyncio.Event()), Replying(content)
        window, budget, hooks = Window(start=1, step=1, most=1), ByteBudget(1 << 20), SimpleNamespace(over=lambda: None)
        client: Any = engine
        engines, one = Engines(scheduler), Engine(0, client, window, health, Silence(calm))
        engines.add(one)
        parts: Any = (kind, engines, scheduler, calm, Stats(), budget, EngineBudget(), hooks)
        sender = Sender(*parts)
        other = Canary("", b"", [])
        engine.meanwhile = calm.stop.set if ends else lambda: sender.fault_search.answered(0.0, one, other)
        await sender.send(group, sender.ask(group))

    asyncio.run(send())
    return scheduler


def read(kind: TaskKind, content: str, *, ends: bool = False) -> tuple[Scheduler, Row]:
    """One row sent, and its reply read; the row, when it comes again."""
    scheduler = sent(kind, content, ends=ends)
    again = scheduler.next_group()
    assert again is not None
    return scheduler, again.rows[0]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> TaskKind:
    """A kind whose replies are read and checked."""
    monkeypatch.setattr(backoff, "BACKOFF_S", 0.0)
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    return load_kind(a_spec(task="chat", request={"user": "{{ text }}", "json_schema": schema}))


def test_a_reply_that_takes_too_long_to_read_is_an_invalid_one(typed: TaskKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing known takes so long: patterns are matched in linear time. So the reading is one that computes for a minute."""

    def endless(*_: Any) -> Answers:
        compute(60)
        return Answers([Answer({"a": "x"})])

    monkeypatch.setattr(typed, "answers", endless)
    _, row = read(typed, '{"a": "x"}')

    assert (row.faults, row.invalid) == (1, 1)


def test_a_signal_while_a_long_reply_is_read_leaves_the_row_as_it_was(typed: TaskKind, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*_: Any) -> Answers:
        signal.raise_signal(signal.SIGUSR1)
        compute(60)
        return Answers([])

    monkeypatch.setattr(typed, "answers", endless)
    scheduler, row = read(typed, "", ends=True)

    assert (row.faults, row.invalid, row.drops) == (0, 0, 0)
    assert scheduler.unfinished() == []


def test_a_signal_while_a_reply_is_read_loses_no_answer(typed: TaskKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """The soak of seed 1852: eight answers had arrived, were being read when the signal came, and were computed again."""
    answers = typed.answers

    def signalled(*args: Any) -> Answers:
        signal.raise_signal(signal.SIGUSR1)
        return answers(*args)

    monkeypatch.setattr(typed, "answers", signalled)
    scheduler = sent(typed, '{"a": "a"}', ends=True)

    chunk = scheduler.pop_finished()
    assert chunk is not None
    assert chunk.results[0].prediction is not None
