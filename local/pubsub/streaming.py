"""StreamingPull: one task reads what the client sends, another one sends messages while there is room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc

from local.pubsub import limits
from local.pubsub.errors import Refusal, invalid, not_found
from local.pubsub.leases import Consumer
from local.pubsub.messages import StreamingPullResponse, raw
from local.pubsub.service import Services, refuse
from local.pubsub.state import SubscriptionState

METHOD: Final = "StreamingPull"
IDLE_S: Final = 5.0
UNLIMITED: Final = 2**62
_FIRST_ONLY: Final = ("subscription", "max_outstanding_messages", "max_outstanding_bytes", "protocol_version")


def handler(services: Services) -> grpc.RpcMethodHandler:
    async def answer(requests: AsyncIterator[Any], context: Any) -> None:
        try:
            first = await anext(requests, None)
            if first is None:
                return
            await Stream(services, first, context).run(requests)
        except Refusal as refusal:
            await refuse(context, refusal)

    return grpc.stream_stream_rpc_method_handler(
        answer, raw("StreamingPullRequest").FromString, lambda reply: reply.SerializeToString()
    )


class Stream:
    """One stream. Its messages stay leased when it breaks: they are delivered again at their deadline, not before."""

    def __init__(self, services: Services, first: Any, context: Any) -> None:
        """first: the request that opens it. Raises Refusal."""
        self._services = services
        self._context = context
        self._name = first.subscription
        self._subscription: SubscriptionState = services.broker.state.subscription(first.subscription)
        if not first.stream_ack_deadline_seconds:
            raise invalid("stream_ack_deadline_seconds must be specified.")
        limits.check_deadline(first.stream_ack_deadline_seconds, least=limits.DEADLINE_LEAST_S)
        self._consumer = Consumer(first.stream_ack_deadline_seconds)
        self._most = first.max_outstanding_messages if first.max_outstanding_messages > 0 else UNLIMITED
        self._most_bytes = first.max_outstanding_bytes if first.max_outstanding_bytes > 0 else UNLIMITED
        self._first = first
        self._confirmations: list[Any] = []
        self._ended = False

    async def run(self, requests: AsyncIterator[Any]) -> None:
        """Returns when the client has ended the stream. Raises Refusal."""
        await self._services.before(METHOD, self._name)
        self._apply(self._first)
        reading = asyncio.ensure_future(self._read(requests))
        try:
            await self._write(reading)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(self, requests: AsyncIterator[Any]) -> None:
        try:
            async for request in requests:
                for field in _FIRST_ONLY:
                    if getattr(request, field):
                        raise invalid(f"{field} must not be set in a later request of a stream.")
                limits.check_deadline(request.stream_ack_deadline_seconds, least=limits.DEADLINE_LEAST_S)
                if request.stream_ack_deadline_seconds:
                    self._consumer.deadline_s = request.stream_ack_deadline_seconds
                self._apply(request)
        finally:
            self._ended = True
            self._subscription.bell.ring()

    def _apply(self, request: Any) -> None:
        """Acknowledges and moves deadlines as a request says."""
        if len(request.modify_deadline_ack_ids) != len(request.modify_deadline_seconds):
            raise invalid("modify_deadline_ack_ids and modify_deadline_seconds differ in length.")
        if not request.ack_ids and not request.modify_deadline_ack_ids:
            return
        broker, subscription = self._services.broker, self._subscription
        failed: dict[str, str] = {}
        if request.ack_ids and not self._services.strike("drop_acks", METHOD, self._name):
            failed = broker.acknowledge(subscription, request.ack_ids)
        unmoved: dict[str, str] = {}
        by_seconds: dict[int, list[str]] = {}
        for ack_id, seconds in zip(request.modify_deadline_ack_ids, request.modify_deadline_seconds, strict=True):
            by_seconds.setdefault(seconds, []).append(ack_id)
        for seconds, ack_ids in by_seconds.items():
            unmoved |= broker.modify(subscription, ack_ids, seconds)
        self._services.after(METHOD, self._name)
        if subscription.backlog.settings.exactly_once:
            self._confirm(request, failed, unmoved)

    def _confirm(self, request: Any, failed: dict[str, str], unmoved: dict[str, str]) -> None:
        response = self._response()
        if request.ack_ids:
            response.acknowledge_confirmation.ack_ids.extend(each for each in request.ack_ids if each not in failed)
            response.acknowledge_confirmation.invalid_ack_ids.extend(failed)
        if request.modify_deadline_ack_ids:
            moved = (each for each in request.modify_deadline_ack_ids if each not in unmoved)
            response.modify_ack_deadline_confirmation.ack_ids.extend(moved)
            response.modify_ack_deadline_confirmation.invalid_ack_ids.extend(unmoved)
        self._confirmations.append(response)
        self._subscription.bell.ring()

    async def _write(self, reading: asyncio.Future[None]) -> None:
        services, subscription = self._services, self._subscription
        while not self._ended:
            if subscription.gone:
                raise not_found(self._name)
            confirmations, self._confirmations = self._confirmations, []
            for confirmation in confirmations:
                await self._context.write(confirmation)
            services.fail(METHOD, self._name)
            backlog = subscription.backlog
            if services.faults.orders and self._room() and backlog.unacked > backlog.outstanding:
                await services.delay(METHOD, self._name)
            found = self._take()
            if found:
                response = self._response()
                response.received_messages.extend(found)
                await self._context.write(response)
            elif not self._confirmations and not self._ended:
                await subscription.bell.wait(IDLE_S)
        if not reading.cancelled() and reading.done() and (error := reading.exception()):
            raise error

    def _room(self) -> int:
        if self._consumer.outstanding_bytes >= self._most_bytes:
            return 0
        return max(0, self._most - self._consumer.outstanding)

    def _take(self) -> list[Any]:
        room = self._room()
        if not room:
            return []
        repeats = self._services.repeats(METHOD, self._subscription)
        left = self._most_bytes - self._consumer.outstanding_bytes
        return self._services.broker.take(self._subscription, self._consumer, room, repeats, left)

    def _response(self) -> Any:
        response = StreamingPullResponse()
        settings = self._subscription.backlog.settings
        response.subscription_properties.exactly_once_delivery_enabled = settings.exactly_once
        response.subscription_properties.message_ordering_enabled = settings.ordered
        return response
