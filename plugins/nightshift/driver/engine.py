"""One HTTP request to the engine, and what its reply means for the rows in it."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final

import orjson

from nightshift.driver.http import ConnectionLost, HttpClient, ReplyTooLarge, Response
from nightshift.tasks.base import Reason

REQUEST_TIMEOUT_S: Final = 600.0
"""A request waits for its turn inside the engine, so it may take long; only a hung engine takes longer than this."""
PROBE_TIMEOUT_S: Final = 5.0
LOAD_TIMEOUT_S: Final = 2.0
MESSAGE_MAX: Final = 2000
"""Characters of an error's text that are kept."""
SECRET_MIN: Final = 8
"""A header's value shorter than this is no secret, and looked for in an error's text it would only garble that."""

# Words by which vLLM says that an input is too long; it has no error code of its own for that.
_LENGTH_WORDS: Final = ("maximum context length", "maximum model length", "max_model_len", "too long", "longer than the")
# How vLLM says that its core has died; the name of the exception is not always part of the text.
_DEAD_WORDS: Final = ("EngineDeadError", "EngineCore encountered an issue")

# A line of the Prometheus text format: name, labels (their values may hold anything but an end of line), value.
_GAUGES: Final = re.compile(
    rb"^vllm:(num_requests_running|num_requests_waiting|kv_cache_usage_perc|num_preemptions_total)(?:\{.*\})?[ \t]+(\S+)",
    re.MULTILINE,
)


class WrongEngine(Exception):
    """The engine runs but does not serve what the job asks for: trying again cannot help.

    status, message: of the HTTP reply that showed it, None and "" if it was something else.
    """

    def __init__(self, problem: str, *, status: int | None = None, message: str = "") -> None:
        super().__init__(problem)
        self.status, self.message = status, message


@dataclass(frozen=True, slots=True)
class Replied:
    """200, with a JSON object."""

    body: Any


class _Said:
    """``str()`` is the message for people; a status stands before it."""

    __slots__ = ()
    message: str
    status: int | None

    def __str__(self) -> str:
        return self.message if self.status is None else f"{self.status}: {self.message}"


@dataclass(frozen=True, slots=True)
class Refused(_Said):
    """The request can never succeed as it is. status: of the reply, if the reason alone does not tell it."""

    reason: Reason
    message: str
    status: int | None = None


@dataclass(frozen=True, slots=True)
class Failed(_Said):
    """The engine failed on this request while it goes on serving; the rows may be at fault.

    timeout: there was no reply in time, by this client's clock or by that of a gateway in between. status: of the reply, if
    there was one.
    """

    message: str
    timeout: bool = False
    status: int | None = None


@dataclass(frozen=True, slots=True)
class Busy(_Said):
    """The engine has no room at the moment. retry_after: seconds it asked for, if it did."""

    message: str
    retry_after: float | None = None
    status: int | None = None


@dataclass(frozen=True, slots=True)
class Gone(_Said):
    """No connection, or it broke before the reply was whole, or the engine says that it is dead. status: of a whole reply."""

    message: str
    status: int | None = None


SendResult = Replied | Refused | Failed | Busy | Gone
"""What became of one request."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the engine says about itself; several engines behind one server (data parallel) taken together.

    running, waiting: requests. kv_cache: used part of the fullest engine's cache, 0 to 1. preemptions: since the start.
    """

    running: float
    waiting: float
    kv_cache: float
    preemptions: float


class EngineClient:
    """A vLLM server at `base_url`, serving `model`. Use as an async context manager.

    headers: sent with every request; what they hold is kept out of every result. Raises WrongEngine for a URL or headers that
    cannot be used.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        own = {name: value for name, value in (headers or {}).items() if name.lower() != "content-type"}
        try:
            self._client = HttpClient(base_url, headers={**own, "Content-Type": "application/json"})
        except ValueError as error:
            raise WrongEngine(f"the engine cannot be asked: {error}") from None
        self._model = model
        self._request_timeout_s = request_timeout_s
        self._secrets = _secrets(own)

    def __repr__(self) -> str:
        return f"<EngineClient {self._model!r} {self._client!r}>"

    async def __aenter__(self) -> EngineClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def send(self, path: str, body: bytes) -> SendResult:
        """POSTs one JSON body. What the network or the engine does to it is the result; raises WrongEngine alone."""
        try:
            reply = await self._client.request("POST", path, body, timeout_s=self._request_timeout_s)
        except TimeoutError as error:
            return Failed(str(error), timeout=True)
        except ReplyTooLarge as error:
            return Failed(str(error))
        except OSError as error:
            return Gone(str(error))
        return judge(reply.status, self._without_secrets(reply), reply.headers)

    async def healthy(self) -> bool:
        """Whether ``/health`` answers 200 now."""
        try:
            return (await self._client.request("GET", "/health", timeout_s=PROBE_TIMEOUT_S)).status == 200
        except OSError:
            return False

    async def load(self) -> Load | None:
        """The engine's load by ``/metrics``; None when it does not answer at once or has no such metrics."""
        try:
            reply = await self._client.request("GET", "/metrics", timeout_s=LOAD_TIMEOUT_S)
        except OSError:
            return None
        return parse_load(reply.body) if reply.status == 200 else None

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
        """The engine's version, once it is seen to serve the model; "unknown" where it has no ``/version``.

        Raises WrongEngine; OSError (ConnectionLost, TimeoutError) when it gives no answer.
        """
        served = _served(await self._ask("/v1/models"))
        if self._model not in served:
            raise WrongEngine(f"the engine serves {served}, the job asks for {self._model!r}")
        reply = await self._client.request("GET", "/version", timeout_s=self._request_timeout_s)
        try:
            return str(orjson.loads(reply.body)["version"]) if reply.status == 200 else "unknown"
        except (ValueError, KeyError, TypeError):
            return "unknown"

    async def _ask(self, path: str) -> Any:
        """The JSON object that a GET answers."""
        reply = await self._client.request("GET", path, timeout_s=self._request_timeout_s)
        outcome = judge(reply.status, self._without_secrets(reply), reply.headers)
        if isinstance(outcome, Replied):
            return outcome.body
        if reply.status == 200 or isinstance(outcome, Refused):
            raise WrongEngine(f"{path} is not an engine's: {outcome}")
        raise ConnectionLost(f"{path}: {outcome}")

    def _without_secrets(self, reply: Response) -> bytes:
        """The body; that of an error without what this client sent, for servers that repeat a wrong key in their answer."""
        body = reply.body
        if reply.status != 200:
            for secret in self._secrets:
                body = body.replace(secret, b"***")
        return body


