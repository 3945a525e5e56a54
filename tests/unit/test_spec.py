"""The job file: good ones load, bad ones say everything that is wrong, each mistake with its line and its remedy."""

from __future__ import annotations

import datetime
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from croniter import croniter  # type: ignore[import-untyped]
from pydantic import ValidationError

from nightshift import chunks
from nightshift.profiles import PROFILES
from nightshift.run import canonical_json, run_digest
from nightshift.spec import JobSpec, SpecErrors, load, load_all, load_files, loading, sql
from nightshift.spec.document import Document, Finding
from nightshift.spec.names import LEDGER_COLUMNS
from nightshift.spec.schema import json_schema, json_schema_text
from nightshift.tasks import TASK_KINDS, request_model
from nightshift.warehouse import schema as warehouse_schema
from tests.builders import a_spec

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "dags/jobs/package-embeddings.yaml"
BAD_JOBS = sorted((Path(__file__).parent / "bad_jobs").glob("*.yaml"))
EXPECTED = "#! "
"""Begins a line at the end of a bad job: LINE: FIELD: what is wrong. What to write instead."""


def job(**changes: Any) -> dict[str, Any]:
    """The demo's job with some values changed; ``destination__column`` is a key below another."""
    value: dict[str, Any] = yaml.safe_load(DEMO.read_text(encoding="utf-8"))
    for path, change in changes.items():
        *parents, key = path.split("__")
        part = value
        for parent in parents:
            part = part[parent]
        part[key] = change
    return value


def write(folder: Path, value: Any, name: str = "job.yaml") -> Path:
    path = folder / name
    path.write_text(value if isinstance(value, str) else yaml.safe_dump(value), encoding="utf-8")
    return path


def mistakes(folder: Path, value: Any) -> list[str]:
    """``FIELD: problem. remedy.`` of each mistake."""
    path = write(folder, value)
    try:
        load(path)
    except SpecErrors as errors:
        return [str(error).split(" ", 1)[1] for error in errors.errors]
    return []


def test_demo_job_loads() -> None:
    spec = load(DEMO)

    assert spec.job == "package-embeddings"
    assert spec.start_date == datetime.date(2026, 11, 1)
    assert spec.source.key == ("name", "version")
    assert spec.request.model_dump() == {
        "input": "{{ summary }} {{ description }}",
        "overlong": "truncate",
        "rows_per_request": 16,
        "timeout": "10m",
    }
    assert spec.engine.args == {"enforce-eager": True}
    assert (spec.compute.profile, spec.compute.workers, spec.chunk_rows) == ("cpu", 2, 32)
    assert spec.deadline_seconds == 3600


def test_optional_keys_have_their_defaults(tmp_path: Path) -> None:
    value = job(engine={"max_num_seqs": 8}, compute={"profile": "cpu"}, destination={"table": "a.b", "column": "c"})
    for key in ("description", "tags", "schedule", "dead_letters", "chunk_rows"):
        del value[key]
    del value["request"]["overlong"]
    spec = load(write(tmp_path, value))

    assert (spec.description, spec.tags, spec.schedule, spec.chunk_rows, spec.queue, spec.priority) == (
        None,
        (),
        None,
        None,
        None,
        None,
    )
    assert (spec.engine.max_model_len, spec.engine.dtype, spec.engine.args) == (None, "auto", {})
    assert (spec.compute.workers, spec.compute.rows_per_worker_per_second) == (None, None)
    assert spec.destination.partition_column == "partition_date"
    assert spec.request.semantic()["overlong"] == "dead_letter"
    assert spec.dead_letters.tolerate == 0


@pytest.mark.parametrize("path", BAD_JOBS, ids=lambda path: path.stem)
def test_bad_job_says_all_that_is_wrong(path: Path) -> None:
    """The comments at the end of each file are the messages, whole, all of them, in the order of the lines."""
    lines = path.read_bytes().decode("latin-1").splitlines()
    expected = [f"{path}:{line.removeprefix(EXPECTED)}" for line in lines if line.startswith(EXPECTED)]
    with pytest.raises(SpecErrors) as caught:
        load(path)

    assert expected
    assert str(caught.value).splitlines() == expected


def test_enough_bad_jobs() -> None:
    assert len(BAD_JOBS) >= 12


