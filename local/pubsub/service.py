"""The gRPC services Publisher and Subscriber: from a request to the function that answers it, from a refusal to a status."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
from google.iam.v1 import iam_policy_pb2
from google.protobuf import any_pb2, empty_pb2
from google.rpc import error_details_pb2, status_pb2

from local.pubsub import admin, limits, seeking
from local.pubsub.broker import Broker
from local.pubsub.errors import Refusal, failed_acks, invalid, not_implemented, unavailable
from local.pubsub.faults import Faults
from local.pubsub.leases import Consumer, Entry, Repeats
from local.pubsub.messages import raw
from local.pubsub.replies import Replies
from local.pubsub.state import SubscriptionState

PULL_WAIT_S: Final = 10.0
"""How long a Pull waits for a message before it answers with none. The pages name no time, only that it is bounded."""
DETAILS: Final = "grpc-status-details-bin"
"""The trailing metadata in which clients look for a google.rpc.Status."""

Answer = Callable[[Any], Any]
_IAM: Final = "google.iam.v1.IAMPolicy"
_PUBLISHER: Final = "google.pubsub.v1.Publisher"
_SUBSCRIBER: Final = "google.pubsub.v1.Subscriber"
# (service, method, request, function of the state)
_ADMIN: Final[tuple[tuple[str, str, str, Callable[[Any, Any], Any]], ...]] = (
    (_PUBLISHER, "CreateTopic", "Topic", admin.create_topic),
    (_PUBLISHER, "DeleteTopic", "DeleteTopicRequest", admin.delete_topic),
    (_PUBLISHER, "DetachSubscription", "DetachSubscriptionRequest", admin.detach_subscription),
    (_SUBSCRIBER, "CreateSubscription", "Subscription", admin.create_subscription),
    (_SUBSCRIBER, "GetSubscription", "GetSubscriptionRequest", admin.get_subscription),
    (_SUBSCRIBER, "UpdateSubscription", "UpdateSubscriptionRequest", admin.update_subscription),
    (_SUBSCRIBER, "DeleteSubscription", "DeleteSubscriptionRequest", admin.delete_subscription),
    (_SUBSCRIBER, "Seek", "SeekRequest", seeking.seek),
)


class Missing(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Refuses, in a sentence, every method that `Services` does not have. gRPC asks it last."""

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler:
        refusal = not_implemented(f"method {handler_call_details.method.rpartition('/')[2]}")

        async def refused(_: Any, context: Any) -> None:
            await _refuse(context, refusal)

        return grpc.stream_stream_rpc_method_handler(refused)