def judge(status: int, body: bytes, headers: Mapping[str, str]) -> SendResult:
    """What a reply means. headers: names in lower case.

    400, 413 and 422 are the request's fault. 429 and 503 are load. 502, and a 500 that says that the engine's core is dead, are
    a lost engine; 408 and 504 are no reply in time. 401 to 405 and redirects concern every row alike and raise WrongEngine. All
    other errors are the engine's own, and so is a 200 that is not JSON (NaN and lone surrogates are not).
    """
    if status == 200:
        try:
            parsed = orjson.loads(body)
        except ValueError as error:
            return Failed(f"200 with a body that is not JSON: {error}")
        return Replied(parsed) if isinstance(parsed, dict) else Failed("200 with a body that is not a JSON object")
    message = _message(body)
    if status in (400, 413, 422):
        too_long = status == 413 or any(word in message.lower() for word in _LENGTH_WORDS)
        return Refused(Reason.TOO_LONG if too_long else Reason.REJECTED, message)
    if 401 <= status <= 405 or 300 <= status < 400:
        raise WrongEngine(f"the engine answers {status}: {message}", status=status, message=message)
    if status in (429, 503):
        return Busy(message, _seconds(headers), status)
    if status == 502 or (status == 500 and any(word in message for word in _DEAD_WORDS)):
        return Gone(message, status)
    return Failed(message, timeout=status in (408, 504), status=status)


def parse_load(text: bytes) -> Load | None:
    """Load by a page in the Prometheus text format; None when it has neither running nor waiting requests."""
    found: dict[bytes, list[float]] = {}
    for name, value in _GAUGES.findall(text):
        try:
            number = float(value)
        except ValueError:
            continue
        if math.isfinite(number):
            found.setdefault(name, []).append(number)
    if b"num_requests_running" not in found and b"num_requests_waiting" not in found:
        return None
    return Load(
        running=sum(found.get(b"num_requests_running", ())),
        waiting=sum(found.get(b"num_requests_waiting", ())),
        kv_cache=max(found.get(b"kv_cache_usage_perc", (0.0,))),
        preemptions=sum(found.get(b"num_preemptions_total", ())),
    )


def _served(models: Any) -> list[str]:
    """The models' names in the answer of ``/v1/models``."""
    try:
        return [str(item["id"]) for item in models["data"]]
    except (KeyError, TypeError):
        raise WrongEngine("the engine's /v1/models does not list models") from None


def _message(body: bytes) -> str:
    """The text of an error's body: the message inside it where it is as OpenAI's errors are, else as it came."""
    try:
        parsed = orjson.loads(body)
        error = parsed.get("error", parsed)
        return str(error.get("message", error) if isinstance(error, dict) else error)[:MESSAGE_MAX]
    except (ValueError, AttributeError, RecursionError):
        return body[: 4 * MESSAGE_MAX].decode(errors="replace")[:MESSAGE_MAX]


def _seconds(headers: Mapping[str, str]) -> float | None:
    """Retry-After in seconds. Its date form is read by the reply's own Date alone: the two clocks need not agree."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(value) - parsedate_to_datetime(headers["date"])).total_seconds()
        except (KeyError, ValueError, TypeError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _secrets(headers: Mapping[str, str]) -> list[bytes]:
    """What must not be seen of these headers: their values, and the credentials alone of "Bearer ...", longest first."""
    values = {part for value in headers.values() for part in (value, value.rpartition(" ")[2]) if len(part) >= SECRET_MIN}
    return [value.encode("latin-1") for value in sorted(values, key=lambda value: (-len(value), value))]
