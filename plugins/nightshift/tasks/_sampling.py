"""What the kinds that generate text have in common: sampling, a seed for each row, and reading one choice of a reply.

A row's seed is a hash of the job's seed, the row's key and the number of its invalid answers so far. So a resumed run, and a
fresh one, give the same answers, no two rows share a seed unless they share a key, and after an invalid answer the row is
sampled with another seed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

import orjson
from pydantic import AfterValidator, Field

from nightshift.fields import section
from nightshift.fields.mistakes import Finding, mistake
from nightshift.tasks import _typed
from nightshift.tasks._request import TaskRequest
from nightshift.tasks.base import Answer, Answers, Discarded, InvalidAnswer, InvalidReply, NotDone, Reason, usage

if TYPE_CHECKING:
    import pyarrow as pa

    from nightshift.tasks.base import Job, RowName

Truncated = Literal["keep", "dead_letter"]
Reasoning = Literal["keep", "drop"]

STOPS_MAX: Final = 4
BYTES_PER_TOKEN: Final = 8
"""Of an answer's text, for planning: tokens of 4 characters are usual, some are longer."""
SAMPLING: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_tokens",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)


def _stops(value: tuple[str, ...]) -> tuple[str, ...]:
    if len(value) > STOPS_MAX:
        raise mistake(f"There are {len(value)} stop strings", f"Write at most {STOPS_MAX}, vLLM's own limit")
    if "" in value:
        raise mistake("A stop string is empty", "Write some text, or leave it out")
    return value


class SamplingRequest(TaskRequest):
    """Sampling parameters and the form of the answer. What you leave out is not sent: the model's own defaults apply."""

    SIZED_BY: ClassVar = "max_tokens"

    temperature: float | None = Field(
        default=None,
        ge=0,
        le=2,
        allow_inf_nan=False,
        description="Randomness; 0 always takes the likeliest token.",
        examples=[0],
    )
    top_p: float | None = Field(
        default=None,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="Sample from the likeliest tokens with this total probability.",
        examples=[0.9],
    )
    top_k: int | None = Field(
        default=None, ge=0, le=1_000_000, description="Sample from this many of the likeliest tokens; 0 for all.", examples=[40]
    )
    min_p: float | None = Field(
        default=None,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="Minimum probability of a token, as a share of the likeliest token's.",
        examples=[0.05],
    )
    max_tokens: int = Field(default=256, ge=1, le=10_000_000, description="Most tokens in an answer.", examples=[64])
    stop: Annotated[tuple[str, ...], AfterValidator(_stops)] = Field(
        default=(),
        description="Up to four strings that end the answer; they are not part of it.",
        examples=[["###"]],
        strict=False,
        json_schema_extra={"maxItems": 4, "items": {"type": "string", "minLength": 1}},
    )
    presence_penalty: float | None = Field(
        default=None, ge=-2, le=2, allow_inf_nan=False, description="Penalty for tokens that have occurred.", examples=[0.5]
    )
    frequency_penalty: float | None = Field(
        default=None,
        ge=-2,
        le=2,
        allow_inf_nan=False,
        description="Penalty for tokens by how often they have occurred.",
        examples=[0.5],
    )
    repetition_penalty: float | None = Field(
        default=None, gt=0, le=100, allow_inf_nan=False, description="Penalty for repetition; 1 for none.", examples=[1.1]
    )
    seed: int | None = Field(
        default=0,
        ge=0,
        le=2**63 - 1,
        description="Each row's seed is made from it. null: no seed is sent, so a resumed run gives different answers.",
        examples=[0],
    )
    json_schema: section.SchemaText | None = Field(
        default=None,
        description="JSON schema of the answer, which makes it a typed column; without it the answer is text.",
        examples=[{"type": "object", "properties": {"topic": {"type": "string"}}, "required": ["topic"]}],
    )
    truncated: Truncated = Field(
        default="keep",
        description="What to do with a text that is cut at max_tokens: keep and count it, or make the row a dead letter.",
        examples=["dead_letter"],
    )

    @property
    def seeded(self) -> bool:
        return self.seed is not None

    @classmethod
    def answer_bytes(cls, values: Mapping[str, Any]) -> int:
        tokens = values.get("max_tokens")
        return BYTES_PER_TOKEN * (tokens if isinstance(tokens, int) and tokens > 0 else cls.model_fields["max_tokens"].default)

    @classmethod
    def findings(cls, values: Mapping[str, Any]) -> list[Finding]:
        schema = values.get("json_schema")
        kept = Finding(("truncated",), "A typed answer that is cut is never kept: it is drawn again", "Leave it out")
        found = [kept] if schema is not None and values.get("truncated") == "keep" else []
        try:
            schema = json.loads(schema) if isinstance(schema, str) else schema
            json.dumps(schema, allow_nan=False)
        except (ValueError, TypeError):
            return found  # the field's own type reports it
        problems = _typed.compile_schema(schema)[1] if isinstance(schema, dict) else []
        return found + [Finding(("json_schema", *path), problem, remedy) for path, problem, remedy in problems]


