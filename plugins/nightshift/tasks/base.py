"""What a task kind is: it turns rows into a request body and a reply into answers. Pure; no kind opens a socket.

A kind is one module of this package, with the name that jobs use. It defines ``class Request(TaskRequest)``, the job's section
``request:``, and ``class Kind``, a `TaskKind` that is made of a job and its request. Nothing else names it.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, runtime_checkable

from nightshift.fields.text import n
from nightshift.tasks import TASK_KINDS, Rendering, TaskRequest
from nightshift.tasks._null import NullWritten
from nightshift.tasks._request import ListRequest, truncation
from nightshift.tasks._values import STYLES, Large, NoProcess

if TYPE_CHECKING:
    import pyarrow as pa

    from nightshift.tasks._templates import Examined

_Item = TypeVar("_Item")
FLOAT32_MOST: Final = (2 - 2**-23) * 2.0**127
TOKENS_MOST: Final = 2**31
"""Tokens that one request may have."""


class Reason(StrEnum):
    """Why a row is a dead letter."""

    BAD_INPUT = "bad_input"
    """The row cannot be made into a request: its template failed or rendered to nothing, its image is not one, and so on."""
    TOO_LONG = "too_long"
    """The engine refused the row because of its length."""
    REJECTED = "rejected"
    """The engine refused the row for another reason, final by its status code."""
    INVALID_OUTPUT = "invalid_output"
    """The engine answered, but not with what the task asks for."""
    TRUNCATED = "truncated"
    """The answer was cut at ``max_tokens``, and the job does not keep such answers."""
    ENGINE_ERROR = "engine_error"
    """The engine, otherwise healthy, failed on this row repeatedly."""
    ENGINE_KILLED = "engine_killed"
    """The engine died four times with this row in flight, the last two times with no other row."""
    TIMEOUT = "timeout"
    """Repeatedly no reply within the request's time limit, from an engine that answered others."""


class BadInput(ValueError):
    """A row that cannot be made into a request; the message goes into its dead letter."""


class SlowTemplate(BadInput):
    """The template took too long for the row, as it may for others."""


class NullInput(BadInput):
    """A NULL would be written into a request, and the job refuses that (``request.nulls: dead_letter``). column: which."""

    def __init__(self, error: NullWritten) -> None:
        super().__init__(str(error))
        self.column = error.column


class InvalidReply(ValueError):
    """A 200 reply without what was asked for. The rows are sent again a few times, then become dead letters."""


class InvalidAnswer(InvalidReply):
    """The engine has answered, but what the model wrote has not the form that the job asks for: the engine is not to blame."""


class WrongModel(ValueError):
    """A 200 reply that the model which the job describes cannot give. Every row would get one like it, so the worker ends."""


class NotDone(Exception):
    """A 200 reply that says the engine aborted the request (``finish_reason: "abort"``). It is sent again."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One row's prediction, as `TaskKind.prediction_type` stores it. truncated: it was cut at ``max_tokens``.

    reasoning: what the model wrote before, if it did and the job keeps it.
    """

    prediction: Any
    truncated: bool = False
    reasoning: str | None = None


@dataclass(frozen=True, slots=True)
class Discarded:
    """What the engine answered one row, if the job refuses it: the row is not sent again, but becomes a dead letter."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Spoiled:
    """What a reply that answers other rows has for this one: nothing that is an answer. It is sent again, alone."""

    message: str


@dataclass(frozen=True, slots=True)
class Answers:
    """The content of a 200 reply: an answer for each payload, in order, and the tokens that the engine reports."""

    rows: Sequence[Answer | Discarded | Spoiled]
    prompt_tokens: int = 0
    output_tokens: int = 0


class Model(Protocol):
    """name: under which the server offers the model."""

    @property
    def name(self) -> str: ...


class Job(Protocol):
    """What a kind needs of a job: `nightshift.spec.JobSpec` has it."""

    @property
    def task(self) -> str: ...

    @property
    def request(self) -> TaskRequest: ...

    @property
    def model(self) -> Model: ...

    @property
    def rows_per_request(self) -> int: ...

    @property
    def rendering(self) -> Rendering:
        """How values read in its prompts."""
        ...


RowName = int | str
"""What tells a row from all others of its run: its key as JSON (`row_name`), or its ordinal."""


def row_name(key: Sequence[Any]) -> str:
    """Of a row with this key: the same in every run of its partition."""
    return json.dumps(list(key), default=lambda value: value.hex() if isinstance(value, bytes) else str(value))


class TaskKind(Protocol):
    """One kind, bound to one job.

    server_args: vLLM's arguments to serve it. columns: the input columns that `render` reads.
    rows_per_request: the most that share a request; 1 if the endpoint takes no lists.
    """

    server_args: tuple[str, ...]
    columns: tuple[str, ...]
    rows_per_request: int

    @property
    def prediction_type(self) -> pa.DataType:
        """Arrow type of the column ``prediction``."""
        ...

    def render(self, row: Mapping[str, Any], name: RowName) -> Any:
        """One row's payload. name: for the row's seed, if the kind samples. Raises BadInput."""
        ...

    def request(self, payloads: Sequence[Any], retry: int) -> tuple[str, bytes]:
        """The path below the engine's base URL and the JSON body of a request for these payloads, in order.

        retry: how many replies to these rows were invalid so far; a kind that samples uses another seed for each.
        """
        ...

    def answers(self, reply: Any, payloads: Sequence[Any]) -> Answers:
        """The answers in a 200 reply, decoded from JSON, to the payloads that were sent.

        Raises InvalidReply, NotDone, WrongModel.
        """
        ...


@runtime_checkable
class Filling(Protocol):
    """A task kind whose requests may be full by the length of their texts before they have `TaskKind.rows_per_request` rows.

    chars_per_request: characters that fill a request; None if only the rows count.
    """

    chars_per_request: int | None

    def chars(self, payload: Any) -> int:
        """Characters of one row's text."""
        ...


