"""5,000 generated replies through every task kind: what is published is what a model wrote to its end.

The truth of a reply comes from how it was made: a model that was played, with a reasoning that it ends or not, a text, and what
ended it. The replies are then written as engines write them. Nothing here reads a reply.
"""

from __future__ import annotations

import base64
import json
import random
import struct
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import pytest

from nightshift.tasks.base import Answer, InvalidReply, NotDone, load_kind
from tests.builders import a_spec

pytestmark = pytest.mark.unit

REPLIES: Final = 5_000
TEXT_KINDS: Final = ("chat", "image", "completion")
POOLED_KINDS: Final = ("embedding", "classify", "score", "rerank")
SCHEMA: Final = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
QUESTION: Final = {
    "chat": {"user": "{{ text }}"},
    "image": {"image": "photo", "user": "{{ text }}"},
    "completion": {"prompt": "{{ text }}"},
    "embedding": {"input": "{{ text }}"},
    "classify": {"input": "{{ text }}"},
    "score": {"text_1": "{{ text }}", "text_2": "{{ text }}"},
    "rerank": {"query": "{{ text }}", "documents": "texts"},
}
ENDS: Final = (
    "eos",
    "eos",
    "stop",
    "stop",
    "length",
    "length",
    "repetition",
    "abort",
    "error",
    "tool_calls",
    "content_filter",
    "x",
)


@dataclass(frozen=True)
class Played:
    """What a model did. thought: its reasoning, None if it has none. over: whether it came to its end. text: what followed.
    end: what ended it all."""

    thought: str | None
    over: bool
    text: str
    end: str

    @property
    def whole(self) -> bool:
        """By the rule that users are promised: a text that its model, or a stop string within it, has ended; behind a reasoning
        it is more than white space."""
        if self.end not in ("eos", "stop"):
            return False
        return self.thought is None or (self.over and self.text.strip() != "")


def played(chance: random.Random, *, typed: bool, reasons: bool) -> Played:
    thought = chance.choice(["so", "hm\n\n", "a\ud83d", "\n"]) if reasons and chance.random() < 0.6 else None
    over = thought is None or chance.random() < 0.6
    value = (
        json.dumps({"a": chance.choice(["", "x", "\n"])}) if typed else chance.choice(["4", "a b", "\u00e9\n", " x", "null"])
    )
    text = chance.choice([value, value, value, "", " \n"]) if over else ""
    return Played(thought, over, text, chance.choice(ENDS))


