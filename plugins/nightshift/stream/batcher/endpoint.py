"""What the batcher must know of a kind of request to merge several into one, and to give each caller its own answer. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import orjson

ErrorBody = Callable[[int, str], bytes]
"""The body of an error, from its status and its message."""


class WrongReply(Exception):
    """The reply to a merged request cannot be divided among its callers. The message says why."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What one caller asks for.

    shared: everything but the items, in one form for equal contents: only requests with an equal one are merged. items: the
    JSON of its items without the brackets around them, one text for each list that is joined. count: how many items. own: the
    caller's own name of its request, which its answer has to carry.
    """

    shared: bytes
    items: tuple[bytes, ...]
    count: int
    own: str | None = None


class Endpoint(Protocol):
    """A kind of request that takes a list. name: as in metrics and in ``--endpoints``."""

    @property
    def name(self) -> str: ...

    @property
    def error(self) -> ErrorBody: ...

    def read(self, body: bytes) -> Asked | None:
        """What a body asks for; None if it has to go alone, because it cannot be merged or is not valid at all."""

    def merge(self, asked: Sequence[Asked]) -> bytes:
        """The body of one request for all of these, whose `Asked.shared` is equal."""

    def split(self, reply: bytes, asked: Sequence[Asked]) -> list[bytes]:
        """Each caller's part of the reply to a merged request, in the order of `asked`. Raises WrongReply."""

    def cut(self, asked: Asked, most: int) -> list[Asked]:
        """One caller's request as several of up to `most` items, in order."""

    def join(self, replies: Sequence[bytes], asked: Sequence[Asked]) -> bytes:
        """The reply to what was `cut`, from the replies to its pieces. asked: the pieces. Raises WrongReply."""


_LONG_NUMBER: Final = re.compile(rb"[0-9]{19}")
_WHOLE: Final = range(-(1 << 63), 1 << 64)
"""What orjson reads as whole numbers. It makes floats of others, silently."""


def parsed(body: bytes) -> dict[str, Any] | None:
    """A JSON object whose values can be written again as they are; None for anything else."""
    try:
        value = orjson.loads(body)
        if _LONG_NUMBER.search(body):
            json.loads(body, parse_int=_whole)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _whole(digits: str) -> int:
    number = int(digits)
    if number not in _WHOLE:
        raise ValueError(f"{digits} has more than 64 bits")
    return number


def parsed_reply(reply: bytes) -> dict[str, Any]:
    """A JSON object. Raises WrongReply for anything else."""
    value = parsed(reply)
    if value is None:
        raise WrongReply("its body is not a JSON object, or has whole numbers of more than 64 bits")
    return value


def same_for_all(whole: Mapping[str, Any]) -> dict[str, Any]:
    """What a reply says besides its results. Raises WrongReply if that may be something about each item: then it is unknown
    whose it is."""
    if wrong := next((name for name, value in whole.items() if not _is_plain(value)), None):
        raise WrongReply(f"its field {wrong!r} may be about single items")
    return dict(whole)


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return not any(isinstance(each, dict | list) for each in value.values())
    return not isinstance(value, list) or not value


def canonical(value: Any) -> bytes | None:
    """JSON that is equal for equal contents; None for what is nested too deeply to be written."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return None


def bare(items: list[Any]) -> bytes:
    """The JSON of a list without the brackets around it."""
    return orjson.dumps(items)[1:-1]


def pieces(items: bytes, most: int, each: int = 1) -> list[bytes]:
    """What `bare` has written, in pieces of `most` items. each: elements of the list that make up an item."""
    elements = orjson.loads(b"[" + items + b"]")
    return [bare(elements[start : start + most * each]) for start in range(0, len(elements), most * each)]


def cut_list(asked: Asked, most: int) -> list[Asked]:
    """`Endpoint.cut` of a request with one list."""
    return [
        Asked(asked.shared, (items,), min(most, asked.count - number * most))
        for number, items in enumerate(pieces(asked.items[0], most))
    ]


def joined(parts: Sequence[bytes]) -> orjson.Fragment:
    """One list of all the items of such texts."""
    return orjson.Fragment(b"[" + b",".join(parts) + b"]")


def slices(asked: Sequence[Asked]) -> list[slice]:
    """Where each caller's items are among all of them."""
    found, start = [], 0
    for each in asked:
        found.append(slice(start, start + each.count))
        start += each.count
    return found


_TYPES: Final = {
    400: "BadRequestError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
    429: "TooManyRequestsError",
    502: "BadGatewayError",
    503: "ServiceUnavailableError",
    504: "GatewayTimeoutError",
}


def openai_error(status: int, message: str) -> bytes:
    """As OpenAI's API and vLLM write it."""
    error = {"message": message, "type": _TYPES.get(status, "InternalServerError"), "param": None, "code": status}
    return orjson.dumps({"error": error})


def kserve_error(_status: int, message: str) -> bytes:
    """As KServe's V1 protocol and the Open Inference Protocol have it."""
    return orjson.dumps({"error": message})
