"""Chat: ``POST /v1/chat/completions``, one answer per row, to a question or a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pydantic import Field, model_validator

from nightshift.fields import section
from nightshift.fields.mistakes import mistake
from nightshift.tasks import Rendering
from nightshift.tasks._sampling import MessageRequest, Prompt, Sampling
from nightshift.tasks.base import BadInput, Text, plain_text, union

if TYPE_CHECKING:
    from nightshift.tasks.base import Job, RowName

ROLES: Final = ("system", "user", "assistant")
PATH: Final = "/v1/chat/completions"
SYSTEM: Final = "Jinja2 template of the system message. None is sent if it is absent or renders to nothing."


class Request(MessageRequest):
    """What the model is asked for a row of a chat job: `user`, or the conversation in `messages_column`."""

    TEMPLATES: ClassVar = ("system", "user")
    COLUMNS: ClassVar = {"messages_column": ("ARRAY",)}
    LEADING: ClassVar = ("system", "user")

    system: section.Text | None = Field(default=None, description=SYSTEM, examples=["You label support tickets."])
    user: section.Text | None = Field(
        default=None, description="Jinja2 template of the user's message.", examples=["{{ subject }}: {{ body }}"]
    )
    messages_column: section.InputColumn | None = Field(
        default=None,
        description="An array column instead of user: structs of role and content, or alternating texts of user and assistant.",
        examples=["conversation"],
    )

    @model_validator(mode="after")
    def _one_question(self) -> Request:
        if self.user is None and self.messages_column is None:
            raise mistake("The request has neither user nor messages_column", 'Write, for example, user: "{{ question }}"')
        if self.user is not None and self.messages_column is not None:
            raise mistake("The request has both user and messages_column", "Keep one of the two")
        return self


class Kind(Sampling):
    """`nightshift.tasks.base.TaskKind` for chat models."""

    def __init__(self, job: Job, request: Request) -> None:
        super().__init__(job, request)
        self._system = Text(request.system, job.rendering, blank=True) if request.system is not None else None
        self._user = Text(request.user, job.rendering) if request.user is not None else None
        self._column, self._rendering = request.messages_column, job.rendering
        texts = [text.columns for text in (self._system, self._user) if text]
        self.columns = union(*texts, (self._column,) if self._column else ())

    def render(self, row: Mapping[str, Any], name: RowName) -> Prompt:
        if self._user is not None:
            messages = [{"role": "user", "content": self._user.of(row)}]
        else:
            messages = conversation(row[str(self._column)], self._rendering, str(self._column))
        return Prompt(name, [*system_message(self._system, row, messages), *messages])

    def request(self, payloads: Sequence[Any], retry: int) -> tuple[str, bytes]:
        (prompt,) = payloads
        return PATH, self.body(prompt, retry, {"messages": prompt.content})


def system_message(system: Text | None, row: Mapping[str, Any], messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """The job's system message, unless the conversation begins with its own."""
    if system is None or (messages and messages[0]["role"] == "system"):
        return []
    text = system.of(row)
    return [{"role": "system", "content": text}] if text.strip() else []


def conversation(value: Any, rendering: Rendering, column: str) -> list[dict[str, str]]:
    """The messages of an array column's value. Raises BadInput unless the user has the last word."""
    if not isinstance(value, list):
        raise BadInput("the conversation is NULL" if value is None else "the conversation is not an array")
    messages = [_message(index, item, rendering, column) for index, item in enumerate(value)]
    if not messages:
        raise BadInput("the conversation is empty")
    if messages[-1]["role"] != "user" or not messages[-1]["content"].strip():
        raise BadInput("the conversation does not end with a user message")
    return messages


def _message(index: int, item: Any, rendering: Rendering, column: str) -> dict[str, str]:
    if isinstance(item, dict):
        role, content = item.get("role"), plain_text(item.get("content"), rendering, f"{column}[{index}]")
        if role not in ROLES:
            raise BadInput(f"message {index} has the role {role!r}; the roles are {', '.join(ROLES)}")
        return {"role": role, "content": content}
    return {"role": "assistant" if index % 2 else "user", "content": plain_text(item, rendering, f"{column}[{index}]")}
