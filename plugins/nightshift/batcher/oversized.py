"""One caller's request that has more items than a request to the upstream may have: sent in pieces, answered as a whole."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from nightshift.batcher.dispatch import Answer, Caller, Dispatcher
from nightshift.batcher.endpoint import WrongReply
from nightshift.batcher.readiness import Separate
from nightshift.batcher.upstream import CALLERS

AT_ONCE: Final = 2
"""Pieces of one caller that wait or are with the upstream: those who come later do not wait for all of them."""
PIECES_MOST: Final = 64
"""A list of more pieces goes as it is: no batch makes so many items faster than the server by itself."""


async def in_pieces(caller: Caller, dispatcher: Dispatcher, separate: Separate, items_most: int) -> Answer:
    """Its answer: of the first piece that got an error, or of all. If they cannot be put together, it is sent as it came."""
    endpoint, loop = caller.endpoint, asyncio.get_running_loop()
    asked = endpoint.cut(caller.asked, items_most)
    answers: list[Answer | None] = [None] * len(asked)
    left = iter(enumerate(asked))
    failed: list[Answer] = []

    async def work() -> None:
        for number, piece in left:
            # A caller of its own, for some of the items.
            body, since, answering = endpoint.merge([piece]), loop.time(), loop.create_future()
            part = replace(caller, asked=piece, body=body, since=since, answer=answering)
            answers[number] = answer = await dispatcher.ask(part)
            if not 200 <= answer.status < 300:
                failed.append(answer)
                raise _Unanswered

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(work())
    except* _Unanswered:
        pass  # The other piece has been cancelled.
    if failed:
        return failed[0]
    found = [answer for answer in answers if answer is not None]
    try:
        body = endpoint.join([answer.body for answer in found], asked)
    except WrongReply:
        separate.add(caller, loop.time())
        return await dispatcher.ask(replace(caller, alone=True, since=loop.time()))
    most = max(found, key=lambda answer: int(answer.headers[CALLERS]))
    return Answer(found[0].status, {**found[0].headers, CALLERS: most.headers[CALLERS]}, body)


class _Unanswered(Exception):
    """A piece got an error, and with it the whole request."""
