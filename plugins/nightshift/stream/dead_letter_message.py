"""A dead letter as a message for its topic: the original, with attributes that say what is wrong with it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from nightshift.fields.text import n
from nightshift.stream.messages import Dead, Message

ATTRIBUTES_MOST: Final = 100
VALUE_BYTES_MOST: Final = 1024
MESSAGE_BYTES_MOST: Final = 9_900_000
"""Of a message, whose limit is 10 MB with its request (Pub/Sub's "Quotas and limits", like the two above)."""
RESERVED: Final = "goog"
"""Attributes whose names begin so are Pub/Sub's own, and no other publisher may set them."""
PREFIX: Final = "nightshift_"


@dataclass(frozen=True)
class Announcement:
    """Of the dead letters of one stream. origin: what its messages come from, "subscription" or "prefix", and its name.

    place: where dead letters are kept whole, in words.
    """

    job: str
    origin: tuple[str, str]
    place: str

    def comes_back(self, message: Message) -> bool:
        """Whether the message is an announcement of this stream's own, or of another's that followed from one."""
        return self.job in _jobs(message)

    def of(self, dead: Dead) -> tuple[bytes, dict[str, str]]:
        """Data and attributes of the message. What would make it too large is left out, and an attribute says so."""
        message = dead.message
        own = {
            "reason": dead.reason,
            "text": dead.text,
            "status": "" if dead.status is None else str(dead.status),
            "tries": str(dead.tries),
            "message_id": message.id,
            "publish_time": message.published.isoformat(),
            "job": self.job,
            "jobs": ",".join((*before, self.job)) if (before := _jobs(message)) else "",
            self.origin[0]: self.origin[1],
        }
        attributes = {f"{PREFIX}{name}": _cut(value) for name, value in own.items() if value}
        theirs = {name: value for name, value in message.attributes.items() if not name.startswith((RESERVED, PREFIX))}
        room = ATTRIBUTES_MOST - len(attributes) - 1
        kept = dict(list(theirs.items())[:room])
        data, left_out = message.data, []
        if lacking := len(message.attributes) - len(kept):
            left_out.append(f"{n(lacking, 'attribute')}")
        size = len(data) + sum(len(name.encode()) + len(value.encode()) for name, value in (kept | attributes).items())
        if size > MESSAGE_BYTES_MOST:
            left_out.append(f"{n(len(data), 'byte')} of data")
            data = b""
        if left_out:
            attributes[f"{PREFIX}left_out"] = _cut(f"{' and '.join(left_out)}; {self.place} has the whole message")
        return data, kept | attributes


def _jobs(message: Message) -> list[str]:
    """The streams in which an announcement died, first to last; none of any other message."""
    if f"{PREFIX}reason" not in message.attributes:
        return []
    said = message.attributes.get(f"{PREFIX}jobs") or message.attributes.get(f"{PREFIX}job", "")
    return said.split(",") if said else []


def _cut(text: str) -> str:
    """As much of a text as an attribute may have."""
    return text.encode(errors="replace")[:VALUE_BYTES_MOST].decode(errors="ignore")
