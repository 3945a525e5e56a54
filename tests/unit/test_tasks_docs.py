"""The page about task kinds: its examples are jobs, their types are right, and it leaves nothing out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from nightshift import spec
from nightshift.spec.schema import json_schema
from nightshift.tasks import TASK_KINDS, request_model
from nightshift.tasks.base import Reason, load_kind
from nightshift.warehouse.schema import arrow_field, sql_type

pytestmark = pytest.mark.unit

PAGE = (Path(__file__).parents[2] / "docs/use/task-kinds.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
REST: dict[str, Any] = {
    "job": "example",
    "owner": "team",
    "start_date": "2026-11-01",
    "model": {"name": "m", "uri": "hf://org/m", "revision": "r1"},
    "engine": {"max_num_seqs": 8},
    "destination": {"table": "d.out", "column": "prediction"},
    "deadline": "2h",
    "compute": {"profile": "cpu"},
}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: yaml.safe_load(text)["task"])
def test_an_example_is_a_job_of_the_type_it_says(tmp_path: Path, example: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"{example}\n{yaml.safe_dump(REST)}", encoding="utf-8")
    job = spec.load(path)

    jsonschema.validate({**REST, **yaml.safe_load(example)}, json_schema())
    assert example.splitlines()[0] == f"# prediction: {sql_type(arrow_field('prediction', load_kind(job).prediction_type))}"


def test_every_kind_has_an_example() -> None:
    assert {yaml.safe_load(example)["task"] for example in EXAMPLES} == set(TASK_KINDS)


def test_every_key_is_named() -> None:
    keys = {key for task in TASK_KINDS for key in request_model(task).model_fields}

    assert {key for key in keys if not re.search(rf"`{key}`|^  {key}:", PAGE, re.MULTILINE)} == set()


def test_every_reason_is_listed_once() -> None:
    table = PAGE.split("## Dead letters")[1].split("## ")[0]

    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [reason.value for reason in Reason]