def choice_of(chance: random.Random, model: Played, *, message: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The choice, and the usage: as vLLM of several releases, and servers like it, write them."""
    finish = {"eos": "stop"}.get(model.end, model.end)
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "logprobs": None}
    if chance.random() < 0.7:
        choice["stop_reason"] = chance.choice(["e", "\n"]) if model.end == "stop" else None
    # Where nothing of a text was written: as null or as "", where a reasoning parser took everything; else as it is.
    text = model.text if model.text or model.thought is None else chance.choice([None, ""])
    usage: dict[str, Any] = {"prompt_tokens": 5, "completion_tokens": 7}
    if not message:
        return {**choice, "text": text}, usage
    said: dict[str, Any] = {"role": "assistant", "content": text}
    hidden = model.thought is not None and chance.random() < 0.2
    name = chance.choice(["reasoning", "reasoning_content"])
    if model.thought is not None and not hidden:
        said[name] = model.thought
    elif chance.random() < 0.5:
        said[name] = chance.choice([None, ""])
    if hidden or chance.random() < 0.3:
        usage["completion_tokens_details"] = {"reasoning_tokens": 0 if model.thought is None else 3}
    return {**choice, "message": said}, usage


def published(kind: Any, reply: Any, payloads: list[Any]) -> list[Any]:
    """The rows of a reply; [] for one that is sent again or ends as a dead letter."""
    try:
        return list(kind.answers(reply, payloads).rows)
    except (InvalidReply, NotDone):
        return []


def of_a_text(chance: random.Random, seen: Counter[str]) -> None:
    task = chance.choice(TEXT_KINDS)
    typed, keeps, stop = chance.random() < 0.3, chance.random() < 0.5, chance.random() < 0.5
    request = {**QUESTION[task], **({"json_schema": SCHEMA} if typed else {}), **({"stop": ["e", "\n"]} if stop else {})}
    if not typed:
        request["truncated"] = "keep" if keeps else "dead_letter"
    message = task != "completion"
    kind = load_kind(a_spec(task=task, request=request))
    model = played(chance, typed=typed, reasons=message)
    choice, usage = choice_of(chance, model, message=message)
    case = (task, request, model, choice, usage)

    rows = published(kind, {"choices": [choice], "usage": usage}, [None])

    answers = [row for row in rows if isinstance(row, Answer)]
    whole = [row for row in answers if not row.truncated]
    if not model.whole:
        assert not whole, case
        kept = keeps and not typed and model.end in ("eos", "stop", "length", "repetition")
        assert len(answers) == kept, case
        seen["cut"] += bool(answers)
        seen["not published"] += not answers
        return
    if typed and not model.text.strip():  # Without a reasoning: whole, but not JSON.
        assert not answers, case
        return
    expected = json.loads(model.text) if typed else model.text
    assert [row.prediction for row in whole] == [expected], case
    seen["empty" if not model.text.strip() else "whole"] += 1


SPOILED: Final[dict[str, Any]] = {
    "embedding": [[float("nan"), 1.0], [1.0, float("inf")], [1.0], [], None, 7, "%%%", {}],
    "classify": [[float("nan"), 0.1], [float("-inf")], [], None, "x", ["0.1"], [None]],
    "score": [float("nan"), float("inf"), None, "0.1", True, [0.5], 1e300],
}


def item_of(task: str, index: int, value: Any) -> dict[str, Any]:
    if task == "embedding":
        vector = value if not isinstance(value, list) else base64.b64encode(struct.pack(f"<{len(value)}f", *value)).decode()
        return {"index": index, "embedding": vector}
    return {"index": index, **({"label": "a", "probs": value} if task == "classify" else {"score": value})}


def of_a_list(chance: random.Random, seen: Counter[str]) -> None:
    task = chance.choice(POOLED_KINDS)
    kind = load_kind(a_spec(task=task, request=QUESTION[task]))
    count = chance.randint(1, 8)
    good = {"embedding": [0.5, 0.25], "classify": [0.75, 0.25], "score": 0.5, "rerank": 0.5}[task]
    bad = SPOILED["score" if task == "rerank" else task]
    # Most are good, as in a night: a vector's width is that of most.
    spoiled = {index: chance.choice(bad) for index in range(count) if chance.random() < 0.15}
    if task == "embedding" and 2 * len(spoiled) >= count:
        spoiled = {index: [float("nan"), 1.0] for index in spoiled}
    values = [spoiled.get(index, good) for index in range(count)]
    items = [item_of(task, index, value) for index, value in enumerate(values)]
    chance.shuffle(items)
    case = (task, values)
    if task == "rerank":
        items = [{"index": item["index"], "relevance_score": item["score"]} for item in items]
        rows = published(kind, {"results": items}, [("q", ["d"] * count)])
        assert [row.prediction for row in rows] == ([] if spoiled else [[0.5] * count]), case
        return
    if chance.random() < 0.1:
        assert published(kind, {"data": items[:-1]}, [None] * count) == [], case
        return

    rows = published(kind, {"data": items}, [None] * count)

    if len(spoiled) == count:
        assert rows == [], case
        return
    assert [index for index, row in enumerate(rows) if not isinstance(row, Answer)] == sorted(spoiled), case
    for index, row in enumerate(rows):
        if index not in spoiled:
            expected = {"label": "a", "score": 0.75, "scores": good} if task == "classify" else good
            assert (list(row.prediction) if task == "embedding" else row.prediction) == expected, case
    seen["with a spoiled item" if spoiled else "without"] += 1


def test_what_is_published_was_written_to_its_end() -> None:
    chance, seen = random.Random(56), Counter[str]()

    for number in range(REPLIES):
        (of_a_list if number % 4 == 0 else of_a_text)(chance, seen)

    assert all(seen[name] > 100 for name in ("whole", "empty", "cut", "not published", "with a spoiled item", "without")), seen
