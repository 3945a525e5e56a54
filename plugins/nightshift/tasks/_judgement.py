"""Whether a reply holds the whole of what a model has to say: decided here alone, for every kind that generates text.

The engine says why it ended (``finish_reason``), but not whether anything was said by then: a stop string also ends a model
that is still reasoning, and what it has written so far is no part of its text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

STOP: Final = "stop"
ABORT: Final = "abort"
ERROR: Final = "error"
_CUT: Final = ("length", "repetition")
_REASONING: Final = ("reasoning", "reasoning_content")
"""Where engines put what a reasoning parser has taken out of the text; the second is an older name."""


class Verdict(StrEnum):
    """EMPTY: whole, without a letter. CUT: it ended before it was whole, perhaps before it began. REFUSED: something else was
    written instead of a text. UNPARSABLE: the reply is none, or the engine failed. ABORTED: as the engine says itself."""

    COMPLETE = "complete"
    EMPTY = "empty"
    CUT = "cut"
    REFUSED = "refused"
    UNPARSABLE = "unparsable"
    ABORTED = "aborted"


_UNANSWERED: Final = {
    ABORT: (Verdict.ABORTED, "the engine aborted the request"),
    ERROR: (Verdict.UNPARSABLE, "the engine failed while it answered"),
    None: (Verdict.UNPARSABLE, "the engine does not say why the answer ended, so it may be half of one"),
}


@dataclass(frozen=True, slots=True)
class Judged:
    """One reply's answer. text: "" if there is none. reasoning: if it holds any. why: in words, for what is no answer.

    reasoned: whether the model did, also if the reply only counts its tokens. ending: ``finish_reason``. stop_reason: the stop
    string or token that ended it, as the engine says.
    """

    verdict: Verdict
    text: str = ""
    reasoning: str | None = None
    reasoned: bool = False
    why: str = ""
    ending: Any = None
    stop_reason: Any = None


def choice_that_ended(reply: Any, reason: str) -> Mapping[str, Any] | None:
    """The first of a reply's choices that has this ``finish_reason``."""
    listed = reply.get("choices") if isinstance(reply, dict) else None
    dicts = (each for each in (listed if isinstance(listed, list) else ()) if isinstance(each, dict))
    return next((each for each in dicts if each.get("finish_reason") == reason), None)


def judge(reply: Any, *, message: bool) -> Judged:
    """The answer of a reply with one choice. message: whether its text is in a message, as of ``/v1/chat/completions``."""
    listed = reply.get("choices") if isinstance(reply, dict) else None
    if not isinstance(listed, list) or len(listed) != 1 or not isinstance(listed[0], dict):
        return Judged(Verdict.UNPARSABLE, why="the reply does not have exactly one choice")
    choice: Mapping[str, Any] = listed[0]
    end = choice.get("finish_reason")
    if end is None or end in (ABORT, ERROR):
        verdict, why = _UNANSWERED[end]
        return Judged(verdict, why=why, ending=end)
    part, name = (choice.get("message"), "content") if message else (choice, "text")
    if not isinstance(part, dict):
        return Judged(Verdict.UNPARSABLE, why="the reply has no message", ending=end)
    text, reasoning = part.get(name), _reasoning(part) if message else None
    reasoned = reasoning is not None or _reasoning_tokens(reply) > 0
    if (name not in part and not reasoned) or not isinstance(text, str | None):
        return Judged(Verdict.UNPARSABLE, why=f"the reply has no text (finish_reason {end!r})", ending=end)
    verdict, why = Verdict.COMPLETE, ""
    if end not in (STOP, *_CUT) or (message and (part.get("refusal") or part.get("tool_calls"))):
        verdict = Verdict.REFUSED
        why = f"the model wrote {'no text' if text is None else 'something else than a whole text'} (finish_reason {end!r})"
    elif end != STOP or text is None or (reasoned and not text.strip()):
        verdict = Verdict.CUT
    elif not text.strip():
        verdict = Verdict.EMPTY
    return Judged(verdict, text or "", reasoning, reasoned, why, end, choice.get("stop_reason"))


def _reasoning(message: Mapping[str, Any]) -> str | None:
    found = (message.get(name) for name in _REASONING)
    return next((text for text in found if isinstance(text, str) and text), None)


def _reasoning_tokens(reply: Mapping[str, Any]) -> int:
    """As vLLM counts them if it has a reasoning parser, also where the reply does not hold the reasoning."""
    usage = reply.get("usage")
    details = usage.get("completion_tokens_details") if isinstance(usage, dict) else None
    count = details.get("reasoning_tokens") if isinstance(details, dict) else None
    return count if type(count) is int else 0
