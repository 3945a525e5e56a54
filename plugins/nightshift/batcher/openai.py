"""The endpoints of OpenAI's API, and vLLM's own, that take a list of inputs and answer with a list of results. Pure.

Written from vLLM's request models (its entry points for completions and pooling). Parameters that this module does not know are
merged like others: only with requests that have the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from nightshift.batcher.endpoint import ListEndpoint, openai_error

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
class Inputs(ListEndpoint):
    """Takes a text, a list of tokens, or a list of either. neutral: parameters with which requests may be merged."""

    neutral: Neutral = field(kw_only=True)

    def inputs(self, request: dict[str, Any]) -> tuple[str, str, list[Any]] | None:
        if not all(request[name] in values for name, values in self.neutral.items() if name in request):
            return None
        name = self.name_in(request)
        value = request.pop(name, None)
        if isinstance(value, str) or _are_tokens(value):
            value = [value]
        if not isinstance(value, list) or not value:
            return None
        if all(isinstance(each, str) for each in value):
            return name, "text", value
        # A list of both kinds is not valid, so texts and tokens never meet in one request.
        return (name, "tokens", value) if all(map(_are_tokens, value)) else None

    def name_in(self, _: dict[str, Any]) -> str:
        """Of the list."""
        return self.field


class Score(Inputs):
    """One text compared with a list of others: requests with the same first text are merged."""

    def inputs(self, request: dict[str, Any]) -> tuple[str, str, list[Any]] | None:
        found = super().inputs(request)
        return found if found is not None and found[1] == "text" else None

    def name_in(self, request: dict[str, Any]) -> str:
        pairs = [pair for pair in _SCORE_PAIRS if pair[0] in request and pair[1] in request]
        first = request[pairs[0][0]] if len(pairs) == 1 else None
        # Of several first texts, each is compared with the one at the same place.
        one = isinstance(first, str) or (isinstance(first, list) and len(first) == 1 and isinstance(first[0], str))
        return pairs[0][1] if one else ""


def list_endpoints(*, estimate: bool) -> dict[str, ListEndpoint]:
    """By path."""
    embeddings = Inputs("embeddings", "data", openai_error, estimate, "input", neutral=_POOLING)
    completions = Inputs("completions", "choices", openai_error, estimate, "prompt", neutral=_COMPLETION)
    score = Score("score", "data", openai_error, estimate, neutral=_POOLING)
    return {
        "/v1/embeddings": embeddings,
        "/v1/completions": completions,
        "/classify": replace(embeddings, name="classify"),
        "/pooling": replace(embeddings, name="pooling"),
        "/score": score,
        "/v1/score": score,
    }


def _are_tokens(value: Any) -> bool:
    # Not isinstance: true and false are not tokens, though Python counts them as numbers.
    return isinstance(value, list) and bool(value) and all(type(each) is int for each in value)
