"""The job file's published schema, and what reading a frozen job imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from nightshift.spec import JobSpec
from nightshift.spec.schema import json_schema, json_schema_text
from nightshift.tasks import TASK_KINDS, request_model
from tests.unit.spec_file import ROOT, job, mistakes

pytestmark = pytest.mark.unit


class TestSchema:
    def test_published_schema_is_current(self) -> None:
        """`nightshift schema > docs/job.schema.json` renews it."""
        assert (ROOT / "docs/job.schema.json").read_text(encoding="utf-8") == json_schema_text()

    def test_every_key_is_described(self) -> None:
        schema = json_schema()
        parts = {"job": schema, **schema["$defs"]}
        silent = [
            f"{part}.{key}"
            for part in parts
            for key, value in parts[part]["properties"].items()
            if not {"description", "$ref"} & set(value)
        ]

        assert silent == []

    def test_agrees_about_the_demo(self) -> None:
        jsonschema.validate(json.loads(json.dumps(job(), default=str)), json_schema())

    @pytest.mark.parametrize(
        "changes",
        [
            {"jobs": 1},
            {"job": "A B"},
            {"source__key": []},
            {"task": "x"},
            {"engine__max_num_seqs": "64"},
            {"compute__profile": "x"},
            {"deadline": "3 fortnights"},
            {"dead_letters__tolerate": -1},
            {"destination__table": "x"},
            {"model__revision": 0.1},
            {"request": {}},
            {"request": {"input": "{{ name }}", "prompt": "{{ name }}"}},
            {"task": "chat"},
            {"task": "completion", "request": {"prompt": "{{ name }}", "temperature": 3}},
            {"task": "rerank", "request": {"query": "{{ name }}", "documents": "a b"}},
        ],
    )
    def test_agrees_about_bad_jobs(self, tmp_path: Path, changes: dict[str, Any]) -> None:
        value = job(**changes)

        assert mistakes(tmp_path, value)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(json.loads(json.dumps(value, default=str)), json_schema())


@pytest.mark.parametrize("task", TASK_KINDS)
def test_import_is_light(task: str) -> None:
    """Neither the import nor reloading a frozen spec needs the parsers of SQL and templates, let alone Airflow."""
    program = (
        "import json, sys; from nightshift.spec import JobSpec; JobSpec.model_validate(json.load(sys.stdin)).semantic();"
        "print([name for name in ('airflow', 'sqlglot', 'jinja2', 'pyarrow', 'obstore') if name in sys.modules])"
    )
    fields = dict.fromkeys(request_model(task).TEMPLATES, "{{ name }}") | {"documents": "a", "image": "a"}
    request = {name: value for name, value in fields.items() if name in request_model(task).model_fields}
    frozen = JobSpec.model_validate(job(task=task, request=request)).model_dump_json()
    done = subprocess.run(
        [sys.executable, "-c", program], input=frozen, capture_output=True, text=True, check=True, cwd=ROOT / "plugins"
    )

    assert done.stdout.strip() == "[]"