class MessageRequest(SamplingRequest):
    """Of the kinds whose reply is a message: it may have the model's reasoning beside the text."""

    reasoning: Reasoning = Field(
        default="drop",
        description="What to do with the reasoning that the engine's reasoning parser takes out of an answer: drop it, or keep "
        "it in the column 'reasoning', beside the prediction.",
        examples=["keep"],
    )

    @property
    def keeps_reasoning(self) -> bool:
        return self.reasoning == "keep"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A payload. name: the row's, for its seed. content: what the kind sends, a text or messages."""

    name: RowName
    content: Any


class Sampling:
    """What the task kinds that generate text have in common: a job's sampling parameters, bound once."""

    server_args: tuple[str, ...] = ("--runner=generate",)
    rows_per_request = 1

    def __init__(self, job: Job, request: SamplingRequest) -> None:
        values = {name: getattr(request, name) for name in SAMPLING}
        self._options: dict[str, Any] = {"model": job.model.name, "n": 1}
        self._options |= {name: value for name, value in values.items() if value is not None and value != ()}
        self._seed = request.seed
        self._keeps_truncated = request.truncated == "keep"
        self._keeps_reasoning = request.keeps_reasoning
        self._typed: _typed.SchemaNode | None = None
        if request.json_schema is not None:
            self._typed = _typed.compile_checked(request.json_schema)
            schema = {"name": "answer", "schema": orjson.Fragment(request.json_schema), "strict": True}
            self._options["response_format"] = orjson.Fragment(orjson.dumps({"type": "json_schema", "json_schema": schema}))

    @property
    def prediction_type(self) -> pa.DataType:
        import pyarrow as pa

        return self._typed.arrow() if self._typed else pa.string()

    def body(self, prompt: Prompt, retry: int, fields: Mapping[str, Any]) -> bytes:
        body = {**self._options, **fields}
        if self._seed is not None:
            body["seed"] = row_seed(self._seed, prompt.name, retry)
        return orjson.dumps(body)

    def read(self, choice: Mapping[str, Any], text: Any, reply: Mapping[str, Any], reasoning: str | None = None) -> Answers:
        """The one answer of a reply. text: None if there is none. reasoning: what was written before. Raises InvalidReply."""
        reason = choice.get("finish_reason")
        if text is None and reason not in ("stop", "length"):
            raise InvalidAnswer(f"the model wrote no text (finish_reason {reason!r})")
        text = "" if text is None else text
        if not isinstance(text, str):
            raise InvalidReply(f"the reply has no text (finish_reason {reason!r})")
        cut = self._cut(text, reasoning) if reason == "length" else None
        if cut and self._typed is not None:
            raise InvalidAnswer(cut)
        if cut and not self._keeps_truncated:
            return Answers([Discarded(Reason.TRUNCATED, cut)], *usage(reply))
        kept = _typed.storable(reasoning) if reasoning is not None and self._keeps_reasoning else None
        return Answers([Answer(self._value(text, reasoning), cut is not None, kept)], *usage(reply))

    def _cut(self, text: str, reasoning: str | None) -> str:
        message = f"the answer was cut after {self._options['max_tokens']} tokens (max_tokens)"
        if text.strip():
            return message
        if reasoning is None:
            return f"{message}, and no text is left: a model that reasons needs more of them"
        return f"{message}, all of them reasoning: raise request.max_tokens, or have the model reason less"

    def _value(self, text: str, reasoning: str | None) -> Any:
        if self._typed is None:
            return _typed.storable(text)
        if not text.strip() and reasoning is not None:
            raise InvalidAnswer("the answer is empty: the model ended after its reasoning")
        return self._typed.parse(text)


def the_choice(reply: Any) -> Mapping[str, Any]:
    """The one choice of a reply. Raises NotDone if it was aborted, and InvalidReply for a reply without exactly one."""
    choices = reply.get("choices") if isinstance(reply, dict) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise InvalidReply("the reply does not have exactly one choice")
    choice: Mapping[str, Any] = choices[0]
    if choice.get("finish_reason") == "abort":
        raise NotDone("the engine aborted the request")
    if choice.get("finish_reason") == "error":
        raise InvalidReply("the engine failed while it answered")
    if choice.get("finish_reason") is None:
        raise InvalidReply("the engine does not say why the answer ended, so it may be half of one")
    return choice


def row_seed(seed: int, name: RowName, retry: int) -> int:
    """63 bits, the non-negative half of what vLLM accepts; -1 would mean no seed."""
    digest = hashlib.blake2b(f"{seed}:{name}:{retry}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