class Services:
    """Answers requests from one broker. Functions touch it only between two awaits, so each answer is atomic."""

    def __init__(self, broker: Broker, faults: Faults, replies: Replies) -> None:
        self._broker = broker
        self._faults = faults
        self._replies = replies
        self._state = broker.state

    def handlers(self) -> dict[tuple[str, str], grpc.RpcMethodHandler]:
        """(service, method) -> handler."""
        own: list[tuple[str, str, str, Answer]] = [
            (_PUBLISHER, "Publish", "PublishRequest", self._publish),
            (_SUBSCRIBER, "Pull", "PullRequest", self._pull),
            (_SUBSCRIBER, "Acknowledge", "AcknowledgeRequest", self._acknowledge),
            (_SUBSCRIBER, "ModifyAckDeadline", "ModifyAckDeadlineRequest", self._modify),
        ]
        for service, method, request, answer in _ADMIN:
            own.append((service, method, request, self._with_state(answer)))
        found = {
            (service, method): grpc.unary_unary_rpc_method_handler(
                self._guarded(method, answer), raw(request).FromString, lambda reply: reply.SerializeToString()
            )
            for service, method, request, answer in own
        }
        found[_IAM, "TestIamPermissions"] = grpc.unary_unary_rpc_method_handler(
            self._guarded("TestIamPermissions", self._permissions),
            iam_policy_pb2.TestIamPermissionsRequest.FromString,
            lambda reply: reply.SerializeToString(),
        )
        return found

    def _repeats(self, subscription: SubscriptionState) -> Repeats:
        """Which of a subscription's deliveries are made twice."""
        name = subscription.resource.name

        def repeated(_: Entry) -> bool:
            if subscription.backlog.settings.exactly_once:
                return False
            return self._strike("duplicate", "Pull", name)

        return repeated

    def _strike(self, kind: str, method: str, resource: str) -> bool:
        """Whether an ordered fault strikes this call."""
        return self._faults.strike(kind, method, resource, self._state.clock.now()) is not None

    async def _before(self, method: str, resource: str) -> None:
        """What ordered faults do before a call: they make it wait or fail. Raises Refusal."""
        if fault := self._faults.strike("delay", method, resource, self._state.clock.now()):
            await asyncio.sleep(fault.delay_s)
        if self._strike("unavailable", method, resource):
            raise unavailable("The service was unable to fulfill your request. This fault was ordered.")

    def _after(self, method: str, resource: str) -> None:
        """What ordered faults do to the reply. Raises Refusal."""
        if self._strike("lose_reply", method, resource):
            raise unavailable("The reply was lost. This fault was ordered.")

    def _with_state(self, answer: Callable[[Any, Any], Any]) -> Answer:
        return lambda request: answer(self._state, request)

    def _guarded(self, method: str, answer: Answer) -> Callable[[Any, Any], Awaitable[Any]]:
        async def answered(request: Any, context: Any) -> Any:
            resource = _resource_of(request)
            try:
                await self._before(method, resource)
                reply = answer(request)
                if inspect.isawaitable(reply):
                    reply = await reply
                self._after(method, resource)
                return reply
            except Refusal as refusal:
                await _refuse(context, refusal)

        return answered

    def _permissions(self, request: Any) -> Any:
        """Without identities every caller has every permission on what exists, and none on what does not."""
        if any("*" in each for each in request.permissions):
            raise invalid("Permissions with wildcards are not allowed.")
        state = self._state
        there = request.resource in state.topics or request.resource in state.subscriptions
        return iam_policy_pb2.TestIamPermissionsResponse(permissions=request.permissions if there else [])

    def _publish(self, request: Any) -> Any:
        return raw("PublishResponse")(message_ids=self._broker.publish(request))

    async def _pull(self, request: Any) -> Any:
        if request.max_messages <= 0:
            raise invalid(f"Invalid max_messages: {request.max_messages}; it must be positive.")
        subscription = self._state.subscription(request.subscription)
        consumer = Consumer(subscription.resource.ack_deadline_seconds)
        loop = asyncio.get_running_loop()
        end = loop.time() + (0 if request.return_immediately else PULL_WAIT_S)
        subscription.pulls += 1
        most = self._replies.most(subscription.id, subscription.pulls, request.max_messages)
        while True:
            found = self._broker.take(subscription, consumer, most, self._repeats(subscription))
            left = end - loop.time()
            if found or left <= 0:
                return raw("PullResponse")(received_messages=found)
            await subscription.bell.wait(left)
            # It may be gone by now.
            subscription = self._state.subscription(request.subscription)

    def _acknowledge(self, request: Any) -> Any:
        limits.check_ack_request(request)
        subscription = self._state.subscription(request.subscription)
        if not self._strike("drop_acks", "Acknowledge", request.subscription):
            failed = self._broker.acknowledge(subscription, request.ack_ids)
            if failed and subscription.backlog.settings.exactly_once:
                raise failed_acks(failed)
        return empty_pb2.Empty()

    def _modify(self, request: Any) -> Any:
        limits.check_ack_request(request)
        subscription = self._state.subscription(request.subscription)
        failed = self._broker.modify(subscription, request.ack_ids, request.ack_deadline_seconds)
        if failed and subscription.backlog.settings.exactly_once:
            raise failed_acks(failed)
        return empty_pb2.Empty()


def _resource_of(request: Any) -> str:
    """The name of the subscription or topic that a request is about."""
    named = (getattr(request, field, "") for field in ("name", "subscription", "topic", "resource"))
    found = next(filter(None, named), "")
    # The request to update one has the subscription itself.
    return str(getattr(found, "name", found))


async def _refuse(context: Any, refusal: Refusal) -> None:
    """Ends a call with a status. Does not return."""
    if refusal.failed_acks:
        info = error_details_pb2.ErrorInfo(
            reason="EXACTLY_ONCE_ACKID_FAILURE", domain="pubsub.googleapis.com", metadata=refusal.failed_acks
        )
        detail = any_pb2.Any()
        detail.Pack(info)
        status = status_pb2.Status(code=refusal.code.value[0], message=refusal.message, details=[detail])
        context.set_trailing_metadata(((DETAILS, status.SerializeToString()),))
    await context.abort(refusal.code, refusal.message)