@pytest.mark.parametrize("name", ["absent.yaml", "folder.yaml"])
def test_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(SpecErrors) as caught:
        load(tmp_path / name)

    (error,) = caught.value.errors
    assert (error.line, error.field) == (None, "")
    assert str(error).startswith(f"{tmp_path / name}: The file cannot be read: ")


def test_line_of_a_mistake_in_a_list(tmp_path: Path) -> None:
    text = DEMO.read_text(encoding="utf-8").replace("key: [name, version]", "key:\n    - name\n    - 7 up")
    with pytest.raises(SpecErrors) as caught:
        load(write(tmp_path, text))

    (error,) = caught.value.errors
    assert text.splitlines()[error.line - 1 if error.line else 0] == "    - 7 up"


def test_message_cannot_act_on_a_terminal(tmp_path: Path) -> None:
    (message,) = mistakes(tmp_path, DEMO.read_text(encoding="utf-8") + '"\\e[31mred": 1\n')

    assert message.isprintable()


@pytest.mark.parametrize("seed", range(8))
def test_no_other_error_whatever_the_file_holds(tmp_path: Path, seed: int) -> None:
    """Files with broken pieces: they load, or they raise SpecErrors with one line for each mistake."""
    pieces = [b"{", b"[", b"&a ", b"*a", b"<<: ", b"!!timestamp x", b"'", b'"', b"\n  ", b": ", b"null", b"0x_", b"2026-99-99"]
    pieces += [b'"\\ud800"', b"{{", b"{% for a in b %}" * 30, b"(" * 900, b"9" * 5000, b"\x00", b"\xff", b"\t", b"@x", b"? "]
    chance = random.Random(seed)
    refused = 0
    for _ in range(40):
        body = bytearray(DEMO.read_bytes())
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(len(body))
            body[place : place + chance.choice((0, 0, 12))] = chance.choice(pieces)
        path = tmp_path / "job.yaml"
        path.write_bytes(body)
        _, errors = load_files([path])
        for error in errors.values():
            refused += 1
            assert len(str(error).splitlines()) == len(error.errors) > 0
    assert refused


class TestQuery:
    @pytest.mark.parametrize(
        ("query", "columns"),
        [
            ("SELECT a, t.b, c AS d, e.f.g, COUNT(*) AS n FROM t", ("a", "b", "d", "g", "n")),
            ("SELECT COUNT(*), CAST(a AS STRING), b FROM t", ("b",)),
            ("SELECT `a b` FROM t", ("a b",)),
            ("SELECT a FROM t UNION ALL SELECT b FROM u", ("a",)),
            ("(SELECT a FROM t) UNION DISTINCT (SELECT b FROM u)", ("a",)),
            ("WITH x AS (SELECT a, b FROM t) SELECT * FROM x", ("a", "b")),
            ("WITH x AS (SELECT a, b FROM t), y AS (SELECT *, 1 AS c FROM x) SELECT y.* EXCEPT (A) FROM y", ("b", "c")),
            ("SELECT * REPLACE (UPPER(a) AS a) FROM (SELECT a, b FROM t)", ("a", "b")),
            ("SELECT * FROM (SELECT 1 AS a), (SELECT 2 AS b)", ("a", "b")),
            ("SELECT x.*, y.b FROM (SELECT 1 AS a) AS x JOIN t AS y ON TRUE", ("a", "b")),
            ("FROM t |> WHERE a > 1 |> SELECT a, b AS c", ("a", "c")),
            ("SELECT * FROM t", None),
            ("SELECT t.* FROM t", None),
            ("SELECT a, t.* FROM t", None),
            ("SELECT s.* FROM (SELECT STRUCT(1 AS a) AS s)", None),
            ("WITH x AS (SELECT 1 AS a) SELECT * FROM other.x", None),
            ("WITH x AS (SELECT 1 AS a) SELECT * FROM x JOIN x AS y USING (a)", None),
            ("SELECT * FROM (SELECT a, b FROM t) PIVOT (SUM(a) FOR b IN (1, 2))", None),
            ("SELECT * FROM UNNEST([1, 2]) AS a", None),
            ("SELECT AS VALUE s FROM t", None),
        ],
    )
    def test_columns(self, query: str, columns: tuple[str, ...] | None) -> None:
        assert sql.columns(sql.parse(query)) == columns

    def test_template_is_not_judged_where_columns_cannot_be_known(self, tmp_path: Path) -> None:
        value = job(source__query="SELECT * FROM t WHERE d = @partition", request__input="{{ whatever }}")

        assert mistakes(tmp_path, value) == []

    def test_parameter_in_a_comment_or_text_is_none(self, tmp_path: Path) -> None:
        query = "SELECT name, version, summary, description FROM t -- @partition\nWHERE d = '@partition'"

        (message,) = mistakes(tmp_path, job(source__query=query))
        assert message.startswith("source.query: The query does not use @partition")

    def test_system_variable_is_no_parameter(self, tmp_path: Path) -> None:
        query = "SELECT name, version, summary, description, @@time_zone AS zone FROM t WHERE d = @partition"

        assert mistakes(tmp_path, job(source__query=query)) == []

    def test_parameter_in_other_case_is_one_mistake(self, tmp_path: Path) -> None:
        query = "SELECT name, version, summary, description FROM t WHERE d = @Partition"

        (message,) = mistakes(tmp_path, job(source__query=query))
        assert message.startswith("source.query: The query uses @Partition. Write @partition")

    @pytest.mark.parametrize(
        "statement", ["INSERT INTO t VALUES (1)", "CREATE TABLE t (a INT64)", "CALL p()", "BEGIN SELECT 1; END", "-- nothing"]
    )
    def test_other_statements_are_refused(self, tmp_path: Path, statement: str) -> None:
        (message,) = mistakes(tmp_path, job(source__query=statement))
        assert message.startswith("source.query: The query ")


