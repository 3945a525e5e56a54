"""Calls to Pub/Sub through Google's own clients, on a channel that is replaced when it is dead, and what errors mean."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.api_core import exceptions
from google.auth.exceptions import GoogleAuthError, TransportError
from google.pubsub_v1 import PublisherAsyncClient, SubscriberAsyncClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcAsyncIOTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcAsyncIOTransport

from nightshift.stream.ports import Unavailable

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

log = logging.getLogger(__name__)

LONGEST_S: Final = 90.0
"""Of a pull, the longest call. Pub/Sub ends it sooner: a reply that is not waited for takes its messages' leases along."""
SILENT_MOST: Final = 2
"""Calls in a row that nothing came back of, before the channel counts as dead."""
_OPTIONS: Final = [
    # Of a pull. Pub/Sub sends about 10 MB, and one message may have as much by itself.
    ("grpc.max_receive_message_length", 64 << 20),
    # As Google's own channel has them: what Pub/Sub says of single leases comes as metadata, and gRPC takes 8 KiB of that.
    ("grpc.max_metadata_size", 4 << 20),
    ("grpc.keepalive_time_ms", 30_000),
    # Otherwise a new channel would go on with the connection of the one before it.
    ("grpc.use_local_subchannel_pool", 1),
]
_HOPELESS: Final = (
    exceptions.NotFound,
    exceptions.PermissionDenied,
    exceptions.Unauthenticated,
)


class PubSubRefused(Exception):
    """Pub/Sub refuses the call for good: there is no such subscription or topic, or this account may not use it."""


class MessageRefused(PubSubRefused):
    """Pub/Sub does not take a message, or a request, as it is."""


class NotOffered(PubSubRefused):
    """What answers is not the whole of Pub/Sub: Google's emulator, for one."""


class Channel:
    """A client, and its channel. credentials: by default the environment's. Raises PubSubRefused if there are none."""

    def __init__(
        self, kind: type[SubscriberAsyncClient | PublisherAsyncClient], credentials: Credentials | None = None
    ) -> None:
        self._kind = kind
        self._credentials = credentials
        self._silent = 0
        self._closing: set[asyncio.Task[None]] = set()
        self.client: Any = self._new()

    async def call(self, method: str, request: Any, seconds: float) -> Any:
        """The reply to a request of the client's method of that name. Raises Unavailable, PubSubRefused."""
        client = self.client
        silent = False
        try:
            return await getattr(client, method)(request, retry=None, timeout=seconds)
        except (exceptions.GoogleAPICallError, exceptions.RetryError, GoogleAuthError, grpc.RpcError) as error:
            silent = isinstance(error, exceptions.DeadlineExceeded)
            raise _meaning(error) from error
        finally:
            if client is self.client:
                self._heard(silent)

    async def close(self) -> None:
        await self.client.transport.close()

    def _heard(self, silent: bool) -> None:
        self._silent = self._silent + 1 if silent else 0
        if self._silent < SILENT_MOST:
            return
        log.warning("new channel", extra={"fields": {"error": f"{self._silent} calls in a row had no reply"}})
        old, self.client, self._silent = self.client, self._new(), 0
        # Other calls may still be under way on it, and end by themselves.
        closing = asyncio.get_running_loop().create_task(old.transport.grpc_channel.close(LONGEST_S + 1))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _new(self) -> Any:
        """The clients of `google.pubsub_v1` do not read this variable themselves; those of `google.cloud.pubsub_v1` do."""
        transport: Any = (
            SubscriberGrpcAsyncIOTransport if self._kind is SubscriberAsyncClient else PublisherGrpcAsyncIOTransport
        )
        emulator = os.environ.get("PUBSUB_EMULATOR_HOST")
        if emulator:
            channel = grpc.aio.insecure_channel(emulator, options=_OPTIONS)
        else:
            try:
                channel = transport.create_channel(
                    transport.DEFAULT_HOST, credentials=self._credentials, scopes=transport.AUTH_SCOPES, options=_OPTIONS
                )
            except GoogleAuthError as error:
                raise PubSubRefused(f"no credentials for Pub/Sub: {error}") from error
        return self._kind(transport=transport(channel=channel))


def _meaning(error: Exception) -> Unavailable | PubSubRefused:
    if isinstance(error, exceptions.GoogleAPICallError):
        said = f"{type(error).__name__}: {error.message}"
        if isinstance(error, exceptions.InvalidArgument):
            return MessageRefused(said)
        if isinstance(error, exceptions.MethodNotImplemented):
            return NotOffered(said)
        if isinstance(error, _HOPELESS):
            return PubSubRefused(said)
    if isinstance(error, GoogleAuthError) and not isinstance(error, TransportError):
        return PubSubRefused(f"no credentials for Pub/Sub: {error}")
    return Unavailable(f"{type(error).__name__}: {error}")
