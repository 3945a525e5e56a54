"""The endpoints of OpenAI's API, and vLLM's own, that take a list of inputs and answer with a list of results. Pure.

Written from vLLM's request models (its entry points for completions and pooling). Parameters that this module does not know are
merged like others: only with requests that have the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from nightshift.stream.batcher.endpoint import (
    Asked,
    WrongReply,
    bare,
    canonical,
    cut_list,
    joined,
    openai_error,
    parsed,
    parsed_reply,
    same_for_all,
    slices,
)

Neutral = Mapping[str, tuple[Any, ...]]
"""Of a parameter, the values with which requests may be merged. With another value, a request goes alone."""

_POOLING: Final[Neutral] = {
    "encoding_format": ("float", "base64"),
    "messages": (),
    "request_id": (),
    "stream": (False, None),
    "task": ("embed", "classify", "token_embed", "token_classify", None),
}
_COMPLETION: Final[Neutral] = {
    "best_of": (1, None),
    "ec_transfer_params": (None,),
    "echo": (False, None),
    "kv_transfer_params": (None,),
    "n": (1, None),
    "prompt_embeds": (None,),
    "request_id": (),
    "stream": (False, None),
    "stream_options": (None,),
    "suffix": (None,),
    "use_beam_search": (False, None),
}
"""vLLM answers with the transfer parameters of the first prompt only, and gives all beams of a request one name."""
_SCORE_PAIRS: Final = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))


@dataclass(frozen=True)
class ListEndpoint:
    """Takes the list `field` and answers with the list `results`, whose elements are numbered by ``index``.

    estimate: whether callers of a merged request get an estimate of their tokens as ``usage``; otherwise they get none.
    """

    name: str
    field: str
    results: str
    neutral: Neutral
    estimate: bool = False

    error = staticmethod(openai_error)

    def read(self, body: bytes) -> Asked | None:
        rest = parsed(body)
        if rest is None or not mergeable(rest, self.neutral):
            return None
        return asked_of(rest, self.field, inputs_of(rest.pop(self.field, None)))

    def merge(self, asked: Sequence[Asked]) -> bytes:
        field, _, rest = orjson.loads(asked[0].shared)
        return orjson.dumps({**rest, field: joined([each.items[0] for each in asked])})

    def split(self, reply: bytes, asked: Sequence[Asked]) -> list[bytes]:
        whole = parsed_reply(reply)
        results = in_order(whole.pop(self.results, None), self.results, sum(each.count for each in asked))
        parts = [results[place] for place in slices(asked)]
        usages = None
        usage = whole.pop("usage", None)
        whole = same_for_all(whole)
        if self.estimate:
            usages = estimated(usage, [len(each.items[0]) for each in asked], [len(orjson.dumps(part)) for part in parts])
        answers = []
        for number, part in enumerate(parts):
            own = {**whole, self.results: _numbered(part)}
            if isinstance(whole.get("id"), str):
                own["id"] = f"{whole['id']}-{number}"
            if usages is not None:
                own["usage"] = usages[number]
            answers.append(orjson.dumps(own))
        return answers

    cut = staticmethod(cut_list)

    def join(self, replies: Sequence[bytes], asked: Sequence[Asked]) -> bytes:
        wholes = [parsed_reply(reply) for reply in replies]
        usage = summed([whole.pop("usage", None) for whole in wholes])
        results: list[dict[str, Any]] = []
        for whole, piece in zip(wholes, asked, strict=True):
            results += in_order(whole.pop(self.results, None), self.results, piece.count)
            same_for_all(whole)
        own = {**wholes[0], self.results: _numbered(results)}
        return orjson.dumps(own if usage is None else {**own, "usage": usage})


class Score(ListEndpoint):
    """One text compared with a list of others: requests with the same first text are merged."""

    def read(self, body: bytes) -> Asked | None:
        rest = parsed(body)
        if rest is None or not mergeable(rest, self.neutral):
            return None
        pairs = [pair for pair in _SCORE_PAIRS if pair[0] in rest and pair[1] in rest]
        if len(pairs) != 1:
            return None
        one, many = pairs[0]
        if inputs_of(rest[one], tokens=False) is None or (isinstance(rest[one], list) and len(rest[one]) > 1):
            # Of several first texts, each is compared with the one at the same place.
            return None
        return asked_of(rest, many, inputs_of(rest.pop(many), tokens=False))


def list_endpoints(*, estimate: bool) -> dict[str, ListEndpoint]:
    """By path."""
    embeddings = ListEndpoint("embeddings", "input", "data", _POOLING, estimate)
    completions = ListEndpoint("completions", "prompt", "choices", _COMPLETION, estimate)
    classify = ListEndpoint("classify", "input", "data", _POOLING, estimate)
    pooling = ListEndpoint("pooling", "input", "data", _POOLING, estimate)
    score = Score("score", "text_2", "data", _POOLING, estimate)
    return {
        "/v1/embeddings": embeddings,
        "/v1/completions": completions,
        "/classify": classify,
        "/pooling": pooling,
        "/score": score,
        "/v1/score": score,
    }


def mergeable(request: Mapping[str, Any], neutral: Neutral) -> bool:
    """Whether no parameter has a value with which the request has to go alone."""
    return all(request[name] in values for name, values in neutral.items() if name in request)


def inputs_of(value: Any, *, tokens: bool = True) -> tuple[str, list[Any]] | None:
    """The kind of the inputs and the list of them: of one text, one list of tokens, or a list of either. None for others.

    A list of both kinds is not valid, so texts and tokens never meet in one request.
    """
    if isinstance(value, str):
        return "text", [value]
    if not isinstance(value, list) or not value:
        return None
    if all(isinstance(each, str) for each in value):
        return "text", value
    if tokens and _are_tokens(value):
        return "tokens", [value]
    if tokens and all(isinstance(each, list) and each and _are_tokens(each) for each in value):
        return "tokens", value
    return None


def asked_of(rest: dict[str, Any], field: str, inputs: tuple[str, list[Any]] | None) -> Asked | None:
    """rest: the request without its inputs."""
    if inputs is None:
        return None
    kind, items = inputs
    shared = canonical([field, kind, rest])
    return None if shared is None else Asked(shared, (bare(items),), len(items))


def in_order(results: Any, name: str, count: int) -> list[dict[str, Any]]:
    """The results of a reply, by their ``index``; as they stand if none has one. Raises WrongReply unless each item has one."""
    if not isinstance(results, list) or not all(isinstance(each, dict) for each in results):
        raise WrongReply(f"it has no list of objects as {name!r}")
    if len(results) != count:
        raise WrongReply(f"it has {len(results)} results for {count} inputs")
    indexes = [each.get("index") for each in results]
    if all(index is None for index in indexes):
        return results
    if not all(type(index) is int for index in indexes) or sorted(indexes) != list(range(count)):
        raise WrongReply(f"its results are not numbered from 0 to {count - 1}")
    return sorted(results, key=lambda each: int(each["index"]))


def _numbered(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for index, result in enumerate(results):
        result["index"] = index
    return results


def _are_tokens(value: list[Any]) -> bool:
    # Not isinstance: true and false are not tokens, though Python counts them as numbers.
    return all(type(each) is int for each in value)


def estimated(usage: Any, inputs: Sequence[int], outputs: Sequence[int]) -> list[dict[str, int]] | None:
    """A share of ``usage`` for each caller; None if the reply has none that can be read.

    inputs, outputs: bytes of what each sent and of what it gets. Tokens are shared out in proportion to them, so the shares add
    up to what the server has reported, but a single share is an estimate.
    """
    if not isinstance(usage, dict):
        return None
    totals = {name: usage.get(name) for name in ("prompt_tokens", "completion_tokens")}
    prompt, completion = totals["prompt_tokens"], totals["completion_tokens"]
    if type(prompt) is not int or prompt < 0:
        return None
    if type(completion) is not int or completion < 0:
        return [{"prompt_tokens": share, "total_tokens": share} for share in shares(prompt, inputs)]
    return [
        {"prompt_tokens": one, "completion_tokens": other, "total_tokens": one + other}
        for one, other in zip(shares(prompt, inputs), shares(completion, outputs), strict=True)
    ]


def summed(usages: Sequence[Any]) -> dict[str, int] | None:
    """The tokens of one caller's requests together; None unless all report them, and the same kinds of them."""
    if not all(isinstance(usage, dict) for usage in usages):
        return None
    counts = [{name: count for name, count in usage.items() if type(count) is int} for usage in usages]
    if any(each.keys() != counts[0].keys() for each in counts):
        return None
    return {name: sum(each[name] for each in counts) for name in counts[0]} or None


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """Whole numbers in proportion to the weights that add up to `total`: those with the largest remainders are rounded up."""
    whole = sum(weights)
    if not whole:
        weights, whole = [1] * len(weights), len(weights)
    found = [total * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda place: (-(total * weights[place] % whole), place))
    for place in by_remainder[: total - sum(found)]:
        found[place] += 1
    return found
