"""One attempt of a probe that connects: HTTP GET or a TCP connection, only to this machine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

HOST = "127.0.0.1"


async def http_ok(port: int, path: str, headers: Sequence[tuple[str, str]], timeout_s: float) -> bool:
    """Whether a GET is answered with a status from 200 to 399 in time. Redirects are not followed, and count as success."""
    names = {name.lower() for name, _ in headers}
    defaults = [("Host", f"{HOST}:{port}"), ("User-Agent", "kube-probe/nightshift"), ("Accept", "*/*")]
    lines = [f"{name}: {value}" for name, value in (*headers, *(pair for pair in defaults if pair[0].lower() not in names))]
    request = "\r\n".join([f"GET {path} HTTP/1.1", *lines, "Connection: close", "", ""])
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(HOST, port)
            try:
                writer.write(request.encode())
                words = (await reader.readline()).split()
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError, ValueError):
        return False
    return len(words) > 1 and words[1].isdigit() and 200 <= int(words[1]) < 400


async def tcp_ok(port: int, timeout_s: float) -> bool:
    """Whether a connection is accepted in time."""
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(HOST, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
