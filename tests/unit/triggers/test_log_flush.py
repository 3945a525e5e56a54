"""Whether what a trigger logged has left this process, on a real socket like the one that Airflow has a triggerer log to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from airflow._shared.logging.structlog import LoggerFactory

from nightshift.triggers.log_flush import CHECK_S, logged_lines_taken

pytestmark = pytest.mark.unit

LINE = b"x" * 4096


@pytest.fixture
def logging_to() -> Iterator[Any]:
    """Has structlog write into a file or socket, as Airflow does."""
    before = structlog.get_config()

    def configure(stream: Any) -> None:
        structlog.configure(logger_factory=LoggerFactory(structlog.BytesLogger, io=stream))

    yield configure
    structlog.configure(**before)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The socket that is logged to, and the one from which Airflow reads."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


async def test_lines_that_nobody_reads_are_waited_for(logging_to: Any, pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    logging_to(ours)
    ours.sendall(LINE)

    waiting = asyncio.create_task(logged_lines_taken())
    await asyncio.sleep(4 * CHECK_S)
    assert not waiting.done()

    theirs.recv(len(LINE))
    assert await waiting


async def test_patience_has_an_end(logging_to: Any, pair: tuple[socket.socket, socket.socket]) -> None:
    logging_to(pair[0])
    pair[0].sendall(LINE)

    assert not await logged_lines_taken(patience_s=2 * CHECK_S)


async def test_lines_that_come_later_are_not_waited_for(logging_to: Any, pair: tuple[socket.socket, socket.socket]) -> None:
    """Other triggers of the process log into the same socket."""
    ours, theirs = pair
    logging_to(ours)
    for _ in range(2):
        ours.sendall(LINE)

    waiting = asyncio.create_task(logged_lines_taken(patience_s=30))
    await asyncio.sleep(4 * CHECK_S)
    theirs.recv(len(LINE))
    await asyncio.sleep(4 * CHECK_S)
    ours.sendall(LINE)
    await asyncio.sleep(4 * CHECK_S)
    assert not waiting.done()
    theirs.recv(len(LINE))

    assert await waiting


@pytest.mark.parametrize("where", ["file", "nowhere"])
async def test_outside_a_triggerer_there_is_nobody_to_wait_for(logging_to: Any, tmp_path: Path, where: str) -> None:
    with (tmp_path / "log").open("wb") as file:
        logging_to(file if where == "file" else None)
        file.write(LINE)

        assert await logged_lines_taken()