class TestTemplate:
    def test_names_set_inside_the_template_are_no_columns(self, tmp_path: Path) -> None:
        template = "{% set x = summary[:80] %}{% for w in description.split() %}{{ loop.index }} {{ w }}{% endfor %}{{ x }}"

        assert mistakes(tmp_path, job(request__input=template)) == []


class TestNames:
    @pytest.mark.parametrize("name", ["a", "a-b2", "x" * 40])
    def test_job_names(self, tmp_path: Path, name: str) -> None:
        assert mistakes(tmp_path, job(job=name)) == []

    @pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a_b", "a.b", "2a", "x" * 41, "a\n", "é"])
    def test_no_job_names(self, tmp_path: Path, name: str) -> None:
        (message,) = mistakes(tmp_path, job(job=name))
        assert message.startswith("job: ")

    @pytest.mark.parametrize("table", ["a.b", "my-project.a_1.b-c", "local.a.b", "example.com:my-project.a.b", "a.préfixe"])
    def test_tables(self, tmp_path: Path, table: str) -> None:
        assert mistakes(tmp_path, job(destination__table=table)) == []

    @pytest.mark.parametrize(
        "table", ["", ".", "a", "a.", ".b", "a..b", "`a.b`", "p:a.b", "P.a.b", "a-b.c", "a.b$20261120", "a.b.c.d", "a.*"]
    )
    def test_no_tables(self, tmp_path: Path, table: str) -> None:
        (message,) = mistakes(tmp_path, job(destination__table=table))
        assert message.startswith("destination.table: ")

    @pytest.mark.parametrize("column", [*LEDGER_COLUMNS, warehouse_schema.RUN_ID_COLUMN, warehouse_schema.ORDINAL_COLUMN])
    def test_key_cannot_take_a_column_of_nightshift(self, tmp_path: Path, column: str) -> None:
        query = f"SELECT {column}, summary, description FROM t WHERE d = @partition"

        (message,) = mistakes(tmp_path, job(source__query=query, source__key=[column]))
        assert message.startswith("source.key.0: ")

    def test_ledger_columns_are_those_of_the_chunks(self) -> None:
        assert LEDGER_COLUMNS == chunks.RESERVED

    @pytest.mark.parametrize(
        "flag", ["port", "host", "model", "served-model-name", "max-num-seqs", "max-model-len", "dtype", "revision"]
    )
    @pytest.mark.parametrize("spelling", ["{}", "--{}", "no_{}"])
    def test_flags_of_nightshift(self, tmp_path: Path, flag: str, spelling: str) -> None:
        spelt = spelling.format(flag) if not spelling.startswith("no") else flag.replace("-", "_")

        (message,) = mistakes(tmp_path, job(engine__args={spelt: "x"}))
        assert message.startswith(f"engine.args.{spelt}: ")

    def test_abbreviated_flag_of_nightshift(self, tmp_path: Path) -> None:
        """argparse takes --served-model for --served-model-name."""
        (message,) = mistakes(tmp_path, job(engine__args={"served-model": "x"}))

        assert "--served-model-name is not a free flag" in message


