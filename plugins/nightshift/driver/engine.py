"""One HTTP request to the engine, and what its reply means for the rows in it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self
from urllib.parse import urlsplit

import orjson

from nightshift.driver.backoff import retry_after
from nightshift.driver.http import ConnectionLost, Get, HttpClient, NoDescriptors, NotConnected, ReplyTooLarge, Response
from nightshift.driver.served import Serving, Strange, WrongEngine
from nightshift.tasks import ERROR, choice_that_ended
from nightshift.tasks.base import Reason

REQUEST_TIMEOUT_S: Final = 600.0
"""A request queues inside the engine, so it may take long; only a hung engine takes longer than this."""
PROBE_TIMEOUT_S: Final = 5.0
LOAD_TIMEOUT_S: Final = 2.0
CANARY: Final = {"X-Nightshift-Canary": "1"}
RESTART: Final = b"restart"
MESSAGE_MAX: Final = 2000
"""Characters of an error's text that are kept."""
SECRET_MIN: Final = 8
"""A shorter header value is not a secret, and replacing it would only garble the error's text."""

# How vLLM says that an input is too long; it has no error code for that.
_LENGTH_WORDS: Final = ("maximum context length", "maximum model length", "max_model_len", "too long", "longer than the")
# How it says that a number of the request is larger than one of its own: no row is at fault, long or short.
_NUMBER_WORDS: Final = re.compile(r"\b\w+ ?= ?\d+ cannot be greater than ")
# How vLLM says that its core has died; the text does not always name the exception.
_DEAD_WORDS: Final = ("EngineDeadError", "EngineCore encountered an issue")

# A line of the Prometheus text format: name, labels (values may contain anything but a newline), value.
_GAUGES: Final = re.compile(
    rb"^vllm:(num_requests_running|num_requests_waiting|kv_cache_usage_perc|num_preemptions_total)(?:\{.*\})?[ \t]+(\S+)",
    re.MULTILINE,
)
_CODE: Final = re.compile("[345][0-9][0-9]")


@dataclass(frozen=True, slots=True)
class Replied:
    """200, with a JSON object. raw: the text that it was read from."""

    body: Any
    raw: bytes = field(default=b"", compare=False, repr=False)


class _Said:
    """``str()`` is the message for people, after the status if there is one."""

    __slots__ = ()
    message: str
    status: int | None

    def __str__(self) -> str:
        return self.message if self.status is None else f"{self.status}: {self.message}"


@dataclass(frozen=True, slots=True)
class Refused(_Said):
    """The request can never succeed as it is. status: of the reply, if the reason alone does not show it."""

    reason: Reason
    message: str
    status: int | None = None


@dataclass(frozen=True, slots=True)
class Failed(_Said):
    """The engine failed on this request but still serves others; the rows may be at fault.

    reason: of the dead letters that it leads to if they are; TIMEOUT by this client's clock or a gateway's. status: of the
    reply, if there was one. lasting: the engine did not try, and as far as its reply tells it will say the same the next
    time: to this request, or to every one.
    """

    message: str
    reason: Reason = Reason.ENGINE_ERROR
    status: int | None = None
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class Busy(_Said):
    """The engine has no room now. retry_after: seconds it asked for, if it did."""

    message: str
    retry_after: float | None = None
    status: int | None = None


@dataclass(frozen=True, slots=True)
class Gone(_Said):
    """No connection, or it broke before the reply was whole, or the engine says that it is dead.

    status: of a whole reply. reached: whether the engine may have had the request.
    """

    message: str
    status: int | None = None
    reached: bool = True


@dataclass(frozen=True, slots=True)
class Stranger(Gone):
    """It serves something else than the run began with. It has had no row, or its answer is dropped."""

    reached: bool = False


@dataclass(frozen=True, slots=True)
class Unsent:
    """This process had no file descriptor left for a connection: says nothing about the engine or the request."""

    message: str


