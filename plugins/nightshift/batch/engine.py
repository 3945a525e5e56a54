"""Any OpenAI-compatible server as the driver's engine: vLLM first, but paths that only vLLM has may be missing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from nightshift.batch.server_health import MODELS, PROBE_TIMEOUT_S, Presence
from nightshift.batch.task_kind import Whole
from nightshift.driver.engine import EngineClient, Replied, SendResult
from nightshift.driver.http import HttpClient
from nightshift.driver.served import Serving

_REMEDY: Final = "Start the server as it was, and run the same command again; or use --fresh to start over"


def base_of(url: str) -> str:
    """The URL without the ``/v1`` that OpenAI's clients want at its end: each line has its own ``/v1/...``."""
    return url.rstrip("/").removesuffix("/v1")


@dataclass(frozen=True)
class About:
    """What a server says about itself. version: "" if it does not say. served: its model, "" unless it has exactly one."""

    version: str
    served: str


class Server:
    """`nightshift.driver.health.EngineLike`. Use as an async context manager. presence: whether it is there."""

    def __init__(self, base_url: str, key: str | None, timeout_s: float) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # Each line names its model.
        self._engine = EngineClient(base_url, "", request_timeout_s=timeout_s, headers=headers)
        self._probe = HttpClient(base_url, headers=headers)
        self.load, self.ask_restart = self._engine.load, self._engine.ask_restart
        self.presence = Presence(base_url, self._probe, self.load)
        self.healthy = self.presence.healthy

    async def __aenter__(self) -> Server:
        await self._engine.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._probe.close()
        await self._engine.__aexit__(*error)

    async def send(
        self, path: str, body: bytes, *, canary: bool = False, headers: Mapping[str, str] | None = None
    ) -> SendResult:
        outcome = await self._engine.send(path, body, canary=canary, headers=headers)
        self.presence.note(outcome)
        return Replied(Whole(outcome.body, outcome.raw)) if isinstance(outcome, Replied) else outcome

    async def about(self) -> About:
        """Asks for version and models; a server need not report either."""
        version = (await self._json("/version")).get("version")
        served = _only_model(await self._json(MODELS))
        if served:
            self._engine.keep(Serving(lambda models, _: _only_model(models), first=served, remedy=_REMEDY))
        return About(version if isinstance(version, str) else "", served)

    async def _json(self, path: str) -> dict[str, Any]:
        try:
            reply = await self._probe.request("GET", path, timeout_s=PROBE_TIMEOUT_S)
            value = json.loads(reply.body) if reply.status == 200 else None
        except (OSError, TimeoutError, ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}


def _only_model(reply: Any) -> str:
    """The model that a server offers; "" unless it lists exactly one. reply: of ``/v1/models``."""
    models = reply.get("data") if isinstance(reply, dict) else None
    # LoRA adapters have a parent; they may come and go while the model stays.
    base = [item for item in models if isinstance(item, dict) and not item.get("parent")] if isinstance(models, list) else []
    return f"{base[0].get('id')} ({base[0].get('root')})" if len(base) == 1 else ""
