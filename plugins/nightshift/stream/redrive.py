"""Dead letters published again on their stream's topic, for the command and for Airflow.

The table of dead letters decides what there is to redrive; the topic of dead letters only announces it. A few at a time are
published, and then marked in the table: published at least once and marked once, whatever is killed or repeated in between. A
redriven message has an id that follows from the dead letter's (`nightshift.stream.redriven_ids`), so its copies have one
outcome.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from google.pubsub_v1 import SubscriberAsyncClient
from google.pubsub_v1.types import PubsubMessage

from nightshift.fields.text import n
from nightshift.stream import redriven_ids
from nightshift.stream.dead_letters import DeadLetterTable, Selection
from nightshift.stream.messages import Message
from nightshift.stream.pubsub import Publisher, in_requests, topic_of
from nightshift.stream.pubsub_client import Channel, MessageRefused
from nightshift.stream.sink_writes import UNWRITABLE
from nightshift.tasks.base import Reason

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

    from nightshift.spec import StreamSpec

REASONS: Final = (*(reason.value for reason in Reason), UNWRITABLE)
"""Of dead letters of streams."""


def check_reasons(reasons: Sequence[str]) -> None:
    """Raises ValueError if no dead letter of a stream can have one of them."""
    if unknown := [reason for reason in reasons if reason not in REASONS]:
        raise ValueError(f"There is no reason {', '.join(unknown)}. Reasons are {', '.join(REASONS)}.")


@dataclass(frozen=True)
class Redrive:
    """What is asked for. topic: as projects/PROJECT/topics/NAME; by default the one of the stream's subscription.

    subscription: projects/PROJECT/subscriptions/NAME. dry_run: only count.
    """

    subscription: str
    selection: Selection = field(default_factory=Selection)
    topic: str | None = None
    dry_run: bool = False


@dataclass
class Redriven:
    """What was done. selected: numbers by reason. passed_over: redriven by another process meanwhile. more: there are so many
    beyond the most. refused: ids of dead letters that Pub/Sub does not take, with its words; they are not marked."""

    table: str
    topic: str
    dry_run: bool
    selected: dict[str, int]
    more: int
    published: int = 0
    passed_over: int = 0
    refused: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.selected.items()) or "none"
        how, count = ("would publish", sum(self.selected.values())) if self.dry_run else ("published", self.published)
        done = f"{how} {n(count, 'dead letter')} of {self.table} ({reasons})"
        rest = [
            f"another process redrove {self.passed_over}" if self.passed_over else "",
            f"Pub/Sub refuses {len(self.refused)}" if self.refused else "",
            f"run it again for {self.more} more" if self.more else "",
        ]
        return "; ".join([f"{done} on {self.topic}", *filter(None, rest)])


async def redrive(url: str, spec: StreamSpec, asked: Redrive, credentials: Credentials | None = None) -> Redriven:
    """url: of the database. credentials: for Pub/Sub, and for the database if a Google account logs in there.

    Raises Unavailable, after which a repeat goes on; SinkRefused, PubSubRefused, BadUrl."""
    table = DeadLetterTable(url, spec, credentials)
    try:
        found, more = await table.select(asked.selection)
        topic = asked.topic or await _topic_of(asked.subscription, credentials)
        selected = dict(Counter(each.reason for each in found).most_common())
        done = Redriven(table.table, topic, asked.dry_run, selected, more)
        if not asked.dry_run and found:
            publisher = Publisher(topic, credentials)
            try:
                # Published and marked together: about a request's worth.
                for part in in_requests(found, lambda letter: letter.size):
                    await _publish_part(table, publisher, [letter.message_id for letter in part], done)
            finally:
                await publisher.close()
        return done
    finally:
        await table.close()


async def _topic_of(subscription: str, credentials: Credentials | None) -> str:
    channel = Channel(SubscriberAsyncClient, credentials)
    try:
        return await topic_of(subscription, channel)
    finally:
        await channel.close()


async def _publish_part(table: DeadLetterTable, publisher: Publisher, ids: list[str], done: Redriven) -> None:
    refused: dict[str, str] = {}

    async def publish(messages: Sequence[Message]) -> set[str]:
        found = await publisher.send_all(messages, again, MessageRefused)
        refused.update({name: str(error) for name, error in found.items()})
        return {message.id for message in messages} - refused.keys()

    published = await table.redrive(ids, publish)
    done.published += len(published)
    done.refused |= refused
    done.passed_over += len(ids) - len(published) - len(refused)


def again(message: Message) -> PubsubMessage:
    """The message of a dead letter, as it is published again."""
    attributes = redriven_ids.attributes_of(message.id, message.published, message.attributes)
    return PubsubMessage(data=message.data, attributes=attributes, ordering_key=message.ordering_key)
