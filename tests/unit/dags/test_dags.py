"""The DAGs that job files become: structure, import errors, serialization, and a light parse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pendulum
import pytest
from airflow.sdk import Asset, CronDataIntervalTimetable
from airflow.sdk.exceptions import AirflowFailException
from airflow.serialization.serialized_objects import DagSerialization

from nightshift.operators.assets import files_asset
from nightshift.operators.redo import VALUES
from tests.unit.dags.conftest import ROOT, Parse

pytestmark = pytest.mark.unit

DOCTOR = "nightshift_doctor"
PAUSE = "nightshift_pause"
PREVIEW = "nightshift_preview"
TUNE = "nightshift_tune"
OURS = {DOCTOR, PAUSE, PREVIEW, TUNE}
"""The DAGs that are there whatever the jobs are, as far as these tests parse them."""
"""These DAGs come from no file."""
REDRIVE = "nightshift_redrive"
"""The one that comes from the files of streams."""
TASKS = ["plan", "extract", "infer", "seal", "publish", "audit"]
FAILURE = "audit_failure"


def chain_of(dag: Any) -> list[list[str]]:
    """What follows each task, but for the one that records failures."""
    return [sorted(dag.get_task(task).downstream_task_ids - {FAILURE}) for task in TASKS]


def test_a_job_file_becomes_a_chain_of_six_tasks(parse: Parse, job_text: str) -> None:
    bag = parse(job=job_text)

    assert bag.import_errors == {}
    dag = bag.dags["package-embeddings"]
    assert sorted(dag.task_ids) == sorted([*TASKS, FAILURE])
    assert chain_of(dag) == [[task] for task in TASKS[1:]] + [[]]


def test_a_failure_is_recorded_beside_the_last_task_so_that_the_dag_run_ends_as_failed(parse: Parse, job_text: str) -> None:
    dag = parse(job=job_text).dags["package-embeddings"]
    recorder: Any = dag.get_task(FAILURE)

    assert sorted(recorder.upstream_task_ids) == sorted(TASKS[:-1])
    assert (recorder.trigger_rule, recorder.tasks) == ("all_done", tuple(TASKS[:-1]))
    assert recorder.is_teardown, "else Airflow skips it if a person marks the DAG run failed"
    assert recorder.on_failure_fail_dagrun, "else the DAG run would be successful then"
    assert sorted(task.task_id for task in dag.leaves) == ["audit", FAILURE]


def test_what_the_job_says_of_itself_is_what_the_dag_says(parse: Parse, job_text: str) -> None:
    dag = parse(job=job_text).dags["package-embeddings"]

    assert dag.tags == {"nightshift", "embeddings", "demo"}
    assert {task.owner for task in dag.tasks} == {"search-team"}
    assert dag.start_date == datetime(2026, 11, 1, tzinfo=UTC)
    assert dag.timetable == CronDataIntervalTimetable("0 2 * * *", timezone=pendulum.timezone(2 * 3600))
    assert not dag.catchup
    assert {task.retries for task in dag.tasks} == {5}


def test_the_page_tells_query_model_and_destination(parse: Parse, job_text: str) -> None:
    docs = parse(job=job_text).dags["package-embeddings"].doc_md

    assert docs is not None
    for fact in (
        "One vector per installed Python package",
        "WHERE snapshot_date = @partition",
        "**1110a243fdf4706b3f48f1d95db1a4f5529b4d41**",
        r"**catalog.package\_embeddings**",
        r"**0 2 \* \* \***",
        "5%; with more, nothing is published",
        "airflow backfill create --dag-id package-embeddings",
    ):
        assert fact in docs


def test_publishing_is_what_updates_the_tables_asset(parse: Parse, job_text: str) -> None:
    dag = parse(job=job_text).dags["package-embeddings"]

    assert {task.task_id: task.outlets for task in dag.tasks if task.outlets} == {
        "publish": [Asset("acme.catalog.package_embeddings")]
    }


def test_airflow_checks_the_tables_asset_before_the_first_task(parse: Parse, job_text: str) -> None:
    """Another DAG that names the table otherwise stopped each night at its end, after inference."""
    dag = parse(job=job_text).dags["package-embeddings"]

    assert {task.task_id: task.inlets for task in dag.tasks if task.inlets} == {
        "plan": [Asset("acme.catalog.package_embeddings")]
    }


@pytest.mark.parametrize(
    ("dag_id", "params"),
    [
        (DOCTOR, {"job": None}),
        (PAUSE, {"run": "", "action": "pause"}),
        (PREVIEW, {"job": "", "rows": 20, "partition": None, "against": None}),
        (TUNE, {"job": "", "budget": "1h", "rows": 1000, "partition": None}),
    ],
)
def test_the_other_dags_refuse_a_conf_with_keys_that_are_no_params(
    parse: Parse, job_text: str, dag_id: str, params: dict[str, Any]
) -> None:
    task: Any
    (task,) = parse(job=job_text).dags[dag_id].tasks
    asked = {"task": task, "params": {**params, "joob": "x"}, "dag_run": SimpleNamespace(conf={"joob": "x"})}

    with pytest.raises(AirflowFailException, match="keys that are no params: 'joob'"):
        task._pre_execute_hook(asked)


def test_a_destination_in_another_project_is_that_projects_asset(parse: Parse, job_text: str) -> None:
    dag = parse(job=job_text.replace("table: catalog.", "table: lake.catalog.")).dags["package-embeddings"]

    assert dag.get_task("publish").outlets == [Asset("lake.catalog.package_embeddings")]


class TestFilesAsAnAsset:
    def test_its_uri_is_the_folder_and_what_its_watcher_is_told(self) -> None:
        for url in ("gs://shop/answers/texts", "gs://shop/answers/texts/"):
            asset = files_asset(url, every="10m", settle="90s")

            assert asset.name == asset.uri == "gs://shop/answers/texts?every=10m&settle=90s"
            (watcher,) = asset.watchers
            assert watcher.trigger.serialize()[1] == {"url": "gs://shop/answers/texts", "every": "10m", "settle": "90s"}

    def test_periods_are_hours_unless_it_says_otherwise(self) -> None:
        assert files_asset("gs://shop/answers").uri == "gs://shop/answers?every=1h&settle=1m"

    @pytest.mark.parametrize("url", ["shop/answers", "s3://shop/answers", "gs://", "gs:///answers"])
    def test_anything_else_is_refused(self, url: str) -> None:
        with pytest.raises(ValueError, match="Write gs://BUCKET/FOLDER"):
            files_asset(url)

    @pytest.mark.parametrize("every", ["90s", "7m", "2d", "soon"])
    def test_periods_divide_a_day(self, every: str) -> None:
        with pytest.raises(ValueError, match=r"not the length of a period|is not a duration"):
            files_asset("gs://shop/answers", every=every)


def test_the_trigger_form_takes_a_date_or_nothing(parse: Parse, job_text: str) -> None:
    params = parse(job=job_text).dags["package-embeddings"].params

    assert params.dump() == {"partition": None, "fresh": False, "republish": None, "redo": None}
    params["partition"] = "2026-11-19"
    params["redo"] = "dead_letters"
    with pytest.raises(ValueError, match="is not one of"):
        params["redo"] = "everything"
    redo = params.get_param("redo").schema
    assert redo["enum"] == [None, *VALUES]
    assert set(redo["values_display"]) == {"null", *VALUES}, "else the form shows null"
    with pytest.raises(ValueError, match="is not a 'date'"):
        params["partition"] = "19 November"


def test_a_job_without_schedule_runs_only_when_asked(parse: Parse, job_text: str) -> None:
    dag = parse(job=job_text.replace('schedule: "0 2 * * *"', "schedule: null")).dags["package-embeddings"]

    assert not dag.timetable.can_be_scheduled


class TestPeriods:
    @pytest.fixture
    def text(self, job_text: str) -> str:
        periods = job_text.replace('schedule: "0 2 * * *"', "every: 10m")
        return periods.replace("partition_column: snapshot_date", "partition_column: period_start")

    def test_the_form_takes_a_time(self, parse: Parse, text: str) -> None:
        dag = parse(job=text).dags["package-embeddings"]

        assert dag.params.dump() == {"partition": None, "fresh": False, "republish": None, "redo": None}
        dag.params["partition"] = "2026-11-19T07:10"

    def test_its_page_says_so(self, parse: Parse, text: str) -> None:
        docs = parse(job=text).dags["package-embeddings"].doc_md

        assert docs is not None
        for fact in ("every 10m, for the period that has just ended", r"**@partition\_end**", "A period without rows"):
            assert fact in docs


class TestPeriodsOfFiles:
    @pytest.fixture
    def dag(self, parse: Parse, job_text: str) -> Any:
        text = job_text.replace('schedule: "0 2 * * *"', "every: 10m")
        text = text.replace("partition_column: snapshot_date", "partition_column: period_start")
        bag = parse(job=text.replace("source:\n", "source:\n  watch: gs://shop-uploads/texts\n  settle: 2m\n"))
        assert bag.import_errors == {}
        return bag.dags["package-embeddings"]

    def test_the_files_are_its_schedule_and_the_inlet_of_plan(self, dag: Any) -> None:
        asset = files_asset("gs://shop-uploads/texts", every="10m", settle="2m")

        assert list(dag.timetable.asset_condition.objects) == [asset]
        # The first one is what the task asks for events.
        assert dag.get_task("plan").inlets == [asset, Asset("acme.catalog.package_embeddings")]

    def test_the_watcher_is_in_what_airflow_stores(self, dag: Any) -> None:
        stored = json.dumps(DagSerialization.to_dict(dag))

        ((_, asset),) = DagSerialization.from_dict(json.loads(stored)).timetable.asset_condition.iter_assets()
        (watcher,) = asset.watchers
        assert watcher.trigger["classpath"] == "nightshift.triggers.files.FilesTrigger"

    def test_its_page_names_the_folder_and_no_backfill(self, dag: Any) -> None:
        assert "for each period of 10m in which files appeared in **gs://shop-uploads/texts**" in dag.doc_md
        assert "airflow dags trigger package-embeddings" in dag.doc_md
        assert "backfill" not in dag.doc_md


def test_a_dag_lives_through_serialization(parse: Parse, job_text: str) -> None:
    dag = parse(job=job_text).dags["package-embeddings"]

    stored = json.loads(json.dumps(DagSerialization.to_dict(dag)))
    again = DagSerialization.from_dict(stored)

    assert again.dag_id == "package-embeddings"
    assert again.timetable == dag.timetable
    assert chain_of(again) == [[task] for task in TASKS[1:]] + [[]]
    assert list(again.get_task("infer").template_fields) == ["run_prefix", "terms"]


class TestABrokenJobFile:
    """It is an import error that names its file and field, and nobody else's trouble."""

    def test_good_jobs_beside_it_are_there(self, parse: Parse, job_text: str) -> None:
        bag = parse(good=job_text, broken=job_text.replace("job: package-embeddings", "job: Broken_One"))

        assert set(bag.dags) == {"package-embeddings", *OURS}

    def test_the_import_error_names_file_line_and_field(self, parse: Parse, job_text: str) -> None:
        bag = parse(good=job_text, broken=job_text.replace("task: embedding", "task: telepathy"))

        ((file, message),) = bag.import_errors.items()
        assert file.endswith("broken_jobs.py")
        line = job_text.splitlines().index("task: embedding") + 1
        assert f"dags/jobs/broken.yaml:{line}: task: " in message

    def test_every_mistake_of_every_file_is_named(self, parse: Parse, job_text: str) -> None:
        bag = parse(
            first=job_text.replace("deadline: 1h", "deadline: soon").replace("profile: cpu", "profile: abacus"),
            second=job_text.replace("owner: search-team", "ownr: search-team"),
        )

        assert set(bag.dags) == OURS
        (message,) = bag.import_errors.values()
        for place in ("first.yaml", "deadline", "compute.profile", "second.yaml", "ownr"):
            assert place in message

    def test_a_file_that_is_no_yaml_at_all(self, parse: Parse, job_text: str) -> None:
        bag = parse(good=job_text, broken="\x00{{{")

        assert set(bag.dags) == {"package-embeddings", *OURS}
        assert "dags/jobs/broken.yaml" in next(iter(bag.import_errors.values()))

    def test_two_files_of_one_job(self, parse: Parse, job_text: str) -> None:
        bag = parse(first=job_text, second=job_text)

        assert set(bag.dags) == {"package-embeddings", *OURS}
        (message,) = bag.import_errors.values()
        line = next(n for n, text in enumerate(job_text.splitlines(), 1) if text.startswith("job: "))
        assert (
            f"dags/jobs/second.yaml:{line}: job: The name 'package-embeddings' is already used by dags/jobs/first.yaml."
            in message
        )

    def test_two_jobs_with_one_destination(self, parse: Parse, job_text: str) -> None:
        bag = parse(first=job_text, second=job_text.replace("job: package-embeddings", "job: other"))

        assert set(bag.dags) == {"package-embeddings", *OURS}
        (message,) = bag.import_errors.values()
        line = next(n for n, text in enumerate(job_text.splitlines(), 1) if text.startswith("  table: "))
        assert (
            f"dags/jobs/second.yaml:{line}: destination.table: The table catalog.package_embeddings is already the destination "
            "of dags/jobs/first.yaml, and each job would replace the other's predictions. Give one of the two jobs "
            "another table."
        ) in message


