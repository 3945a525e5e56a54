"""``python -m tests.chaos.stream_engine PORT``: the canned engine as a process that can be killed. It refuses poison."""

from __future__ import annotations

import sys
import threading

from aiohttp import web

from tests.integration.driver.canned import CannedEngine


async def refuses_poison(texts: list[str]) -> web.StreamResponse | None:
    if any("poison" in text for text in texts):
        return web.json_response({"error": {"message": "I do not like it"}}, status=400)
    return None


if __name__ == "__main__":
    with CannedEngine(refuses_poison, int(sys.argv[1])):
        threading.Event().wait()