SendResult = Replied | Refused | Failed | Busy | Gone | Unsent
"""What became of one request."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the engine says about itself; several engines behind one server (data parallel) are added up.

    running, waiting: requests. kv_cache: used part of the fullest engine's cache, 0 to 1. preemptions: since the start.
    """

    running: float
    waiting: float
    kv_cache: float
    preemptions: float


class EngineClient:
    """A vLLM server at `base_url`, serving `model`. Use as an async context manager.

    headers: sent with every request; their values never appear in a result. connection_life_s: finite if several servers may
    share the address (`nightshift.driver.http.HttpClient`). Raises WrongEngine for a URL or headers that
    cannot be used.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        headers: Mapping[str, str] | None = None,
        connection_life_s: float = math.inf,
    ) -> None:
        own = {name: value for name, value in (headers or {}).items() if name.lower() != "content-type"}
        try:
            self._client = HttpClient(
                base_url, headers={**own, "Content-Type": "application/json"}, connection_life_s=connection_life_s
            )
        except ValueError as error:
            raise WrongEngine(f"cannot send requests to the engine: {error}") from None
        self._url = urlsplit(base_url)
        self._model = model
        self._models = {model}
        self._serving: Serving | None = None
        self._request_timeout_s = request_timeout_s
        self._secrets = _secrets(own)

    def __repr__(self) -> str:
        return f"<EngineClient {self._model!r} {self._client!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def send(
        self, path: str, body: bytes, *, canary: bool = False, headers: Mapping[str, str] | None = None
    ) -> SendResult:
        """POSTs one JSON body. Errors of the network and the engine are results.

        After `meet`, nothing is sent to an engine that serves something else. Raises WrongEngine if no other engine is left.
        canary: whether the answer will be thrown away (`nightshift.driver.attribution`), which a header says, too.
        headers: of this request alone.
        """
        headers = CANARY if canary else headers
        try:
            check = self._check if self._serving else None
            reply = await self._client.request("POST", path, body, headers, timeout_s=self._request_timeout_s, check=check)
            outcome = self._judged(reply)
            if isinstance(outcome, Replied):
                outcome = await self._own(outcome)
        except Strange as error:
            return Stranger(str(error))
        except TimeoutError as error:
            return Failed(str(error), Reason.TIMEOUT)
        except ReplyTooLarge as error:
            return Failed(str(error))
        except NoDescriptors as error:
            return Unsent(str(error))
        except NotConnected as error:
            return Gone(str(error), reached=False)
        except OSError as error:
            self._client.check_again()
            return Gone(str(error))
        if isinstance(outcome, Gone):
            self._client.check_again()
        return outcome

    async def healthy(self) -> bool:
        """Whether ``/health`` answers 200 now, and the engine serves the run's model, as far as is known.

        True also if this process could not ask for want of a file descriptor. Raises WrongEngine as `send` does.
        """
        try:
            well = (await self._client.request("GET", "/health", timeout_s=PROBE_TIMEOUT_S)).status == 200
            if well and self._serving and self._serving.is_stranger(self):
                await self._check(self._get)
        except NoDescriptors:
            return True
        except (OSError, Strange):
            well = False
        if not well:
            self._client.check_again()
        return well

    async def load(self) -> Load | None:
        """The engine's load from ``/metrics``; None if it does not answer at once or has no such metrics."""
        try:
            reply = await self._client.request("GET", "/metrics", timeout_s=LOAD_TIMEOUT_S)
        except OSError:
            return None
        return parse_load(reply.body) if reply.status == 200 else None

    def ask_restart(self) -> None:
        """Asks the supervisor of an engine in this pod (`nightshift.jobset.manifest.supervisor`) to start it again.

        By a datagram to the port of the engine, so a supervisor that is not there does not hear it.
        """
        if self._url.hostname == "127.0.0.1" and self._url.port:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender, contextlib.suppress(OSError):
                sender.sendto(RESTART, (self._url.hostname, self._url.port))

    async def wait_healthy(self, budget_s: float) -> bool:
        """Waits until the engine is healthy, `budget_s` seconds at most."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + budget_s
        while not await self.healthy():
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(0.5)
        return True

    async def meet(self, serving: Serving) -> str:
        """Asks the engine what it serves; from now on it must stay that. Returns its version; "unknown" if it does not say.

        Raises WrongEngine; OSError (ConnectionLost, TimeoutError) when it does not answer.
        """
        models, version = await self._says(self._get)
        serving.meet(models, version)
        self.keep(serving)
        return version

    def keep(self, serving: Serving) -> None:
        """From now on it is asked on every new connection, and must still serve that."""
        self._serving = serving

    async def _check(self, get: Get) -> None:
        """Asks again. Raises Strange, WrongEngine, OSError."""
        try:
            models, version = await self._says(get)
        except WrongEngine as error:
            # A proxy may say so while the engine behind it is started again.
            raise NotConnected(str(error)) from error
        if self._serving:
            self._serving.check(self, self._url.geturl(), models, version)

    async def _says(self, get: Get) -> tuple[Any, str]:
        """The answer of ``/v1/models``, and the version. Raises WrongEngine, OSError."""
        models, version = await self._told(get, "/v1/models"), await self._told(get, "/version")
        if not isinstance(models, Replied):
            raise WrongEngine(f"this is not an engine: /v1/models answers {models}")
        # Other servers have no such page, or another one.
        return models.body, str(version.body.get("version", "unknown")) if isinstance(version, Replied) else "unknown"

    async def _told(self, get: Get, path: str) -> Replied | Refused | Failed:
        """What a page says whenever it is asked. Raises OSError for what passes: load, a server that starts or ends."""
        reply = await get(path)
        outcome = self._judged(reply)
        if isinstance(outcome, Replied | Refused) or (isinstance(outcome, Failed) and (outcome.lasting or reply.status == 200)):
            return outcome
        raise ConnectionLost(f"{path}: {outcome}")

    async def _get(self, path: str) -> Response:
        return await self._client.request("GET", path, timeout_s=self._request_timeout_s)

    async def _own(self, reply: Replied) -> Replied:
        """The reply, unless it is by another model: a gateway may have asked another one. Raises Strange, WrongEngine, OSError.

        Where each request names its model, a name that no reply had so far has the engine asked what it serves now.
        """
        name = reply.body.get("model")
        if self._serving and isinstance(name, str) and name and name not in self._models:
            if self._model:
                self._serving.refuse(self, self._url.geturl(), f"an answer by {name!r}")
            await self._check(self._get)
            self._models.add(name)
        return reply

    def _judged(self, reply: Response) -> SendResult:
        """What the reply means. In an error secrets are masked, because some servers repeat a wrong key in their answer."""
        outcome = judge(reply.status, reply.body, reply.headers)
        if isinstance(outcome, Replied) or not self._secrets:
            return outcome
        body = reply.body
        for secret in self._secrets:
            body = body.replace(secret, b"***")
        return judge(reply.status, body, reply.headers)


def judge(status: int, body: bytes, headers: Mapping[str, str]) -> SendResult:
    """What a reply means by itself. headers: names in lower case.

    400, 413 and 422 are the request's fault. 429 and 503 mean load. 502, and a 500 that says that the engine's core is dead,
    mean a lost engine; 408 and 504 mean no reply in time. A redirect, any other 4xx, and 501 are refusals, of this request or
    of every one: that shows in what becomes of others (`nightshift.driver.attribution`). So does a reply that cannot be an
    answer: 200 with something that is not JSON (NaN and lone surrogates are not), another 2xx. All other errors are the
    engine's. An error inside a 200 means what it would have meant as a status, but that the engine still runs.
    """
    if status == 200:
        return _of_200(body, headers)
    message = _message(body)
    if status in (429, 503):
        return Busy(message, retry_after(headers), status)
    if status == 502 or (status == 500 and any(word in message for word in _DEAD_WORDS)):
        return Gone(message, status)
    if 300 <= status < 400 and "location" in headers:
        message = f"it redirects to {headers['location']}"[:MESSAGE_MAX]
    return _fault(status, message)


def _of_200(body: bytes, headers: Mapping[str, str]) -> SendResult:
    try:
        parsed = orjson.loads(body)
    except ValueError as error:
        said = f"200 with a body that is not JSON ({headers.get('content-type', 'no content type')}): {error}"
        return Failed(said, Reason.INVALID_OUTPUT, lasting=True)
    if not isinstance(parsed, dict):
        return Failed("200 with a body that is not a JSON object", Reason.INVALID_OUTPUT, lasting=True)
    if (inside := _error_in(parsed)) is None:
        return Replied(parsed, body)
    code, message = _code(inside) or _code(parsed), _said(inside, body)
    return Busy(message, retry_after(headers), code) if code == 429 else _fault(code, message)


def _error_in(reply: Mapping[str, Any]) -> Any:
    """What went wrong after the status was sent; None if nothing did."""
    if reply.get("error") not in (None, "", False):
        return reply["error"]
    if reply.get("object") == "error":
        return reply
    choice = choice_that_ended(reply, ERROR)
    return None if choice is None else choice.get("error") or "the engine failed while it answered"


def _code(error: Any) -> int | None:
    """The status that an error in a reply would have had, if it says so."""
    for name in ("code", "status_code", "status") if isinstance(error, dict) else ():
        value = error.get(name)
        if (isinstance(value, int) and 300 <= value < 600) or (isinstance(value, str) and _CODE.fullmatch(value)):
            return int(value)
    return None


def _fault(status: int | None, message: str) -> Refused | Failed:
    """What an error means for the request that met it."""
    if status in (400, 413, 422):
        too_long = status == 413 or (
            any(word in message.lower() for word in _LENGTH_WORDS) and not _NUMBER_WORDS.search(message)
        )
        return Refused(Reason.TOO_LONG if too_long else Reason.REJECTED, message)
    if status in (408, 504):
        return Failed(message, Reason.TIMEOUT, status)
    if status is None or status == 425 or (status >= 500 and status != 501):
        return Failed(message, status=status)
    return Failed(message, Reason.INVALID_OUTPUT if status < 300 else Reason.REJECTED, status, lasting=True)


def parse_load(text: bytes) -> Load | None:
    """The load in a page of the Prometheus text format; None if it names neither running nor waiting requests."""
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


def _message(body: bytes) -> str:
    """The text of an error's body: the message in it if it has the form of OpenAI's or FastAPI's errors, else all of it."""
    try:
        parsed = orjson.loads(body)
        return _said(parsed.get("error") or parsed, body)
    except (ValueError, AttributeError):
        return _start_of(body)


