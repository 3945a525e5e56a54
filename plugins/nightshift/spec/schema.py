"""The published JSON schema of a job file: what editors complete and check. Made from the model, never written by hand."""

from __future__ import annotations

import json
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from nightshift.spec.model import JobSpec


class _Generator(GenerateJsonSchema):
    """Without a title for each field: editors show the key and its description."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def json_schema() -> JsonSchemaValue:
    schema = JobSpec.model_json_schema(schema_generator=_Generator)
    return {"$schema": _Generator.schema_dialect, **schema, "title": "nightshift job"}


def json_schema_text() -> str:
    """The file `docs/job.schema.json`."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"
