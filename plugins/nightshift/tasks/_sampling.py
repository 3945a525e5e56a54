"""What the kinds that generate text have in common: sampling, a seed for each row, and reading one choice of a reply.

A row's seed is a hash of the job's seed, the row's key and the number of its invalid answers so far. So a resumed run, and a
fresh one, give the same answers, no two rows share a seed unless they share a key, and after an invalid answer the row is
sampled with another seed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

import orjson
from pydantic import AfterValidator, Field

from nightshift.fields import section
from nightshift.fields.mistakes import Finding, mistake
from nightshift.tasks import _served, _typed
from nightshift.tasks._judgement import STOP, Judged, Verdict, judge
from nightshift.tasks._request import TaskRequest
from nightshift.tasks.base import Answer, Answers, Discarded, InvalidAnswer, InvalidReply, NotDone, Reason, usage

if TYPE_CHECKING:
    import pyarrow as pa

    from nightshift.tasks.base import Job, RowName

Truncated = Literal["keep", "dead_letter"]
Reasoning = Literal["keep", "drop"]

STOPS_MAX: Final = 4
NO_STOP: Final = "leave it out, or name a string that the reasoning cannot hold, because vLLM looks for it there, too"
WHITE_SPACE_LEAST: Final = 16
"""Characters at the end of a typed answer that was cut, from which on white space is what cut it."""
NO_WHITE_SPACE: Final = """structured-outputs-config: '{"backend": "xgrammar", "disable_any_whitespace": true}'"""
BYTES_PER_TOKEN: Final = 8
"""Of an answer's text, for planning: tokens of 4 characters are usual, some are longer."""


def _stops(value: tuple[str, ...]) -> tuple[str, ...]:
    if len(value) > STOPS_MAX:
        raise mistake(f"There are {len(value)} stop strings", f"Write at most {STOPS_MAX}, vLLM's own limit")
    if "" in value:
        raise mistake("A stop string is empty", "Write some text, or leave it out")
    return value


def _arguments(value: str) -> str:
    for name in sorted(json.loads(value).keys() & {"chat_template", "tokenize"}):
        raise mistake(f"vLLM refuses every request with the argument {name!r}", "Leave it out; a template goes in engine.args")
    return value


class SamplingRequest(TaskRequest):
    """Sampling parameters and the form of the answer. What you leave out is not sent: the model's own defaults apply."""

    SIZED_BY: ClassVar = "max_tokens"

    temperature: float | None = Field(
        default=None, ge=0, le=2, description="Randomness; 0 always takes the likeliest token.", examples=[0]
    )
    top_p: float | None = Field(
        default=None, gt=0, le=1, description="Sample from the likeliest tokens with this total probability.", examples=[0.9]
    )
    top_k: int | None = Field(
        default=None, ge=0, le=1_000_000, description="Sample from this many of the likeliest tokens; 0 for all.", examples=[40]
    )
    min_p: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Minimum probability of a token, as a share of the likeliest token's.",
        examples=[0.05],
    )
    max_tokens: int = Field(default=256, ge=1, le=10_000_000, description="Most tokens in an answer.", examples=[64])
    stop: Annotated[section.Listed[str], AfterValidator(_stops)] = Field(
        default=(),
        description="Up to four strings that end the answer; they are not part of it.",
        examples=[["###"]],
        json_schema_extra={"maxItems": 4, "items": {"type": "string", "minLength": 1}},
    )
    presence_penalty: float | None = Field(
        default=None, ge=-2, le=2, description="Penalty for tokens that have occurred.", examples=[0.5]
    )
    frequency_penalty: float | None = Field(
        default=None, ge=-2, le=2, description="Penalty for tokens by how often they have occurred.", examples=[0.5]
    )
    repetition_penalty: float | None = Field(
        default=None, gt=0, le=100, description="Penalty for repetition; 1 for none.", examples=[1.1]
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
        description="What to do with a text that is cut, at max_tokens or inside the reasoning: keep and count it, or make the "
        "row a dead letter.",
        examples=["dead_letter"],
    )

    @property
    def options(self) -> dict[str, Any]:
        """The fields of a request's body that are the same for every row."""
        own = SamplingRequest.model_fields.keys() - TaskRequest.model_fields.keys() - {"seed", "json_schema", "truncated"}
        values = {name: getattr(self, name) for name in SamplingRequest.model_fields if name in own}
        return {name: value for name, value in values.items() if value is not None and value != ()}

    @classmethod
    def answer_bytes(cls, values: Mapping[str, Any]) -> int:
        tokens = values.get("max_tokens")
        return BYTES_PER_TOKEN * (tokens if isinstance(tokens, int) and tokens > 0 else cls.model_fields["max_tokens"].default)

    @classmethod
    def findings(cls, values: Mapping[str, Any], backend: str) -> list[Finding]:
        schema = values.get("json_schema")
        kept = Finding(("truncated",), "A typed answer that is cut is never kept: it is drawn again", "Leave it out")
        found = [kept] if schema is not None and values.get("truncated") == "keep" else []
        try:
            schema = json.loads(schema) if isinstance(schema, str) else schema
            json.dumps(schema, allow_nan=False)
        except (ValueError, TypeError):
            return found  # the field's own type reports it
        problems = _typed.compile_schema(schema)[1] if isinstance(schema, dict) else []
        if isinstance(schema, dict) and not problems:
            problems = list(_served.unserved(schema, backend))
        return found + [Finding(("json_schema", *path), problem, remedy) for path, problem, remedy in problems]