def _said(error: Any, body: bytes) -> str:
    """The message in an error, else all of it. body: that it is from."""
    try:
        return _words(error.get("message", error.get("detail", error)) if isinstance(error, dict) else error)[:MESSAGE_MAX]
    except (TypeError, RecursionError):
        return _start_of(body)


def _start_of(body: bytes) -> str:
    return body[: 4 * MESSAGE_MAX].decode(errors="replace")[:MESSAGE_MAX]


def _words(said: Any) -> str:
    """FastAPI lists what is wrong with a request as objects with ``loc`` and ``msg``."""
    if isinstance(said, list) and said and all(isinstance(item, dict) and "msg" in item for item in said):
        places = [item.get("loc") if isinstance(item.get("loc"), list) else () for item in said]
        return "; ".join(
            f"{'.'.join(map(str, place))}: {item['msg']}".removeprefix(": ") for place, item in zip(places, said, strict=True)
        )
    return said if isinstance(said, str) else orjson.dumps(said).decode()


def _secrets(headers: Mapping[str, str]) -> list[bytes]:
    """What must not be shown of these headers: their values, and the credentials after "Bearer", longest first."""
    values = {part for value in headers.values() for part in (value, value.rpartition(" ")[2]) if len(part) >= SECRET_MIN}
    return [value.encode("latin-1") for value in sorted(values, key=lambda value: (-len(value), value))]