@dataclass(frozen=True, slots=True)
class Fetch:
    """An object that a payload lacks. url: gs://BUCKET/OBJECT, as in the row. bytes_max: larger objects are refused.

    buckets: the only ones that the row may name; None: any.
    """

    url: str
    bytes_max: int
    buckets: frozenset[str] | None = None


@runtime_checkable
class Fetching(Protocol):
    """A task kind whose rows may name an object instead of holding it; the driver fetches it before `TaskKind.request`.

    `TaskKind.answers` gets the payloads without the objects: these are not kept while the engine computes.
    """

    def fetches(self, payload: Any) -> Fetch | None:
        """The object that a payload lacks; None if it is complete."""
        ...

    def with_bytes(self, payload: Any, body: bytes) -> Any:
        """The complete payload. Raises BadInput for bytes that are not what the kind sends."""
        ...


def load_kind(job: Job) -> TaskKind:
    """The kind that `job` names. Raises ValueError for one that does not exist."""
    if job.task not in TASK_KINDS:
        raise ValueError(f"{job.task!r} is not a task kind: choose from {', '.join(TASK_KINDS)}")
    module = importlib.import_module(f"nightshift.tasks.{job.task}")
    assert isinstance(job.request, module.Request)
    kind: TaskKind = module.Kind(job, job.request)
    return kind


def usage(reply: Mapping[str, Any]) -> tuple[int, int]:
    """Prompt and completion tokens from a reply's ``usage``; 0 if it has none. ``/v1/responses`` has other names."""
    counts = reply.get("usage")
    if not isinstance(counts, dict):
        return 0, 0
    return (
        _tokens(counts.get("prompt_tokens", counts.get("input_tokens"))),
        _tokens(counts.get("completion_tokens", counts.get("output_tokens"))),
    )


def _tokens(count: Any) -> int:
    """0 for what no request can have: added up over a run, it would not fit the audit table's 64 bits."""
    return count if type(count) is int and 0 <= count <= TOKENS_MOST else 0


def examine_template(source: str, known: Container[str]) -> Examined:
    """What a check of a job must know of a template. known: the columns that rows have, as far as they are known.

    Raises jinja2.TemplateSyntaxError, and RecursionError, SyntaxError or ValueError if Python cannot compile it.
    """
    from nightshift.tasks import _templates

    return _templates.examine_template(source, known)


def mentioned(source: str) -> tuple[str, ...]:
    """The columns that a template reads, in the order in which it first names them. Raises jinja2.TemplateSyntaxError."""
    from nightshift.tasks import _templates

    return _templates.mentioned(source)


