"""The base class of a job file's mappings, and the types of their values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict, WithJsonSchema
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from nightshift.fields import values
from nightshift.fields.mistakes import mistake


def pattern(value: str) -> Any:
    return Field(json_schema_extra={"pattern": value})


def enum(*values: str) -> Any:
    return Field(json_schema_extra={"enum": list(values)})


def _mapping_text(value: object, what: str, form: str) -> str:
    """A mapping as JSON text: the order of its keys affects answers and columns, and must survive sorted JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise mistake("The text is not JSON", f"Write the {what} as a mapping") from None
    if not isinstance(value, dict):
        raise mistake("The value is not a mapping", f"Write {form}")
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise mistake(f"The {what} is not JSON: {error}", "Put dates and other values in quotes") from None


T = TypeVar("T")
Listed = Annotated[tuple[T, ...], Strict(False)]
"""What is a list in the file."""
Text = Annotated[str, AfterValidator(values.text)]
ColumnName = Annotated[str, AfterValidator(values.column_name), pattern(values.COLUMN_PATTERN)]
InputColumn = Annotated[str, AfterValidator(values.input_column), pattern(values.COLUMN_PATTERN)]
"""A column of the query; it may be one that nightshift has published."""
BucketName = Annotated[str, AfterValidator(values.bucket_name), pattern(values.BUCKET_PATTERN)]
Duration = Annotated[str, BeforeValidator(values.duration), pattern(values.DURATION_PATTERN)]
Moment = Annotated[str, BeforeValidator(values.moment), pattern(values.MOMENT_PATTERN)]
SchemaText = Annotated[
    str,
    BeforeValidator(
        lambda value: _mapping_text(value, "schema", "a JSON schema, for example type: object with properties below it")
    ),
    WithJsonSchema({"type": "object"}),
]
ArgumentsText = Annotated[
    str,
    BeforeValidator(
        lambda value: _mapping_text(
            value, "value", "arguments of the chat template by name, for example enable_thinking: false"
        )
    ),
    WithJsonSchema({"type": "object"}),
]


@dataclass(frozen=True)
class Introduced:
    """The default that a field had in the release that introduced it, if a later release has changed the default.

    A part of the field's type: ``Annotated[int, Introduced(256)] = 512``. See `Section.semantic`.
    """

    default: Any


class Section(BaseModel):
    """A mapping of the file: no unknown keys, no silent conversion of values, no infinity, frozen once read.

    OPERATIONAL: the fields that do not affect answers: if you change them, the run stays the same. Every other field does.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    OPERATIONAL: ClassVar[tuple[str, ...]] = ()

    def semantic(self) -> dict[str, Any]:
        """The JSON form of what affects answers, without the values that were the default when their field was introduced.

        So a run keeps its name when a release adds a field. That default stands for an absent entry for ever: if a release
        changes the default, a job that leaves the field out means something else than before, and is another run.
        """
        return dict(self._semantic())

    def _semantic(self) -> Iterator[tuple[str, Any]]:
        for name, field in type(self).model_fields.items():
            if name in self.OPERATIONAL:
                continue
            value = _answering(getattr(self, name))
            if field.is_required() or _plain(value) != _plain(_answering(introduced(field))):
                yield name, value

    def tuned(self, other: Mapping[str, Any]) -> Self:
        """This section with those values that do not affect answers and that `other` has.

        other: values by field name; what is absent, or not a field, or affects answers, changes nothing.
        """
        fields = type(self).model_fields
        return self.model_copy(update={name: other[name] for name in self.OPERATIONAL if name in other and name in fields})


def introduced(field: FieldInfo) -> Any:
    """The default of an optional field for which an absent entry stands."""
    found = next((each for each in field.metadata if isinstance(each, Introduced)), None)
    return field.get_default(call_default_factory=True) if found is None else found.default


def _answering(value: Any) -> Any:
    """The JSON form of a value; of a section, what of it affects answers."""
    return value.semantic() if isinstance(value, Section) else to_jsonable_python(value)


def _plain(value: Any) -> str:
    """JSON text, in which 0, 0.0 and false differ."""
    return json.dumps(value, sort_keys=True)
