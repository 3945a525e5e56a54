"""Whether work can be done: what the server behind the batcher says of its health."""

from __future__ import annotations

import asyncio
from typing import Final

from nightshift.driver.http import HttpClient, NoDescriptors

PATHS: Final = ("/health", "/v2/health/ready")
"""vLLM's and most others', and that of the Open Inference Protocol."""
ANSWER_S: Final = 5.0
BELIEVED_S: Final = 1.0
"""However often it is asked, the server is asked no more often."""


class Readiness:
    """Asks the server at `client`."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._asking: asyncio.Task[str] | None = None
        self._asked_at = float("-inf")

    async def problem(self) -> str:
        """Why no work can be done now; empty if it can."""
        loop = asyncio.get_running_loop()
        if self._asking is None or (self._asking.done() and loop.time() - self._asked_at >= BELIEVED_S):
            self._asked_at = loop.time()
            self._asking = loop.create_task(self._ask())
        # A prober that leaves must not end it for the others.
        return await asyncio.shield(self._asking)

    async def _ask(self) -> str:
        for path in PATHS:
            try:
                status = (await self._client.request("GET", path, timeout_s=ANSWER_S)).status
            except NoDescriptors:
                return ""  # That says nothing of the server.
            except (OSError, TimeoutError) as error:
                return f"the server does not answer {path}: {error}"
            if status not in (404, 405):
                # A gateway that wants a key says 401 to this, and serves callers who have one.
                bad = status >= 500 or status == 429 or (path != PATHS[0] and status == 400)
                return f"the server answers {path} with {status}" if bad else ""
        return ""  # It answers, and has no such path.
