"""What the batcher must know of a kind of request to merge several into one, and to give each caller its own answer. Pure."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from nightshift.batcher.usage import estimated, summed

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


@dataclass(frozen=True)
class Endpoint(ABC):
    """A kind of request that takes a list. name: as in metrics and in ``--endpoints``. results: what a reply is divided by.

    error: in the form that its callers know. estimate: whether callers of a merged request get an estimate of their tokens as
    ``usage``; otherwise they get none.
    """

    name: str
    results: str
    error: ErrorBody
    estimate: bool = False

    @abstractmethod
    def read(self, body: bytes) -> Asked | None:
        """What a body asks for; None if it has to go alone, because it cannot be merged or is not valid at all."""

    @abstractmethod
    def merge(self, asked: Sequence[Asked]) -> bytes:
        """The body of one request for all of these, whose `Asked.shared` is equal."""

    @abstractmethod
    def results_of(self, value: Any, count: int) -> list[Any]:
        """The results of a reply for so many items. Raises WrongReply."""

    @abstractmethod
    def part(self, results: list[Any], place: slice) -> list[Any]:
        """Those of some items, in a reply of their own."""

    @abstractmethod
    def together(self, parts: Sequence[list[Any]]) -> list[Any]:
        """The results of several replies in one. Raises WrongReply."""

    def split(self, reply: bytes, asked: Sequence[Asked]) -> list[bytes]:
        """Each caller's part of the reply to a merged request, in the order of `asked`. Raises WrongReply."""
        whole, usage, results = self._parsed(reply, sum(each.count for each in asked))
        parts, start = [], 0
        for each in asked:
            parts.append(self.part(results, slice(start, start + each.count)))
            start += each.count
        usages = None
        if self.estimate:
            usages = estimated(
                usage, [sum(map(len, each.items)) for each in asked], [len(orjson.dumps(each)) for each in parts]
            )
        answers = []
        for number, (caller, part) in enumerate(zip(asked, parts, strict=True)):
            own = {**whole, self.results: part}
            if caller.own is not None:
                own["id"] = caller.own
            elif isinstance(whole.get("id"), str):
                own["id"] = f"{whole['id']}-{number}"
            if usages is not None:
                own["usage"] = usages[number]
            answers.append(orjson.dumps(own))
        return answers

    def cut(self, asked: Asked, most: int) -> list[Asked]:
        """One caller's request as several of up to `most` items, in order."""
        lists = [orjson.loads(b"[" + items + b"]") for items in asked.items]
        pieces = []
        for start in range(0, asked.count, most):
            count = min(most, asked.count - start)
            widths = [len(each) // asked.count for each in lists]  # Elements that make up an item.
            items = [bare(each[start * width : (start + count) * width]) for each, width in zip(lists, widths, strict=True)]
            pieces.append(replace(asked, items=tuple(items), count=count))
        return pieces

    def join(self, replies: Sequence[bytes], asked: Sequence[Asked]) -> bytes:
        """The reply to what was `cut`, from the replies to its pieces. asked: the pieces. Raises WrongReply."""
        found = [self._parsed(reply, piece.count) for reply, piece in zip(replies, asked, strict=True)]
        own = {**found[0][0], self.results: self.together([results for _, _, results in found])}
        if asked[0].own is not None:
            own["id"] = asked[0].own
        if (usage := summed([usage for _, usage, _ in found])) is not None:
            own["usage"] = usage
        return orjson.dumps(own)

    def _parsed(self, reply: bytes, count: int) -> tuple[dict[str, Any], Any, list[Any]]:
        """What a reply says of all its items; its usage; its results. Raises WrongReply."""
        whole = parsed(reply)
        if whole is None:
            raise WrongReply("its body is not a JSON object, or has whole numbers of more than 64 bits")
        results = self.results_of(whole.pop(self.results, None), count)
        usage = whole.pop("usage", None)
        check_plain(whole)
        return whole, usage, results


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


def check_plain(whole: Mapping[str, Any]) -> None:
    """Raises WrongReply if what is beside a reply's results may be about each item: then it is unknown whose it is."""
    for name, value in whole.items():
        lists = (dict, list)
        if (
            any(isinstance(each, lists) for each in value.values())
            if isinstance(value, dict)
            else isinstance(value, list) and value
        ):
            raise WrongReply(f"its field {name!r} may be about single items")


def asked_of(shared: list[Any], lists: Sequence[list[Any]], count: int, own: str | None = None) -> Asked | None:
    """None for what is nested too deeply to be written, though it could be read."""
    try:
        return Asked(orjson.dumps(shared, option=orjson.OPT_SORT_KEYS), tuple(map(bare, lists)), count, own)
    except TypeError:
        return None


def bare(items: list[Any]) -> bytes:
    """The JSON of a list without the brackets around it."""
    return orjson.dumps(items)[1:-1]


def joined(parts: Sequence[bytes]) -> orjson.Fragment:
    """One list of all the items of such texts."""
    return orjson.Fragment(b"[" + b",".join(parts) + b"]")


@dataclass(frozen=True)
class ListEndpoint(Endpoint):
    """Takes the list `field` and answers with the list `results`, each of which is about one item. numbered: by ``index``."""

    field: str = ""
    numbered: bool = True

    @abstractmethod
    def inputs(self, request: dict[str, Any]) -> tuple[str, str, list[Any]] | None:
        """Takes them out: the field's name, their kind and the list of them. None if the request has to go alone."""

    def read(self, body: bytes) -> Asked | None:
        rest = parsed(body)
        if rest is None or (found := self.inputs(rest)) is None:
            return None
        field, kind, items = found
        return asked_of([field, kind, rest], [items], len(items))

    def merge(self, asked: Sequence[Asked]) -> bytes:
        field, _, rest = orjson.loads(asked[0].shared)
        return orjson.dumps({**rest, field: joined([each.items[0] for each in asked])})

    def results_of(self, value: Any, count: int) -> list[Any]:
        """By their ``index``; as they stand if none has one."""
        if not isinstance(value, list) or (self.numbered and not all(isinstance(each, dict) for each in value)):
            raise WrongReply(f"it has no list of {'objects' if self.numbered else 'results'} as {self.results!r}")
        if len(value) != count:
            raise WrongReply(f"it has {len(value)} results for {count} inputs")
        indexes = [each.get("index") for each in value] if self.numbered else []
        if all(index is None for index in indexes):
            return value
        if not all(type(index) is int for index in indexes) or sorted(indexes) != list(range(count)):
            raise WrongReply(f"its results are not numbered from 0 to {count - 1}")
        return sorted(value, key=lambda each: int(each["index"]))

    def part(self, results: list[Any], place: slice) -> list[Any]:
        return self.together([results[place]])

    def together(self, parts: Sequence[list[Any]]) -> list[Any]:
        results = [each for part in parts for each in part]
        for index, each in enumerate(results if self.numbered else ()):
            each["index"] = index
        return results


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
