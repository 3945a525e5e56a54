"""How a message that was published again says which dead letter it is. Pure.

The first outcome of a message is final, so a redriven message is another one: its id is the dead letter's with a number behind
it, ``17.r1`` for ``17`` and ``17.r2`` for ``17.r1``. An attribute carries that id and the time when the original was published,
and a subscriber takes both for the message's own, whatever Pub/Sub calls the copy. So

- copies of one redriven message are deliveries of one message, which has one outcome however often it was published;
- its row in the sink counts as old as the original: an answer to a newer message of its key stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from nightshift.stream.dead_letter_message import RESERVED

ATTRIBUTE: Final = "nightshift_redriven"
"""Its value: the id, a space, and the time as ISO 8601."""
_ID: Final = re.compile(r"([!-~]{1,200})\.r([1-9][0-9]{0,8})")
"""Printable ASCII, as Pub/Sub's own ids are: what every sink can hold, and use as a key."""
_LEAST: Final = datetime(2010, 1, 1, tzinfo=UTC)
"""Pub/Sub is younger. A time in the year 1 does not exist in some time zones, such as that of a connection to a database."""


def next_id(message_id: str) -> str:
    """The id under which a dead letter is published again."""
    found = _ID.fullmatch(message_id)
    original, times = (found[1], int(found[2])) if found else (message_id, 0)
    return f"{original}.r{times + 1}"


def attributes_of(message_id: str, published: datetime, attributes: Mapping[str, str]) -> dict[str, str]:
    """The attributes of a dead letter's message, with which it is published again.

    Pub/Sub's own are left out, because no other publisher may set them: it adds them again.
    """
    theirs = {name: value for name, value in attributes.items() if not name.startswith(RESERVED)}
    return {**theirs, ATTRIBUTE: f"{next_id(message_id)} {published.astimezone(UTC).isoformat()}"}


def identity(attributes: Mapping[str, str], published: datetime) -> tuple[str, datetime] | None:
    """Id, and time of the first publishing, of a message that was redriven; None for any other. Never raises.

    published: when Pub/Sub got this copy, in UTC; the original is not younger. A value that nightshift does not write is
    another publisher's attribute, and says nothing: with a time in the future, a message would stay the newest of its key.
    """
    name, _, time = attributes.get(ATTRIBUTE, "").partition(" ")
    if not _ID.fullmatch(name):
        return None
    try:
        original = datetime.fromisoformat(time)
    except (ValueError, OverflowError):
        return None
    return (name, original) if original.utcoffset() == timedelta() and _LEAST <= original <= published else None