class TestValues:
    @pytest.mark.parametrize(
        ("deadline", "seconds"),
        [("1s", 1), ("90s", 90), ("45m", 2700), ("3h", 10800), ("1d", 86400), ("1h30m", 5400), ("7d", 604800)],
    )
    def test_durations(self, deadline: str, seconds: int) -> None:
        assert JobSpec.model_validate(job(deadline=deadline)).deadline_seconds == seconds

    @pytest.mark.parametrize(
        "deadline", ["", "h", "3", "3 h", "1.5h", "-1h", "0s", "0h0m", "30m1h", "8d", "3H", "٣h", 5, 2.5, True, None, ["3h"]]
    )
    def test_no_durations(self, tmp_path: Path, deadline: Any) -> None:
        (message,) = mistakes(tmp_path, job(deadline=deadline))
        assert message.startswith("deadline: ")

    @pytest.mark.parametrize(
        ("tolerate", "rows", "allowed"),
        [
            (0, 100, 0),
            (5, 3, 5),
            ("1%", 99, 0),
            ("1%", 100, 1),
            ("0.1%", 1000, 1),
            ("0.1%", 999, 0),
            ("100%", 7, 7),
            ("29%", 100, 29),
        ],
    )
    def test_tolerance(self, tolerate: int | str, rows: int, allowed: int) -> None:
        """A share is exact and rounded down: 29% of 100 is 29, though 0.29 * 100 is less in binary."""
        assert JobSpec.model_validate(job(dead_letters={"tolerate": tolerate})).dead_letters.allowed(rows) == allowed

    @pytest.mark.parametrize("tolerate", ["150%", "100.1%", "-1%", "5 %", "%", "5", "five", -1, 0.5, True, None, [1]])
    def test_no_tolerance(self, tmp_path: Path, tolerate: Any) -> None:
        (message,) = mistakes(tmp_path, job(dead_letters__tolerate=tolerate))
        assert message.startswith("dead_letters.tolerate: ")

    @pytest.mark.parametrize(
        "schedule",
        [
            "0 2 * * *",
            "*/15 * * * *",
            "0 22-23,0-2 * * *",
            "5 4 1,15 jan-mar MON-FRI",
            "0 0 29 2 *",
            "0 0 L * *",
            "0 0 * * fri-sun",
            "0 0 * * 5#2",
            "1-5/2 * * * *",
            "5/10 * * * *",
            "0 0 31 2 mon",
            "00 02 * * 7",
            "0 0 31 1,2 *",
        ],
    )
    def test_schedules(self, tmp_path: Path, schedule: str) -> None:
        """What is accepted comes at some time, as Airflow's own cron reader finds."""
        assert mistakes(tmp_path, job(schedule=schedule)) == []
        assert croniter(schedule).get_next() > 0

    @pytest.mark.parametrize(
        "schedule",
        [
            "",
            "* * * *",
            "* * * * * *",
            "60 * * * *",
            "0 24 * * *",
            "0 0 0 * *",
            "0 0 32 * *",
            "0 0 * 13 *",
            "0 0 * * 8",
            "0 0 31 4,6 *",
            "*/0 * * * *",
            "*/90 * * * *",
            "5-1 * * * *",
            "0 0 ,1 * *",
            "0 0 * * mo",
            "H 0 * * *",
            "@daily",
            "@never",
            "0 0 30 2 *",
            "a b c d e",
        ],
    )
    def test_no_schedules(self, tmp_path: Path, schedule: str) -> None:
        (message,) = mistakes(tmp_path, job(schedule=schedule))
        assert message.startswith("schedule: ")

    @pytest.mark.parametrize("profile", PROFILES)
    def test_every_profile(self, tmp_path: Path, profile: str) -> None:
        assert mistakes(tmp_path, job(compute__profile=profile)) == []


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
            {"model__uri": "gs://b/m"},
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
        """Runs that were begun before there were other kinds are found again: these digests are those of commit 6a67321."""
        old = {"input": "{{ text }}", "overlong": "dead_letter", "rows_per_request": 4}
        specs = [a_spec(request=old), a_spec(), a_spec(request__overlong="truncate")]

        assert canonical_json(specs[0].semantic()) == (
            b'{"engine":{"args":{},"dtype":"auto","max_model_len":null,"max_num_seqs":8},'
            b'"model":{"name":"m","revision":"r1","uri":"hf://org/m"},'
            b'"request":{"input":"{{ text }}","overlong":"dead_letter"},'
            b'"source":{"key":["id"],"query":"SELECT id, text FROM `d.t` WHERE day = @partition"},"task":"embedding"}'
        )
        assert [run_digest("j", "2026-11-01", spec.semantic()) for spec in specs] == [
            "c95b46d5b86c460b",
            "c95b46d5b86c460b",
            "3f5e58b800add149",
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

    def test_optional_fields_leave_no_trace_so_that_kinds_can_grow(self) -> None:
        request = a_spec(task="chat", request={"user": "{{ text }}"}).semantic()["request"]

        assert request == {"user": "{{ text }}", "max_tokens": 256, "stop": [], "seed": 0}

    def test_rows_share_a_request_only_where_the_endpoint_takes_lists(self) -> None:
        assert a_spec().rows_per_request == 4
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
        assert "where a mapping belongs" in message

    def test_a_question_about_an_image_needs_no_column(self, tmp_path: Path) -> None:
        query = "SELECT name, version, photo FROM t WHERE d = @partition"
        value = job(task="image", source__query=query, request={"image": "photo", "user": "What does it show?"})

        assert mistakes(tmp_path, value) == []

    def test_a_schema_may_be_text(self, tmp_path: Path) -> None:
        value = job(task="chat", request={"user": "{{ name }}", "json_schema": '{"type": "integer"}'})

        assert mistakes(tmp_path, value) == []
        (message,) = mistakes(tmp_path, job(task="chat", request={"user": "{{ name }}", "json_schema": "{"}))
        assert message.startswith("request.json_schema: The text is not JSON")

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
            "from nightshift.tasks import base; kind = base.load(spec.load(sys.argv[2]));"
            "assert base.__file__.startswith(sys.argv[1]);"
            "print(type(kind).__module__, 'sentiment-request' in schema.json_schema()['$defs'])"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, str(place), str(path)], capture_output=True, text=True, check=True, cwd=tmp_path
        )

        assert done.stdout.split() == ["nightshift.tasks.sentiment", "True"]


