"""The published JSON schemas of job and stream files, for editors. Generated from the model, never written by hand."""

from __future__ import annotations

import json
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from nightshift.spec.model import JobSpec
from nightshift.spec.stream import StreamSpec
from nightshift.tasks import TASK_KINDS, request_model


class _Generator(GenerateJsonSchema):
    """Without a title for each field: editors show the key and its description."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def json_schema(model: type[JobSpec] | type[StreamSpec] = JobSpec) -> JsonSchemaValue:
    """The schema. ``task`` decides which of the definitions ``KIND-request`` the section ``request`` follows."""
    schema = model.model_json_schema(schema_generator=_Generator)
    parts = schema["$defs"]
    del parts["TaskRequest"]
    rules = []
    for task in TASK_KINDS:
        request = request_model(task).model_json_schema(schema_generator=_Generator)
        name = f"{task}-request"
        parts[name] = {**request, "title": name}
        rules.append(
            {
                "if": {"properties": {"task": {"const": task}}, "required": ["task"]},
                "then": {"properties": {"request": {"$ref": f"#/$defs/{name}"}}},
            }
        )
    schema["properties"]["request"] = {"type": "object", "description": schema["properties"]["request"]["description"]}
    return {
        "$schema": _Generator.schema_dialect,
        **schema,
        "title": f"nightshift {model.NOUN}",
        "allOf": rules,
    }


def json_schema_text(model: type[JobSpec] | type[StreamSpec] = JobSpec) -> str:
    """The file `docs/job.schema.json`, or `docs/stream.schema.json`."""
    return json.dumps(json_schema(model), indent=2, ensure_ascii=False) + "\n"
