"""What comes of a log stream's bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from nightshift.jobset.kubernetes.aio import AsyncJobSetApi
from nightshift.jobset.runtime import RuntimeUnavailable

pytestmark = pytest.mark.unit


class Stream:
    """A reply of the API, and the client that got it."""

    status = 200

    def __init__(self, *parts: bytes) -> None:
        self.content = self
        self._parts = parts

    async def call_api(self, *_: Any, **__: Any) -> Stream:
        return self

    async def iter_any(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part

    def close(self) -> None:
        pass


async def read(*parts: bytes, since: str = "") -> list[tuple[str, str]]:
    return [line async for line in AsyncJobSetApi(Stream(*parts), "here").follow_log("pod", "driver", since=since)]  # type: ignore[arg-type]


async def test_lines_are_put_together_from_what_arrives() -> None:
    assert await read(b"2026-11-21T23:32:58.608493984Z re", b"ady\n2026-11-21T23:33:07.107147080Z \n") == [
        ("2026-11-21T23:32:58.608493984Z", "ready"),
        ("2026-11-21T23:33:07.107147080Z", ""),
    ]


async def test_lines_that_are_known_are_left_out() -> None:
    lines = b"2026-11-21T23:32:58.1Z old\n2026-11-21T23:32:58.2Z new\n"

    assert await read(lines, since="2026-11-21T23:32:58.1Z") == [("2026-11-21T23:32:58.2Z", "new")]


async def test_words_of_kubelet_are_no_lines_of_the_program() -> None:
    """As recorded where a container was removed while its log was followed."""
    lines = b"2026-11-21T23:32:58.1Z ready\nrpc error: code = NotFound desc = an error occurred when try to find container"

    with pytest.raises(RuntimeUnavailable, match="rpc error: code = NotFound"):
        await read(lines)