class Text:
    """A template field of a job, compiled once. columns: the ones it reads."""

    def __init__(self, source: str, rendering: Rendering = Rendering.SQL, *, blank: bool = False, apart: bool = False) -> None:
        """apart: it is always rendered in a process of its own, because nothing watches how long this one takes."""
        from nightshift.tasks import _subprocess, _templates

        self._templates, self._subprocess = _templates, _subprocess
        self._template, self.columns = _templates.compile_template(source)
        self._source, self._rendering = source, rendering
        self._blank, self._apart = blank, apart

    def of(self, row: Mapping[str, Any]) -> str:
        """The text of one row. Raises BadInput for an error and, unless `blank` was given, for blank text."""
        text = self._rendered({name: row[name] for name in self.columns})
        if not self._blank and not text.strip():
            raise BadInput("the template rendered to nothing")
        return encodable(text)

    def _rendered(self, row: dict[str, Any]) -> str:
        try:
            values = self._templates.taken(row, self._rendering)
        except UnicodeDecodeError as error:
            raise BadInput(f"the row holds bytes that are not UTF-8 text: {error}") from error
        try:
            with suppress(Large):  # Then it is begun again, elsewhere.
                if not self._apart:
                    return self._templates.render(self._template, values, self._rendering, here=True)
            return self._subprocess.render(self._source, values, self._rendering)
        except NoProcess:
            raise
        except NullWritten as error:
            raise NullInput(error) from error
        except Exception as error:  # The template is the user's program: what it raises affects only this row.
            kind = SlowTemplate if isinstance(error, self._subprocess.TooLong) else BadInput
            raise kind(f"the template failed on this row: {error}") from error


class Pooling:
    """What the kinds have in common whose endpoint takes lists of rows. A payload is the one text of a row."""

    server_args = ("--runner=pooling",)

    def __init__(self, job: Job, request: ListRequest, **options: Any) -> None:
        self._texts = [Text(getattr(request, name), job.rendering) for name in request.TEMPLATES]
        self.columns = union(*(text.columns for text in self._texts))
        self.rows_per_request, self.chars_per_request = job.rows_per_request, request.chars_per_request
        self._options = {"model": job.model.name, **options, **truncation(request)}

    def render(self, row: Mapping[str, Any], name: RowName) -> Any:
        return self._texts[0].of(row)

    def chars(self, payload: Any) -> int:
        return len(payload)


def plain_text(value: Any, rendering: Rendering, column: str) -> str:
    """A single value of a row as text: BYTES by UTF-8, NULL as empty text. Raises BadInput. column: where it stands."""
    if value is None:
        if rendering is Rendering.NO_NULL:
            raise BadInput(
                f"{column} has a NULL (request.nulls: dead_letter). Replace it in the query, for example with IFNULL"
            )
        return ""
    if isinstance(value, list | dict):
        raise BadInput("the row has an array or a struct where text is expected")
    try:
        return encodable(str(STYLES[rendering].taken(value, "")))
    except UnicodeDecodeError as error:
        raise BadInput(f"the row holds bytes that are not UTF-8 text: {error}") from error


def encodable(text: str) -> str:
    """The text itself. Raises BadInput for an unpaired surrogate, which no request can carry."""
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"the text cannot be encoded: {error}") from error
    return text


def union(*columns: Sequence[str]) -> tuple[str, ...]:
    """Sorted, each once."""
    return tuple(sorted({name for group in columns for name in group}))


def read_columns(request: TaskRequest) -> list[tuple[str, tuple[str, ...]]]:
    """The columns that each field of a request reads, as field and names. Raises jinja2.TemplateSyntaxError."""
    fields = [(name, getattr(request, name)) for name in (*request.TEMPLATES, *request.COLUMNS)]
    return [
        (name, Text(value).columns if name in request.TEMPLATES else (value,)) for name, value in fields if value is not None
    ]


def numbered(reply: Any, key: str, count: int) -> list[Mapping[str, Any]]:
    """The items of a reply's list in the order of their ``index``. Raises InvalidReply unless that is 0 to count - 1."""
    items = reply.get(key) if isinstance(reply, dict) else None
    if not isinstance(items, list) or len(items) != count:
        raise InvalidReply(f"asked for {n(count, 'answer')}, got {len(items) if isinstance(items, list) else 'none'}")
    try:
        ordered = sorted(items, key=lambda item: int(item["index"]))
        if [item["index"] for item in ordered] == list(range(count)):
            return ordered
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InvalidReply(f"the answers are not numbered: {error!r}") from error
    raise InvalidReply("the answers are not numbered 0, 1, 2, ...")


def each_alone(items: Iterable[_Item], read: Callable[[_Item], Any]) -> list[Answer | Spoiled]:
    """What `read` makes of each item of a reply. An item that it refuses with InvalidReply concerns its own row alone.

    Raises InvalidReply if that is true of all items.
    """
    rows: list[Answer | Spoiled] = []
    for item in items:
        try:
            rows.append(Answer(read(item)))
        except InvalidReply as error:
            rows.append(Spoiled(str(error)))
    refused = [row for row in rows if isinstance(row, Spoiled)]
    if refused and len(refused) == len(rows):
        raise InvalidReply(refused[0].message)
    return rows


def finite(value: Any) -> float:
    """A number of a reply. Raises InvalidReply for anything but a number that float32, its column, holds: not as infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= FLOAT32_MOST:
        raise InvalidReply(f"{value!r} is not a finite number of 32 bits")
    return float(value)
