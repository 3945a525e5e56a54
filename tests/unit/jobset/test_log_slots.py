"""Which logs are followed where there are more than may be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from nightshift.jobset.kubernetes.log_slots import Streams
from nightshift.jobset.kubernetes.logs import Logs
from nightshift.jobset.runtime import JobSetNotFound, RuntimeUnavailable

pytestmark = pytest.mark.unit


class Api:
    """Logs that go on until they are told to end. open: containers whose logs are being read."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.read: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}

    async def follow_log(
        self, pod: str, container: str, *, since: str = "", previous: bool = False
    ) -> AsyncIterator[tuple[str, str]]:
        self.open.append(pod)
        self.read.append(pod)
        yield "2026-11-21T00:00:00Z", pod
        await self._ends.setdefault(pod, asyncio.Event()).wait()
        self.open.remove(pod)
        raise JobSetNotFound(pod)

    def end(self, pod: str) -> None:
        self._ends.setdefault(pod, asyncio.Event()).set()


def a_pod(name: str, *, running: bool = True, leaves: bool = False) -> dict[str, Any]:
    state = {"running": {}} if running else {"terminated": {"exitCode": 0}}
    return {
        "metadata": {"name": name, **({"deletionTimestamp": "2026-11-21T00:00:00Z"} if leaves else {})},
        "status": {"containerStatuses": [{"name": "driver", "containerID": name, "state": state}]},
    }


class Side:
    """The logs of one JobSet."""

    def __init__(self, streams: Streams) -> None:
        self.api = Api()
        self.warnings: list[str] = []
        self.logs = Logs(lambda *_: None, lambda text, *_: self.warnings.append(text), streams)

    async def shows(self, *pods: dict[str, Any]) -> None:
        for pod in pods:
            self.logs.update(self.api, pod)  # type: ignore[arg-type]
        await settled()


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_each_is_sure_of_some_however_many_there_are() -> None:
    streams = Streams(most=3, each=10, sure=1)
    many, late = Side(streams), Side(streams)
    await many.shows(a_pod("a"), a_pod("b"), a_pod("c"), a_pod("d"))
    await late.shows(a_pod("x"), a_pod("y"))

    assert many.api.open == ["a", "b", "c"]
    assert late.api.open == ["x"]
    assert len(many.warnings) == len(late.warnings) == 1
    assert not late.logs.quiet


async def test_no_jobset_has_more_than_its_part() -> None:
    side = Side(Streams(most=10, each=2))
    await side.shows(a_pod("a"), a_pod("b"), a_pod("c"))

    assert side.api.open == ["a", "b"]


async def test_a_free_stream_goes_round() -> None:
    streams = Streams(most=2, each=10, sure=0)
    first, second, third = Side(streams), Side(streams), Side(streams)
    await first.shows(a_pod("a"), a_pod("b"), a_pod("c"))
    await second.shows(a_pod("x"))
    await third.shows(a_pod("z"))

    # Whose turn it is has been waiting longest: first itself, then second.
    first.api.end("a")
    await settled()
    assert (first.api.open, second.api.open, third.api.open) == (["b", "c"], [], [])
    first.api.end("b")
    await settled()
    assert (first.api.open, second.api.open, third.api.open) == (["c"], ["x"], [])
    second.api.end("x")
    await settled()
    assert (first.api.open, second.api.open, third.api.open) == (["c"], [], ["z"])
    assert second.logs.quiet


@pytest.mark.parametrize("change", [lambda: a_pod("b", running=False), lambda: a_pod("b", leaves=True)])
async def test_what_ends_is_read_at_once(change: Callable[[], dict[str, Any]]) -> None:
    """A pod that is deleted takes its log along."""
    side = Side(Streams(most=1, each=10, sure=1))
    await side.shows(a_pod("a"), a_pod("b"))
    assert side.api.open == ["a"]
    await side.shows(change())

    assert side.api.open == ["a", "b"]
    side.api.end("b")
    await settled()
    assert side.api.open == ["a"]


async def test_an_interruption_gives_back_and_the_next_look_goes_on() -> None:
    streams = Streams(most=1, each=10, sure=0)
    first, second = Side(streams), Side(streams)
    await first.shows(a_pod("a"), a_pod("b"))
    await second.shows(a_pod("x"))
    await first.logs.interrupt()
    await settled()

    assert second.api.read == ["x"]
    assert first.logs.quiet
    second.api.end("x")
    await first.shows(a_pod("b"))
    assert first.api.read == ["a", "b"]


async def test_an_interruption_before_the_first_step_gives_back_too() -> None:
    streams = Streams(most=1, each=10, sure=0)
    first, second = Side(streams), Side(streams)
    first.logs.update(first.api, a_pod("a"))  # type: ignore[arg-type]
    await first.logs.interrupt()
    await second.shows(a_pod("x"))

    assert (first.api.read, second.api.open) == ([], ["x"])


class Parts:
    """A log that comes in one stream after another: the lines of each, and what ends it (None: it just ends)."""

    def __init__(self, *streams: tuple[str, Exception | None]) -> None:
        self.left = list(streams)

    async def follow_log(
        self, pod: str, container: str, *, since: str = "", previous: bool = False
    ) -> AsyncIterator[tuple[str, str]]:
        line, error = self.left.pop(0)
        if line:
            yield f"2026-11-21T00:00:0{line}Z", line
        if error:
            raise error


BROKEN, DELETED = RuntimeUnavailable("rpc error: code = NotFound"), JobSetNotFound("pod")


@pytest.mark.parametrize(
    ("streams", "lines", "warned"),
    [
        ([("1", BROKEN), ("2", None), ("", DELETED)], ["1", "2"], False),
        ([("1", None), ("", DELETED)], ["1"], False),
        ([("1", BROKEN), ("", DELETED)], ["1"], True),
        ([("1", DELETED)], ["1"], True),
    ],
    ids=["broken, then read to its end", "read to its end", "broken, then deleted", "deleted while it was read"],
)
async def test_a_log_that_was_not_read_to_its_end_is_said(
    streams: list[tuple[str, Exception | None]], lines: list[str], warned: bool
) -> None:
    """The container ends while its log is read; its pod is deleted after that."""
    api, got, warnings = Parts(*streams), [], []
    logs = Logs(lambda _pod, _container, line: got.append(line), lambda text, *_: warnings.append(text), Streams())
    logs.update(api, a_pod("a"))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    logs.update(api, a_pod("a", running=False, leaves=True))  # type: ignore[arg-type]
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
    await settled()

    assert logs.quiet
    assert got == lines
    assert ["deleted before all" in text for text in warnings] == [True] * warned