class TestFolder:
    def test_one_bad_file_hides_no_other(self, tmp_path: Path) -> None:
        good, bad = write(tmp_path, job(), "b.yaml"), write(tmp_path, "job: [", "a.yml")
        write(tmp_path, "not a job", "notes.txt")
        write(tmp_path, "job: [", ".hidden.yaml")
        (tmp_path / "folder.yaml").mkdir()
        specs, errors = load_all(tmp_path)

        assert list(specs) == [good]
        assert list(errors) == [bad]

    def test_a_file_that_breaks_the_reader_hides_no_other(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        good, bad = write(tmp_path, job(), "b.yaml"), write(tmp_path, job(job="other"), "a.yaml")

        def breaks(document: Document) -> list[Finding]:
            if document.value["job"] == "other":
                raise RecursionError("too deep")
            return []

        monkeypatch.setattr(loading, "check", breaks)
        specs, errors = load_all(tmp_path, relative_to=tmp_path)

        assert list(specs) == [good]
        assert str(errors[bad]).startswith("a.yaml: The file breaks its reader (RecursionError: too deep).")

    def test_second_file_with_a_name_is_the_bad_one(self, tmp_path: Path) -> None:
        first, other = write(tmp_path, job(), "a.yaml"), write(tmp_path, job(job="other"), "c.yaml")
        second = write(tmp_path, job(), "b.yaml")
        specs, errors = load_all(tmp_path)

        assert list(specs) == [first, other]
        (error,) = errors[second].errors
        assert second.read_text(encoding="utf-8").splitlines()[(error.line or 0) - 1] == "job: package-embeddings"
        assert f"The name 'package-embeddings' is taken by {first}" in str(error)


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
