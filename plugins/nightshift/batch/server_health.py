"""Whether a server is there. vLLM's ``/health`` says it; with other servers that path may be slow, or red while all is well.

LiteLLM's calls every model that it has, SGLang's generates a token and fails under load, llama.cpp's is red while it loads, and
Ollama has none.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import urlsplit

from nightshift.driver.engine import Failed, Gone, Load, Refused, Replied, SendResult
from nightshift.driver.http import HttpClient, NoDescriptors, NotConnected
from nightshift.driver.served import WrongEngine

log = logging.getLogger(__name__)

PROBE_TIMEOUT_S: Final = 5.0
HEARD_S: Final = 5.0
"""A server that answered a request so recently is there, if nothing went wrong since: it is not asked."""
POLL_S: Final = (0.1, 2.0)
"""The first pause while a server is waited for; each one is twice as long as the last, up to the second number."""
HEALTH: Final = "/health"
MODELS: Final = "/v1/models"


class Presence:
    """Of the server that `probe` asks. load: its `EngineClient.load`. problem: why it seemed away when it was asked last."""

    def __init__(self, base_url: str, probe: HttpClient, load: Callable[[], Awaitable[Load | None]]) -> None:
        self._base_url = base_url
        self._probe = probe
        self._load = load
        self._heard_at = float("-inf")
        self._path = HEALTH
        self.problem = ""

    def note(self, outcome: SendResult) -> None:
        """A request had this outcome just now."""
        if isinstance(outcome, (Replied, Refused)):
            self._heard_at = asyncio.get_running_loop().time()
        elif isinstance(outcome, (Failed, Gone)):
            self._heard_at = float("-inf")

    async def healthy(self) -> bool:
        """Whether the server is there: by a request that it has just answered, or by ``/health``; any answer of one without it.

        If ``/health`` is slow or red, ``/v1/models`` decides from then on, but not for vLLM, which reports its load and knows.
        True also if this process could not ask for want of a file descriptor. Raises WrongEngine if TLS can never work.
        """
        if asyncio.get_running_loop().time() - self._heard_at < HEARD_S:
            return True
        try:
            problem = await self._asked(self._path, range(300, 500))
            if problem is not None and self._path == HEALTH and await self._load() is None:
                models = await self._asked(MODELS, (401, 403))
                if models is None:
                    log.warning(f"{problem}, but {MODELS} answers: that decides from now on")
                    self._path = MODELS
                problem = models and f"{problem}; {models}"
        except NoDescriptors:
            return True
        except NotConnected as error:
            self._check_tls(error)
            problem = str(error)
        self.problem = problem or ""
        return problem is None

    async def _asked(self, path: str, also: range | tuple[int, ...]) -> str | None:
        """What is wrong with the reply to a GET; None for 200 and the statuses `also`. Raises NoDescriptors, NotConnected."""
        try:
            status = (await self._probe.request("GET", path, timeout_s=PROBE_TIMEOUT_S)).status
        except (NoDescriptors, NotConnected):
            raise
        except OSError as error:
            return f"{path}: {error}"
        return None if status == 200 or status in also else f"{path} answers {status}"

    def _check_tls(self, error: NotConnected) -> None:
        cause = error.__cause__
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise WrongEngine(
                f"{self._base_url}: its certificate is not trusted: {cause.verify_message}. "
                "Name a file with the authority's certificate in SSL_CERT_FILE"
            ) from error
        if isinstance(cause, ssl.SSLError) and cause.reason == "WRONG_VERSION_NUMBER":
            raise WrongEngine(f"{self._base_url}: it does not speak TLS. Write http:// if it is meant so") from error

    async def wait(self, budget_s: float) -> bool:
        """Waits until the server is there, at most `budget_s` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + budget_s
        pause, longest = POLL_S
        while not await self.healthy():
            left = deadline - loop.time()
            if left <= 0:
                return False
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, longest)
        return True


def proxy_not_used(base_url: str) -> str:
    """A sentence about the proxy that other programs would use for this URL; "" if there is none."""
    url = urlsplit(base_url)
    proxy = urllib.request.getproxies().get(url.scheme)
    if not proxy or not url.hostname or urllib.request.proxy_bypass(url.hostname):
        return ""
    return f" {url.scheme.upper()}_PROXY is set, but nightshift connects directly, without a proxy."