class MessageRequest(SamplingRequest):
    """Of the kinds whose reply is a message: it may have the model's reasoning beside the text."""

    reasoning: Reasoning = Field(
        default="drop",
        description="What to do with the reasoning that the engine's reasoning parser takes out of an answer: drop it, or keep "
        "it in the column 'reasoning', beside the prediction.",
        examples=["keep"],
    )

    chat_template_kwargs: Annotated[section.ArgumentsText, AfterValidator(_arguments)] | None = Field(
        default=None,
        description="Arguments of the model's chat template, for example to switch its thinking off. It ignores a name that it "
        "does not use.",
        examples=[{"enable_thinking": False}],
    )

    @property
    def options(self) -> dict[str, Any]:
        given = self.chat_template_kwargs
        return super().options | ({} if given is None else {"chat_template_kwargs": orjson.Fragment(given)})


@dataclass(frozen=True, slots=True)
class Prompt:
    """A payload. name: the row's, for its seed. content: what the kind sends, a text or messages."""

    name: RowName
    content: Any


class Sampling:
    """What the task kinds that generate text have in common: a job's sampling parameters, bound once."""

    server_args: tuple[str, ...] = ("--runner=generate",)
    rows_per_request = 1
    message = True
    """Whether the text of a reply is in a message."""

    def __init__(self, job: Job, request: SamplingRequest) -> None:
        self._options: dict[str, Any] = {"model": job.model.name, "n": 1, **request.options}
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

    def answers(self, reply: Any, payloads: Sequence[Any]) -> Answers:
        said = judge(reply, message=self.message)
        if said.verdict is Verdict.ABORTED:
            raise NotDone(said.why)
        if said.verdict is Verdict.UNPARSABLE:
            raise InvalidReply(said.why)
        if said.verdict is Verdict.REFUSED:
            raise InvalidAnswer(said.why)
        cut = self._cut(said) if said.verdict is Verdict.CUT else None
        if cut and self._typed is not None:
            raise InvalidAnswer(cut)
        if cut and not self._keeps_truncated:
            return Answers([Discarded(Reason.TRUNCATED, cut)], *usage(reply))
        kept = _typed.storable(said.reasoning) if said.reasoning is not None and self._keeps_reasoning else None
        value = self._typed.parse(said.text) if self._typed else _typed.storable(said.text)
        return Answers([Answer(value, cut is not None, kept)], *usage(reply))

    def _cut(self, said: Judged) -> str:
        """What cut an answer, and what to do about it."""
        if said.ending == STOP:
            return self._stopped_early(said)
        if said.ending != "length":
            return f"the engine cut the answer (finish_reason {said.ending!r})"
        message = f"the answer was cut after {self._options['max_tokens']} tokens (max_tokens)"
        blank = len(said.text) - len(said.text.rstrip())
        if self._typed is not None and blank >= WHITE_SPACE_LEAST:
            return f"{message}, the last {blank:,} characters of it white space: set engine.args: {{{NO_WHITE_SPACE}}}"
        if said.text.strip():
            return message
        if not said.reasoned:
            return f"{message}, and no text is left: a model that reasons needs more of them"
        return f"{message}, all of them reasoning: raise request.max_tokens, or have the model reason less"

    def _stopped_early(self, said: Judged) -> str:
        """Of an answer that ended by itself, or at a stop string, without a text."""
        where = "inside or right behind the reasoning" if said.reasoned else "before any text"
        if isinstance(said.stop_reason, str):
            return f"the stop string {said.stop_reason!r} (request.stop) cut the answer {where}: {NO_STOP}"
        if "stop" in self._options:
            return f"the answer ended {where}, perhaps at a string of request.stop: {NO_STOP}"
        return f"the answer ended {where}: the model gave none (stop_reason {said.stop_reason!r})"


def row_seed(seed: int, name: RowName, retry: int) -> int:
    """63 bits, the non-negative half of what vLLM accepts; -1 would mean no seed."""
    digest = hashlib.blake2b(f"{seed}:{name}:{retry}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