def test_a_deployment_without_project_says_which_variable_to_set(
    parse: Parse, job_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NIGHTSHIFT_PROJECT")

    (message,) = parse(job=job_text).import_errors.values()

    assert "NIGHTSHIFT_PROJECT is not set" in message


class TestTheDoctor:
    def test_it_runs_on_request_and_needs_no_parameter(self, parse: Parse) -> None:
        dag = parse().dags[DOCTOR]

        assert not dag.timetable.can_be_scheduled
        assert dag.params.dump() == {"job": None}
        assert dag.task_ids == ["examine"]
        assert dag.get_task("examine").retries == 0
        assert dag.is_paused_upon_creation is False

    def test_it_is_there_without_any_setting(self, parse: Parse, monkeypatch: pytest.MonkeyPatch) -> None:
        """So that it can say which one is missing."""
        monkeypatch.delenv("NIGHTSHIFT_PROJECT")
        monkeypatch.delenv("NIGHTSHIFT_BUCKET")

        assert set(parse().dags) == OURS

    def test_it_lives_through_serialization(self, parse: Parse) -> None:
        stored = json.loads(json.dumps(DagSerialization.to_dict(parse().dags[DOCTOR])))

        assert list(DagSerialization.from_dict(stored).get_task("examine").template_fields) == ["job"]


class TestRedriving:
    def test_there_is_a_dag_where_there_are_streams(self, parse: Parse) -> None:
        assert REDRIVE not in parse().dags
        assert REDRIVE in parse(streams=["package-texts"]).dags

    def test_the_form_offers_the_streams_and_has_a_default_for_everything(self, parse: Parse) -> None:
        dag = parse(streams=["texts", "images"]).dags[REDRIVE]

        assert dag.params.dump() == {
            "stream": "images",
            "reasons": None,
            "since": None,
            "until": None,
            "most": 1000,
            "topic": None,
            "dry_run": False,
        }
        dag.params["reasons"] = ["too_long", "rejected"]
        for name, wrong in (("stream", "other"), ("reasons", "too_long"), ("most", 0)):
            with pytest.raises(ValueError, match=r"is not |less than the minimum"):
                dag.params[name] = wrong

    @pytest.mark.parametrize(
        ("asked", "found"),
        [
            ({}, ("texts", None, None, 1000, None, False)),
            (
                {"reasons": ["too_long"], "since": "2026-11-20T08:00:00Z", "most": 5, "topic": "t", "dry_run": True},
                ("texts", ["too_long"], "2026-11-20T08:00:00Z", 5, "t", True),
            ),
            ({"dry_run": None}, ("texts", None, None, 1000, None, False)),
        ],
    )
    def test_what_the_form_has_reaches_the_task_as_what_it_is(self, parse: Parse, asked: Any, found: tuple[Any, ...]) -> None:
        dag = parse(streams=["texts"]).dags[REDRIVE]
        task: Any = dag.get_task("redrive")
        context: Any = {"params": {**dag.params.dump(), **asked}}
        task.render_template_fields(context)

        assert (task.stream, task.reasons, task.since, task.most, task.topic, task.only_count) == found

    def test_it_runs_on_request(self, parse: Parse) -> None:
        dag = parse(streams=["texts"]).dags[REDRIVE]

        assert not dag.timetable.can_be_scheduled
        assert dag.is_paused_upon_creation is False
        assert dag.max_active_runs == 1

    def test_it_lives_through_serialization_and_keeps_native_values(self, parse: Parse) -> None:
        stored = json.loads(json.dumps(DagSerialization.to_dict(parse(streams=["texts"]).dags[REDRIVE])))
        again = DagSerialization.from_dict(stored)

        assert again.render_template_as_native_obj
        assert "stream" in again.get_task("redrive").template_fields

    def test_the_repositorys_streams_are_those_that_its_dags_know(self) -> None:
        assert (ROOT / "dags" / "streams").resolve() == ROOT / "streams"


class TestPause:
    def test_it_runs_on_request(self, parse: Parse) -> None:
        dag = parse().dags[PAUSE]

        assert not dag.timetable.can_be_scheduled
        assert dag.is_paused_upon_creation is False
        assert dag.params.dump() == {"run": "", "action": "pause"}
        with pytest.raises(ValueError, match="is not one of"):
            dag.params["action"] = "stop"

    def test_what_the_form_has_reaches_the_task(self, parse: Parse) -> None:
        dag = parse().dags[PAUSE]
        task: Any = dag.get_task("pause")
        task.render_template_fields({"params": {**dag.params.dump(), "run": "job/2026-11-20/0123456789abcdef"}})

        assert (task.run, task.action) == ("job/2026-11-20/0123456789abcdef", "pause")


def test_parsing_loads_nothing_heavy() -> None:
    """What a DAG file imports is paid again at each parse and each task."""
    heavy = ["google.cloud", "google.auth", "kubernetes", "pyarrow", "obstore", "pandas", "requests", "grpc", "openlineage"]
    code = (
        "import sys, airflow.sdk.definitions.dag\n"
        "before = set(sys.modules)\n"
        "import batch_inference, broken_jobs, nightshift_doctor, nightshift_pause, nightshift_redrive\n"
        f"print([name for name in {heavy} if name in set(sys.modules) - before])\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'plugins'}:{ROOT / 'dags'}",
        "NIGHTSHIFT_PROJECT": "acme",
        "NIGHTSHIFT_BUCKET": "runs",
    }
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)

    assert done.stdout.splitlines()[-1] == "[]"
