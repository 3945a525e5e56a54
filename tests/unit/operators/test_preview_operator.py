"""The task of the DAG nightshift_preview: which question it asks, and what it says of a wrong one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from nightshift.operators import engine_work
from nightshift.operators.preview import PreviewOperator
from nightshift.trial.engine_jobset import NoEngine
from nightshift.trial.outcomes import EngineGone
from nightshift.trial.preview import previews
from nightshift.trial.preview.previews import Question
from nightshift.trial.preview.results import NightEstimate, Preview, Variant
from nightshift.trial.rows import NoRows

pytestmark = pytest.mark.unit

JOB = """\
job: {name}
owner: support
start_date: 2026-11-01
source: {{query: "SELECT id, text FROM `d.t` WHERE day = @partition", key: [id]}}
task: embedding
request: {{input: "{{{{ text }}}}"}}
model: {{name: m, uri: hf://org/m, revision: r1}}
engine: {{max_num_seqs: 8}}
destination: {{table: d.{name}, column: vector, partition_column: day}}
deadline: 2h
compute: {{profile: cpu}}
{more}"""
FOUND = Preview(
    "20261120T080000000Z-000000",
    "tickets",
    "2026-11-20",
    "2026-11-20T08:00:00+00:00",
    "me",
    (Variant("tickets.yaml", "tickets", "m", "0", (), 0, 0, "0.32.0", 0.0, NightEstimate(0, 0, 0, "cpu")),),
)


class DagRun:
    run_id = "manual__1"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Question]:
    found: list[Question] = []

    def preview(question: Question, world: Any) -> Preview:
        found.append(question)
        return FOUND

    monkeypatch.setattr(previews, "preview", preview)
    monkeypatch.setattr(engine_work, "world_of", lambda settings, say: None)
    monkeypatch.setenv("NIGHTSHIFT_BUCKET", "b")
    monkeypatch.setenv("NIGHTSHIFT_PROJECT", "p")
    return found


def run(folder: Path, **changes: Any) -> Any:
    for name, more in (("tickets", ""), ("labels", ""), ("minutes", "every: 10m\n")):
        query = "@partition AND day < @partition_end" if more else "@partition"
        text = JOB.format(name=name, more=more).replace("day = @partition", f"day >= {query}" if more else f"day = {query}")
        (folder / f"{name}.yaml").write_text(text)
    broken = JOB.format(name="broken", more="every: 10m\n").replace(", partition_column: day", "")
    (folder / "broken.yaml").write_text(broken)
    given = {"job": "tickets", "partition": "2026-11-20", **changes}
    operator = PreviewOperator(task_id="preview", jobs_folder=str(folder), **given)
    return operator.execute({"dag_run": DagRun()})  # type: ignore[typeddict-item]


def test_the_question_is_that_of_the_params_as_templates_leave_them(tmp_path: Path, asked: list[Question]) -> None:
    assert run(tmp_path, rows="5", against="labels") == {"job": "tickets", "id": FOUND.id}

    (question,) = asked
    assert [file for file, _ in question.files] == ["tickets.yaml", "labels.yaml"]
    assert (question.rows, question.partition, question.by) == (5, "2026-11-20", "manual__1")


def test_without_a_partition_it_is_the_last_one_that_is_over(tmp_path: Path, asked: list[Question]) -> None:
    run(tmp_path, partition="")

    assert len(asked[0].partition) == len("2026-11-20")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"job": "tikets"}, "There is no job 'tikets'"),
        ({"rows": "0"}, "from 1 to 200"),
        ({"partition": "tomorrow"}, "Write a date"),
        ({"job": "broken"}, "partition_column: The key is missing"),
        ({"against": "minutes"}, "The periods of minutes are not those of tickets"),
    ],
)
def test_a_wrong_question_fails_for_good(tmp_path: Path, asked: list[Question], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(AirflowFailException, match=words):
        run(tmp_path, **changes)
    assert asked == []


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NoEngine("does not start"), AirflowFailException),
        (NoRows("no row"), AirflowFailException),
        (EngineGone("away"), EngineGone),
    ],
)
def test_what_a_repeat_cannot_help_fails_for_good(
    tmp_path: Path, asked: list[Question], monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception]
) -> None:
    def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr(previews, "preview", fails)

    with pytest.raises(kind, match=str(error)):
        run(tmp_path)
