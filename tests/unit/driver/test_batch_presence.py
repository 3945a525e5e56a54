"""Whether a server is there, by what its paths answer and by what became of requests."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any

import pytest

from nightshift.batch import server_health
from nightshift.batch.server_health import HEALTH, MODELS, Presence, proxy_not_used
from nightshift.driver.engine import Busy, Failed, Gone, Load, Refused, Replied, SendResult
from nightshift.driver.http import ConnectionLost, NoDescriptors, NotConnected, Response
from nightshift.driver.served import WrongEngine
from nightshift.tasks.base import Reason

pytestmark = pytest.mark.unit

LATE = TimeoutError("no reply within 5 s")
AWAY = NotConnected("no connection: [Errno 111] Connection refused")
CUT = ConnectionLost("closed before the reply")


class Asked:
    """A server whose paths answer these statuses or raise these errors. paths: those that were asked."""

    def __init__(self, answers: Mapping[str, int | Exception], *, reports: bool = False) -> None:
        self.answers = dict(answers)
        self.paths: list[str] = []
        probe: Any = self
        self._reports = reports
        self.presence = Presence("https://host/v1", probe, self._load)

    async def request(self, method: str, path: str, *, timeout_s: float) -> Response:
        self.paths.append(path)
        answer = self.answers[path]
        if isinstance(answer, Exception):
            raise answer
        return Response(answer, {}, b"")

    async def _load(self) -> Load | None:
        return Load(0, 0, 0, 0) if self._reports else None


@pytest.mark.parametrize("status", [200, 301, 401, 404, 405])
async def test_health_says_it_or_there_is_no_such_path(status: int) -> None:
    server = Asked({HEALTH: status})

    assert await server.presence.healthy()
    assert server.paths == [HEALTH]


@pytest.mark.parametrize("health", [503, 500, 204, LATE, CUT])
@pytest.mark.parametrize("models", [200, 401, 403])
async def test_where_health_is_slow_or_red_the_models_decide_from_then_on(health: int | Exception, models: int) -> None:
    server = Asked({HEALTH: health, MODELS: models})

    assert await server.presence.healthy()
    assert await server.presence.healthy()
    assert server.paths == [HEALTH, MODELS, MODELS]
    server.answers[MODELS] = 502
    assert not await server.presence.healthy()
    assert server.presence.problem == "/v1/models answers 502"


@pytest.mark.parametrize("models", [404, 500, 503, LATE, CUT])
async def test_a_server_that_shows_no_models_either_is_away_and_it_says_why(models: int | Exception) -> None:
    server = Asked({HEALTH: 503, MODELS: models})

    assert not await server.presence.healthy()
    assert server.presence.problem.startswith("/health answers 503; /v1/models")
    server.answers[HEALTH] = 200
    assert await server.presence.healthy()
    assert server.presence.problem == ""


@pytest.mark.parametrize("health", [503, LATE])
async def test_vllm_knows_its_own_health(health: int | Exception) -> None:
    """Its API server lists models while its engine is dead."""
    server = Asked({HEALTH: health, MODELS: 200}, reports=True)

    assert not await server.presence.healthy()
    assert server.paths == [HEALTH]


async def test_without_a_connection_nothing_else_is_asked() -> None:
    server = Asked({HEALTH: AWAY, MODELS: 200})

    assert not await server.presence.healthy()
    assert (server.paths, server.presence.problem) == ([HEALTH], str(AWAY))


async def test_a_lack_of_descriptors_says_nothing_of_the_server() -> None:
    assert await Asked({HEALTH: NoDescriptors("none")}).presence.healthy()


@pytest.mark.parametrize("answer", [Replied({}), Refused(Reason.REJECTED, "no")])
@pytest.mark.parametrize(("trouble", "asked"), [(Failed("x"), True), (Gone("x"), True), (Busy("x"), False)])
async def test_a_server_that_has_just_answered_is_not_asked_unless_something_went_wrong_since(
    answer: SendResult, trouble: SendResult, asked: bool
) -> None:
    server = Asked({HEALTH: 200})
    server.presence.note(answer)
    assert await server.presence.healthy()
    assert server.paths == []

    server.presence.note(trouble)

    assert await server.presence.healthy()
    assert server.paths == [HEALTH] * asked


async def test_an_answer_of_a_while_ago_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_health, "HEARD_S", 0.0)
    server = Asked({HEALTH: AWAY})
    server.presence.note(Replied({}))

    assert not await server.presence.healthy()


async def test_it_is_asked_less_and_less_often_while_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 8:
            server.answers[HEALTH] = 200
        await real(0)

    server = Asked({HEALTH: AWAY})
    monkeypatch.setattr(asyncio, "sleep", sleep)

    assert await server.presence.wait(1000.0)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]
    assert len(server.paths) == 9


def not_trusted() -> Exception:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "self-signed certificate"
    return error


def no_tls() -> Exception:
    error = ssl.SSLError(1, "wrong version number")
    error.reason = "WRONG_VERSION_NUMBER"
    return error


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (not_trusted(), r"https://host/v1: its certificate is not trusted: self-signed certificate\. Name .* in SSL_CERT_FILE"),
        (no_tls(), "it does not speak TLS. Write http://"),
    ],
)
async def test_tls_that_can_never_work_ends_it_at_once(cause: Exception, said: str) -> None:
    error = NotConnected("no connection")
    error.__cause__ = cause

    with pytest.raises(WrongEngine, match=said):
        await Asked({HEALTH: error}).presence.healthy()


@pytest.mark.parametrize(
    ("environment", "url", "said"),
    [
        ({}, "https://api.test/v1", ""),
        ({"HTTPS_PROXY": "http://proxy:3128"}, "https://api.test/v1", " HTTPS_PROXY is set"),
        ({"http_proxy": "http://proxy:3128"}, "http://api.test", " HTTP_PROXY is set"),
        ({"HTTPS_PROXY": "http://proxy:3128"}, "http://api.test", ""),
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "api.test"}, "https://api.test/v1", ""),
    ],
)
def test_a_proxy_that_is_not_used_is_named(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], url: str, said: str
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"):
        for each in (name, name.lower()):
            monkeypatch.delenv(each, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert proxy_not_used(url).startswith(said)
    assert bool(proxy_not_used(url)) == bool(said)
