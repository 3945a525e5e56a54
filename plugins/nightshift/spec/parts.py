"""What the mappings of a job file are made of: the base class, the types of single values, and a task's `TaskRequest`.

Task kinds define their ``request:`` from these, so nothing here knows a kind.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from nightshift.spec import names
from nightshift.spec.document import Finding
from nightshift.spec.errors import mistake


def pattern(value: str) -> Any:
    return Field(json_schema_extra={"pattern": value})


def enum(*values: str) -> Any:
    return Field(json_schema_extra={"enum": list(values)})


def _schema_text(value: object) -> object:
    """A mapping as JSON text, so that the order of its keys, which decides answers and columns, outlives sorted JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise mistake("The text is not JSON", "Write the schema as a mapping") from None
    if not isinstance(value, dict):
        raise mistake("The value is not a mapping", "Write a JSON schema, for example type: object and below it properties")
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise mistake(f"The schema is not JSON: {error}", "Put dates and other values in quotes") from None


Text = Annotated[str, AfterValidator(names.text)]
ColumnName = Annotated[str, AfterValidator(names.column_name), pattern(names.COLUMN_PATTERN)]
InputColumn = Annotated[str, AfterValidator(names.input_column), pattern(names.COLUMN_PATTERN)]
"""A column of the query; one that nightshift published before may be read again."""
Duration = Annotated[str, BeforeValidator(names.duration), pattern(names.DURATION_PATTERN)]
SchemaText = Annotated[str, BeforeValidator(_schema_text), WithJsonSchema({"type": "object"})]
Overlong = Literal["truncate", "dead_letter"]


class Part(BaseModel):
    """A mapping of the file: no unknown key, no value turned silently into another type, frozen once read."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TaskRequest(Part):
    """The section ``request:`` of every task kind, each of which adds what it needs in a class of its own.

    TEMPLATES: the fields that are Jinja2 templates over the query's columns. COLUMNS: the fields that name one column, each
    with the beginnings of the GoogleSQL types that it may have.
    OPERATIONAL: the fields that decide no answer, so that another value keeps the run.
    """

    TEMPLATES: ClassVar[tuple[str, ...]] = ()
    COLUMNS: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    OPERATIONAL: ClassVar[tuple[str, ...]] = ("timeout", "rows_per_request")

    timeout: Duration = Field(
        default="10m",
        description="How long one request may take before it is sent again: 90s, 10m, 1h.",
        examples=["10m"],
    )

    @property
    def timeout_seconds(self) -> int:
        return names.duration_seconds(self.timeout)

    def semantic(self) -> dict[str, Any]:
        """The JSON form of what decides answers. An optional field that is absent leaves no trace, so that kinds can grow."""
        return self.model_dump(mode="json", exclude=set(self.OPERATIONAL), exclude_none=True)

    @classmethod
    def findings(cls, values: Mapping[str, Any]) -> list[Finding]:
        """What is wrong with the raw values beyond what their types tell; paths begin below ``request``."""
        return []


INPUT: Final = "Jinja2 template over the query's columns: the text that the model sees. NULL reads as empty text."
OVERLONG: Final = "What becomes of a text over the model's length: cut, or kept out with its reason."


class ListRequest(TaskRequest):
    """What the kinds whose endpoint takes lists have in common."""

    overlong: Overlong = Field(default="dead_letter", description=OVERLONG, examples=["truncate"])
    rows_per_request: int = Field(
        default=16, ge=1, le=2048, description="How many rows share a request where the endpoint takes lists.", examples=[16]
    )


def truncation(request: TaskRequest) -> dict[str, Any]:
    """vLLM's parameter for ``overlong``: -1 cuts at the model's own length; absent, an overlong input is refused with 400."""
    return {"truncate_prompt_tokens": -1} if getattr(request, "overlong", None) == "truncate" else {}
