"""One HTTP request to the engine, and what its reply means for the rows in it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from nightshift.tasks.base import Reason

REQUEST_TIMEOUT_S: Final = 600.0
"""A request waits for its turn inside the engine, so it may take long; only a hung engine takes longer than this."""
CONNECT_TIMEOUT_S: Final = 10.0
PROBE_TIMEOUT_S: Final = 5.0

# Words by which vLLM says that an input is too long; it has no error code of its own for that.
_LENGTH_WORDS: Final = ("maximum context length", "maximum model length", "max_model_len", "too long", "longer than the")


class WrongEngine(Exception):
    """The engine runs but does not serve what the job asks for: trying again cannot help."""


@dataclass(frozen=True)
class Replied:
    """200, with a JSON object."""

    body: dict[str, Any]


@dataclass(frozen=True)
class Refused:
    """The request can never succeed as it is."""

    reason: Reason
    message: str


@dataclass(frozen=True)
class Failed:
    """The engine failed on this request while it goes on serving; the rows may be at fault."""

    message: str


@dataclass(frozen=True)
class Busy:
    """The engine has no room at the moment. retry_after: seconds it asked for, if it did."""

    message: str
    retry_after: float | None = None


@dataclass(frozen=True)
class Gone:
    """No connection, or it broke before the reply was whole."""

    message: str


Outcome = Replied | Refused | Failed | Busy | Gone


class Engine:
    """A vLLM server at `base_url`, serving `model`. Use as an async context manager."""

    def __init__(self, base_url: str, model: str, connections: int) -> None:
        self._base_url = base_url.rstrip("/")
        self._model = model
        self._connections = connections

    async def __aenter__(self) -> Engine:
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=self._connections + 2)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def send(self, endpoint: str, body: dict[str, Any]) -> Outcome:
        """POSTs one request. What the network or the engine does to it is the Outcome; raises WrongEngine alone."""
        try:
            async with self._session.post(self._base_url + endpoint, json=body) as reply:
                return judge(reply.status, await reply.read(), reply.headers.get("Retry-After"))
        except TimeoutError:
            return Failed(f"no reply within {REQUEST_TIMEOUT_S:.0f} s")
        except (aiohttp.ClientError, OSError) as error:
            return Gone(f"{type(error).__name__}: {error}")

    async def healthy(self) -> bool:
        """Whether ``/health`` answers 200 now."""
        try:
            timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
            async with self._session.get(f"{self._base_url}/health", timeout=timeout) as reply:
                return reply.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    async def wait_healthy(self, budget_s: float) -> bool:
        """Waits until the engine is healthy, `budget_s` seconds at most."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + budget_s
        while not await self.healthy():
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(0.5)
        return True

    async def version(self) -> str:
        """The engine's version, once it is seen to serve the model. Raises WrongEngine; aiohttp.ClientError, OSError."""
        async with self._session.get(f"{self._base_url}/v1/models") as reply:
            served = [item["id"] for item in (await reply.json())["data"]]
        if self._model not in served:
            raise WrongEngine(f"the engine serves {served}, the job asks for {self._model!r}")
        async with self._session.get(f"{self._base_url}/version") as reply:
            return str((await reply.json())["version"])


def judge(status: int, body: bytes, retry_after: str | None) -> Outcome:
    """What a reply means.

    400, 413 and 422 are the request's fault, 429 and 503 are load, 401 to 405 concern every row alike and raise WrongEngine;
    all other errors are the engine's own.
    """
    if status == 200:
        try:
            parsed = json.loads(body)
        except (ValueError, RecursionError) as error:
            return Failed(f"200 with a body that is not JSON: {error}")
        return Replied(parsed) if isinstance(parsed, dict) else Failed("200 with a body that is not a JSON object")
    message = _message(body)
    if status in (400, 413, 422):
        too_long = status == 413 or any(word in message.lower() for word in _LENGTH_WORDS)
        return Refused(Reason.TOO_LONG if too_long else Reason.REJECTED, message)
    if status in (401, 403, 404, 405):
        raise WrongEngine(f"the engine answers {status}: {message}")
    if status in (429, 503):
        return Busy(f"{status}: {message}", _seconds(retry_after))
    return Failed(f"{status}: {message}")


def _message(body: bytes) -> str:
    try:
        parsed = json.loads(body)
        error = parsed.get("error", parsed)
        return str(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, AttributeError, RecursionError):
        return body[:500].decode(errors="replace")


def _seconds(retry_after: str | None) -> float | None:
    """Retry-After in seconds; its date form is not used by any engine and reads as absent."""
    try:
        return None if retry_after is None else max(0.0, float(retry_after))
    except ValueError:
        return None
