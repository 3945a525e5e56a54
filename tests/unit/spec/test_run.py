"""What of a job decides a run's name, and the section `request:` of each task kind."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from nightshift.run.names import canonical_json, run_digest
from nightshift.spec import JobSpec, load
from nightshift.tasks import TASK_KINDS, request_model
from tests.builders import a_spec
from tests.unit.spec_file import DEMO, ROOT, job, mistakes, write

pytestmark = pytest.mark.unit


class TestFrozen:
    def test_reloads_from_its_json(self) -> None:
        spec = load(DEMO)

        assert JobSpec.model_validate(json.loads(json.dumps(spec.model_dump(mode="json")))) == spec

    def test_cannot_be_changed(self) -> None:
        spec = load(DEMO)
        with pytest.raises(ValidationError):
            spec.deadline = "9h"

    @pytest.mark.parametrize(
        "changes",
        [
            {"source__query": "SELECT 1"},
            {"source__key": ["name"]},
            {"request__input": "{{ name }}"},
            {"request__overlong": "dead_letter"},
            {"model__revision": "b"},
            {"model__uri": "gs://models/m"},
            {"engine__dtype": "auto"},
            {"engine__args": {}},
        ],
    )
    def test_what_decides_answers_makes_another_run(self, changes: dict[str, Any]) -> None:
        before, after = (JobSpec.model_validate(value).semantic() for value in (job(), job(**changes)))

        assert run_digest("j", "2026-11-01", before) != run_digest("j", "2026-11-01", after)

    @pytest.mark.parametrize(
        "changes",
        [
            {"request__rows_per_request": 1},
            {"deadline": "9h"},
            {"compute__workers": 9},
            {"compute": {"profile": "tpu-v6e-spot", "topology": "4x4", "tensor_parallel": 16, "fallback": ["tpu-v6e"]}},
            {"owner": "x"},
            {"chunk_rows": 1},
            {"tags": []},
            {"destination__table": "a.b"},
            {"dead_letters__tolerate": 9},
            {"schedule": None},
            {"queue": "q"},
            {"description": "x"},
        ],
    )
    def test_what_does_not_decide_answers_keeps_the_run(self, changes: dict[str, Any]) -> None:
        before, after = (JobSpec.model_validate(value).semantic() for value in (job(), job(**changes)))

        assert json.dumps(before) == json.dumps(after)


class TestRequest:
    """The section ``request:`` of each task kind."""

    def test_an_embedding_run_keeps_its_digest(self) -> None:
        """Digests by the rule of docs/operate/formats.md; they never change again."""
        old = {"input": "{{ text }}", "overlong": "dead_letter", "rows_per_request": 4}
        specs = [a_spec(request=old), a_spec(), a_spec(request__overlong="truncate")]

        assert canonical_json(specs[0].semantic()) == (
            b'{"engine":{},'
            b'"model":{"name":"m","revision":"r1","uri":"hf://org/m"},'
            b'"request":{"input":"{{ text }}"},'
            b'"source":{"key":["id"],"query":"SELECT id, text FROM `d.t` WHERE day = @partition"},"task":"embedding"}'
        )
        assert [run_digest("j", "2026-11-01", spec.semantic()) for spec in specs] == [
            "1e3744fec26b182b",
            "1e3744fec26b182b",
            "05dcce090dcc23e9",
        ]

    @pytest.mark.parametrize(
        ("task", "request_"),
        [
            ("chat", {"messages_column": "turns", "temperature": 1, "stop": ["#"], "json_schema": {"type": "integer"}}),
            ("completion", {"prompt": "{{ text }}", "seed": None}),
            ("classify", {"input": "{{ text }}"}),
            ("score", {"text_1": "{{ a }}", "text_2": "{{ b }}"}),
            ("rerank", {"query": "{{ a }}", "documents": "b"}),
            ("image", {"image": "nightshift_photo", "user": "What?"}),
        ],
    )
    def test_a_frozen_spec_is_read_back(self, task: str, request_: dict[str, Any]) -> None:
        spec = a_spec(task=task, request=request_)
        frozen = json.loads(json.dumps(spec.model_dump(mode="json"), sort_keys=True))

        assert JobSpec.model_validate(frozen) == spec
        assert JobSpec.model_validate(frozen).semantic() == spec.semantic()
        assert type(JobSpec.model_validate(frozen).request) is request_model(task)
        assert not {"timeout", "rows_per_request"} & set(spec.semantic()["request"])

    @pytest.mark.parametrize("written", [{}, {"truncated": "keep"}])
    def test_a_chat_run_keeps_its_digest(self, written: dict[str, str]) -> None:
        """A field that has its default leaves no trace."""
        semantic = a_spec(task="chat", request={"user": "{{ text }}", **written}).semantic()

        assert run_digest("j", "2026-11-01", semantic) == "2ddd2f51fb6aee5a"

    def test_another_treatment_of_cut_answers_is_another_run(self) -> None:
        semantic = a_spec(task="chat", request={"user": "{{ text }}", "truncated": "dead_letter"}).semantic()

        assert semantic["request"]["truncated"] == "dead_letter"

    def test_optional_fields_leave_no_trace_so_that_kinds_can_grow(self) -> None:
        request = a_spec(task="chat", request={"user": "{{ text }}"}).semantic()["request"]

        assert request == {"user": "{{ text }}"}

    def test_rows_share_a_request_only_where_the_endpoint_takes_lists(self) -> None:
        assert a_spec().rows_per_request == 4
        short = {"request": {"input": "{{ text }}"}}
        assert a_spec(**short, engine__max_num_seqs=24).rows_per_request == 24
        assert a_spec(**short, engine__max_num_seqs=256).rows_per_request == 64
        assert a_spec(task="chat", request={"user": "{{ text }}"}).rows_per_request == 1

    def test_timeout(self) -> None:
        assert (a_spec().request.timeout_seconds, a_spec(request__timeout="1h30m").request.timeout_seconds) == (600, 5400)

    def test_a_request_of_an_unknown_task_is_not_judged(self, tmp_path: Path) -> None:
        (message,) = mistakes(tmp_path, job(task="poem", request={"rhyme": True}))

        assert message.startswith("task: There is no task kind 'poem'")

    @pytest.mark.parametrize("value", [None, "text", ["a"], 7])
    @pytest.mark.parametrize("task", TASK_KINDS)
    def test_a_request_that_is_no_mapping(self, tmp_path: Path, task: str, value: Any) -> None:
        (message,) = mistakes(tmp_path, job(task=task, request=value))

        assert message.startswith("request: ")
        assert "a mapping is expected" in message

    def test_a_question_about_an_image_needs_no_column(self, tmp_path: Path) -> None:
        query = "SELECT name, version, photo FROM t WHERE d = @partition"
        value = job(
            task="image", source__query=query, request={"image": "photo", "user": "What does it show?", "max_tokens": 64}
        )

        assert mistakes(tmp_path, value) == []

    def test_a_schema_may_be_text(self, tmp_path: Path) -> None:
        value = job(task="chat", request={"user": "{{ name }}", "max_tokens": 64, "json_schema": '{"type": "integer"}'})

        assert mistakes(tmp_path, value) == []
        (message,) = mistakes(tmp_path, job(task="chat", request={"user": "{{ name }}", "max_tokens": 64, "json_schema": "{"}))
        assert message.startswith("request.json_schema: The text is not JSON")
        schema = {"type": "number", "maximum": float("nan")}
        (message,) = mistakes(
            tmp_path, job(task="chat", request={"user": "{{ name }}", "max_tokens": 64, "json_schema": schema})
        )
        assert message.startswith("request.json_schema: The schema is not JSON")

    @pytest.mark.parametrize("packed", [False, True], ids=["folder", "zip"])
    def test_a_new_kind_is_one_file(self, tmp_path: Path, packed: bool) -> None:
        """The file alone makes the kind known to validation, to the schema and to the driver, also from a zip."""
        shutil.copytree(
            ROOT / "plugins/nightshift", tmp_path / "plugins/nightshift", ignore=shutil.ignore_patterns("__pycache__")
        )
        kind = (ROOT / "plugins/nightshift/tasks/classify.py").read_text(encoding="utf-8")
        (tmp_path / "plugins/nightshift/tasks/sentiment.py").write_text(kind, encoding="utf-8")
        place = shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "plugins") if packed else tmp_path / "plugins"
        path = write(tmp_path, job(task="sentiment", request={"input": "{{ name }}"}))
        program = (
            "import sys; sys.path.insert(0, sys.argv[1]); from nightshift import spec; from nightshift.spec import schema;"
            "from nightshift.tasks import base; kind = base.load_kind(spec.load(sys.argv[2]));"
            "assert base.__file__.startswith(sys.argv[1]);"
            "print(type(kind).__module__, 'sentiment-request' in schema.json_schema()['$defs'])"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, str(place), str(path)], capture_output=True, text=True, check=True, cwd=tmp_path
        )

        assert done.stdout.split() == ["nightshift.tasks.sentiment", "True"]
