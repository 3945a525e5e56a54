"""The control port: plain HTTP with JSON, for tests and for those who watch. It is ours; Pub/Sub has nothing like it.

====================================  ============================================================================
``GET /_health``                      200 once both ports listen
``GET /subscriptions``                name -> statistics (`statistics_of`)
``GET /metrics``                      backlogs for Prometheus, as Cloud Monitoring's PromQL names them
``GET /deliveries?subscription=NAME`` message id -> how often it was delivered since this process started
``GET, POST, DELETE /faults``         the faults of now; add one (`local.pubsub.faults.Faults.add`); end all
``GET, POST /replies``                whether replies to Pull are full, and the seed of their sizes (`local.pubsub.replies`)
``POST /clock``                       ``{"advance_s": 600}`` moves the emulator's clock forward
====================================  ============================================================================

A wrong request is answered with 400 and a sentence.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from local.pubsub.broker import Broker
from local.pubsub.faults import BadFault, Faults
from local.pubsub.replies import Replies
from local.pubsub.state import SubscriptionState

HEALTH_PATH = "/_health"
PROMETHEUS = {
    "num_undelivered_messages": "num_undelivered_messages",
    "oldest_unacked_message_age": "oldest_unacked_message_age_s",
}
"""Metrics of Cloud Monitoring, below ``pubsub.googleapis.com/subscription``, and their keys in `statistics_of`."""


def application(broker: Broker, faults: Faults, replies: Replies) -> Starlette:
    control = Control(broker, faults, replies)
    routes = [
        Route(HEALTH_PATH, control.health),
        Route("/subscriptions", control.subscriptions),
        Route("/metrics", control.metrics),
        Route("/deliveries", control.deliveries),
        Route("/faults", control.faults, methods=["GET", "POST", "DELETE"]),
        Route("/replies", control.replies, methods=["GET", "POST"]),
        Route("/clock", control.clock, methods=["POST"]),
    ]
    return Starlette(routes=routes)


def statistics_of(subscription: SubscriptionState, now: float) -> dict[str, Any]:
    """What Cloud Monitoring's metrics of the same names say, and a little more.

    num_undelivered_messages: not acknowledged, the outstanding ones included. oldest_unacked_message_age_s: of the oldest of
    them, in seconds; 0 if there is none. outstanding: delivered, and neither acknowledged nor given back. delivered, acked,
    dead_lettered: since this process started; delivered counts each delivery.
    """
    backlog = subscription.backlog
    oldest = backlog.oldest_unacked()
    return {
        "num_undelivered_messages": backlog.unacked,
        "oldest_unacked_message_age_s": 0.0 if oldest is None else max(0.0, now - oldest),
        "outstanding": backlog.outstanding,
        "delivered": backlog.deliveries.total(),
        "acked": subscription.acked,
        "dead_lettered": subscription.dead_lettered,
    }


def _checked(answer: Callable[[Any, Request], Awaitable[Response]]) -> Callable[[Any, Request], Awaitable[Response]]:
    async def checked(self: Any, request: Request) -> Response:
        try:
            return await answer(self, request)
        except (BadFault, TypeError, ValueError) as error:
            return PlainTextResponse(f"{error}\n", 400)

    return checked


class Control:
    def __init__(self, broker: Broker, faults: Faults, replies: Replies) -> None:
        self._broker = broker
        self._faults = faults
        self._replies = replies
        self._state = broker.state

    async def health(self, _: Request) -> Response:
        return PlainTextResponse("ok")

    async def subscriptions(self, _: Request) -> Response:
        now = self._state.clock.now()
        return JSONResponse({name: statistics_of(each, now) for name, each in self._state.subscriptions.items()})

    async def metrics(self, _: Request) -> Response:
        now = self._state.clock.now()
        lines = []
        for name, each in self._state.subscriptions.items():
            found = statistics_of(each, now)
            project, short = name.split("/")[1::2]
            labels = f'monitored_resource="pubsub_subscription",project_id="{project}",subscription_id="{short}"'
            for metric, key in PROMETHEUS.items():
                lines.append(f"pubsub_googleapis_com:subscription_{metric}{{{labels}}} {found[key]}\n")
        return PlainTextResponse("".join(lines))

    async def deliveries(self, request: Request) -> Response:
        found = self._state.subscriptions.get(request.query_params.get("subscription", ""))
        if found is None:
            return PlainTextResponse("there is no such subscription\n", 404)
        return JSONResponse({str(number): count for number, count in found.backlog.deliveries.items()})

    @_checked
    async def faults(self, request: Request) -> Response:
        if request.method == "POST":
            self._faults.add(_fields(await request.body()), self._state.clock.now())
        if request.method == "DELETE":
            self._faults.clear()
        return JSONResponse([dataclasses.asdict(fault) for fault in self._faults.active])

    @_checked
    async def replies(self, request: Request) -> Response:
        if request.method == "POST":
            asked = _fields(await request.body())
            if wrong := [name for name in asked if name not in ("full", "seed")]:
                raise ValueError(f"there is no {wrong[0]}; replies have full and seed")
            full, seed = asked.get("full", self._replies.full), asked.get("seed", self._replies.seed)
            if not isinstance(full, bool) or not isinstance(seed, int):
                raise ValueError("full is true or false, seed is an integer")
            self._replies.full, self._replies.seed = full, seed
        return JSONResponse({"full": self._replies.full, "seed": self._replies.seed})

    @_checked
    async def clock(self, request: Request) -> Response:
        self._state.clock.advance(float(_fields(await request.body())["advance_s"]))
        self._broker.tick()
        return JSONResponse({"now": self._state.clock.now()})


def _fields(body: bytes) -> dict[str, Any]:
    found = json.loads(body)
    if not isinstance(found, dict):
        raise ValueError("the body is not a JSON object")
    return found
