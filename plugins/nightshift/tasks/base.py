"""What a task kind is: rows to a request body, a reply to answers. Pure; no kind opens a socket.

A kind is one module of this package, named as the job names it, that defines ``make(spec) -> TaskKind``. Adding one touches
`TASK_KINDS` and nothing else.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from nightshift.tasks import TASK_KINDS

if TYPE_CHECKING:
    import jinja2
    import pyarrow as pa

    from nightshift.spec import JobSpec


class Reason(StrEnum):
    """Why a row is a dead letter."""

    BAD_INPUT = "bad_input"
    """The row cannot be made into a request: the template failed on it or rendered to nothing."""
    TOO_LONG = "too_long"
    """The engine refused the row for its length."""
    REJECTED = "rejected"
    """The engine refused the row for another reason, final by its status code."""
    INVALID_OUTPUT = "invalid_output"
    """The engine answered, but not with what the task asks for."""
    ENGINE_ERROR = "engine_error"
    """The engine, otherwise healthy, failed on this row again and again."""


class BadInput(ValueError):
    """A row that no request can be made of; the message goes into its dead letter."""


class InvalidReply(ValueError):
    """A 200 reply that does not hold what was asked for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One row's prediction, as `TaskKind.prediction_type` stores it."""

    prediction: Any


class TaskKind(Protocol):
    """One kind, bound to one job.

    endpoint: path below the engine's base URL. server_args: what vLLM must be started with to serve it.
    columns: the input columns that `render` reads.
    prediction_type: Arrow type of the column ``prediction``. rows_per_request: 1 where the endpoint takes no lists.
    """

    endpoint: str
    server_args: tuple[str, ...]
    columns: tuple[str, ...]
    rows_per_request: int

    @property
    def prediction_type(self) -> pa.DataType: ...

    def render(self, row: Mapping[str, Any]) -> Any:
        """One row's payload. Raises BadInput."""
        ...

    def body(self, payloads: Sequence[Any]) -> dict[str, Any]:
        """The JSON body of a request for these payloads, in their order."""
        ...

    def answers(self, reply: Mapping[str, Any], count: int) -> list[Answer]:
        """The answers of a 200 reply, in the order of the payloads. Raises InvalidReply."""
        ...


def load(spec: JobSpec) -> TaskKind:
    """The kind that `spec` names. Raises ValueError for one that does not exist."""
    if spec.task not in TASK_KINDS:
        raise ValueError(f"there is no task kind {spec.task!r}; there are {', '.join(TASK_KINDS)}")
    kind: TaskKind = importlib.import_module(f"nightshift.tasks.{spec.task}").make(spec)
    return kind


_ENVIRONMENT_OPTIONS: Final = {"autoescape": False, "keep_trailing_newline": True}


def compile_template(source: str) -> tuple[jinja2.Template, tuple[str, ...]]:
    """A sandboxed Jinja2 template and the columns it reads, sorted. Raises jinja2.TemplateSyntaxError."""
    import jinja2
    from jinja2 import meta
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, **_ENVIRONMENT_OPTIONS)
    # What a template may call without any row, `range` for example, is no column.
    columns = tuple(sorted(meta.find_undeclared_variables(environment.parse(source)) - environment.globals.keys()))
    return environment.from_string(source), columns


def render_text(template: jinja2.Template, columns: Sequence[str], row: Mapping[str, Any]) -> str:
    """The text of one row; NULL columns read as empty text. Raises BadInput for an error or for blank text."""
    values = {name: "" if row[name] is None else row[name] for name in columns}
    try:
        text = template.render(values)
    except Exception as error:  # The template is the user's program: what it raises concerns this row alone.
        raise BadInput(f"the template failed on this row: {error}") from error
    if not text.strip():
        raise BadInput("the template rendered to nothing")
    return text
