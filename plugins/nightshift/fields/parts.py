"""The base class of a job file's mappings, and the types of their values."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from nightshift.fields import values
from nightshift.fields.mistakes import mistake


def pattern(value: str) -> Any:
    return Field(json_schema_extra={"pattern": value})


def enum(*values: str) -> Any:
    return Field(json_schema_extra={"enum": list(values)})


def _schema_text(value: object) -> object:
    """A mapping as JSON text: the order of its keys affects answers and columns, and must survive sorted JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise mistake("The text is not JSON", "Write the schema as a mapping") from None
    if not isinstance(value, dict):
        raise mistake("The value is not a mapping", "Write a JSON schema, for example type: object with properties below it")
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise mistake(f"The schema is not JSON: {error}", "Put dates and other values in quotes") from None


Text = Annotated[str, AfterValidator(values.text)]
ColumnName = Annotated[str, AfterValidator(values.column_name), pattern(values.COLUMN_PATTERN)]
InputColumn = Annotated[str, AfterValidator(values.input_column), pattern(values.COLUMN_PATTERN)]
"""A column of the query; it may be one that nightshift has published."""
BucketName = Annotated[str, AfterValidator(values.bucket_name), pattern(values.BUCKET_PATTERN)]
Duration = Annotated[str, BeforeValidator(values.duration), pattern(values.DURATION_PATTERN)]
Moment = Annotated[str, BeforeValidator(values.moment), pattern(values.MOMENT_PATTERN)]
SchemaText = Annotated[str, BeforeValidator(_schema_text), WithJsonSchema({"type": "object"})]


class Section(BaseModel):
    """A mapping of the file: no unknown keys, no silent conversion of values, frozen once read."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
