"""The task that redrives: what it makes of its parameters and connections, and which errors are worth a retry."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from nightshift.hooks.postgres import database_address
from nightshift.operators.redrive import DeadLettersLeft, RedriveOperator
from nightshift.spec import StreamSpec
from nightshift.stream import redrive
from nightshift.stream.dead_letters import Selection
from nightshift.stream.ports import SinkRefused, Unavailable
from nightshift.stream.pubsub_client import PubSubRefused
from nightshift.stream.redrive import Redrive, Redriven
from tests.unit.spec.test_stream import EXAMPLE

pytestmark = pytest.mark.unit

CONTEXT: Any = {}
DONE = Redriven("package_vectors_dead_letters", "projects/acme/topics/t", False, {"rejected": 2}, 0, 2)


@pytest.fixture(autouse=True)
def _deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    anonymous = {"conn_type": "google_cloud_platform", "extra": {"is_anonymous": True}}
    for name, value in {
        "NIGHTSHIFT_BUCKET": "runs",
        "NIGHTSHIFT_PROJECT": "acme",
        "AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT": json.dumps(anonymous),
        "AIRFLOW_CONN_POSTGRES_DEFAULT": "postgres://u:p%40ss@db:5433/streams?sslmode=require",
    }.items():
        monkeypatch.setenv(name, value)


class Asked:
    """In place of `redrive`: keeps what it is asked, and returns or raises."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, result: Redriven | Exception = DONE) -> None:
        self.result = result
        self.asked: list[tuple[str, str, Redrive]] = []
        monkeypatch.setattr(redrive, "redrive", self)

    async def __call__(self, url: str, spec: StreamSpec, asked: Redrive, credentials: Any) -> Redriven:
        self.asked.append((url, spec.job, asked))
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def a_task(**parameters: Any) -> RedriveOperator:
    return RedriveOperator(task_id="redrive", **{"stream": str(EXAMPLE), **parameters})


class TestWhatIsAsked:
    def test_by_default_a_thousand_of_any_reason_on_the_streams_own_topic(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = Asked(monkeypatch)
        report = a_task().execute(CONTEXT)

        ((url, job, what),) = asked.asked
        assert sorted(url.split()) == ["dbname=streams", "host=db", "password=p@ss", "port=5433", "sslmode=require", "user=u"]
        assert job == "package-texts"
        assert what == Redrive("projects/acme/subscriptions/package-texts", Selection())
        assert report == DONE.to_json()

    def test_values_as_a_form_and_as_templates_give_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = Asked(monkeypatch)
        limits = {"since": "2026-11-20T08:00:00", "until": "2026-11-21T08:00:00+05:00", "topic": "again"}
        a_task(reasons=["too_long", "rejected"], most=5, only_count=True, **limits).execute(CONTEXT)
        a_task(reasons="too_long,rejected", most="5", only_count="True", **limits).execute(CONTEXT)

        (_, _, first), (_, _, second) = asked.asked
        since, until = datetime(2026, 11, 20, 8, tzinfo=UTC), datetime(2026, 11, 21, 3, tzinfo=UTC)
        assert first == second
        assert first.selection == Selection(("too_long", "rejected"), since, until, 5)
        assert (first.topic, first.dry_run) == ("projects/acme/topics/again", True)

    def test_a_stream_is_named_as_its_file_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = Asked(monkeypatch)
        a_task(stream="package-texts", streams_folder=str(EXAMPLE.parent)).execute(CONTEXT)

        assert [job for _, job, _ in asked.asked] == ["package-texts"]

    @pytest.mark.parametrize(
        ("parameters", "said"),
        [
            ({"stream": "nothing"}, "nothing: The file cannot be read: No such file"),
            ({"reasons": ["to_long"]}, "There is no reason to_long. Reasons are bad_input, too_long"),
            ({"since": "yesterday"}, "since is 'yesterday'. Write a time"),
            ({"most": 0}, "most is 0. Write a whole number"),
            ({"only_count": "maybe"}, "only_count is 'maybe'"),
        ],
    )
    def test_what_cannot_be_read_fails_for_good(
        self, monkeypatch: pytest.MonkeyPatch, parameters: dict[str, Any], said: str
    ) -> None:
        asked = Asked(monkeypatch)
        with pytest.raises(AirflowFailException, match=said):
            a_task(**parameters).execute(CONTEXT)

        assert asked.asked == []


class TestItsEnd:
    def test_what_is_away_is_worth_a_retry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Asked(monkeypatch, Unavailable("no answer"))
        with pytest.raises(DeadLettersLeft, match="no answer") as caught:
            a_task().execute(CONTEXT)

        assert not isinstance(caught.value, AirflowFailException)

    @pytest.mark.parametrize("error", [PubSubRefused("no such topic"), SinkRefused("there is no table")])
    def test_what_is_refused_is_not(self, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        Asked(monkeypatch, error)
        with pytest.raises(AirflowFailException, match=str(error)):
            a_task().execute(CONTEXT)

    def test_messages_that_pubsub_refuses_fail_the_task_when_the_others_are_done(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        Asked(monkeypatch, Redriven("t", "x", False, {"rejected": 2}, 0, 1, 0, {"17": "too many attributes"}))
        with pytest.raises(AirflowFailException, match=r"Pub/Sub refuses 1 dead letter; the log says why\. published 1 "):
            a_task().execute(CONTEXT)


class TestTheConnection:
    def test_without_psycopg_it_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "psycopg", None)
        with pytest.raises(AirflowFailException, match=r"The package psycopg cannot be used .* Install psycopg\[binary\] 3\.2"):
            a_task().execute(CONTEXT)

    def test_one_that_is_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NIGHTSHIFT_POSTGRES_CONN_ID", "streams_db")
        with pytest.raises(AirflowFailException, match=r"no connection 'streams_db'.*AIRFLOW_CONN_STREAMS_DB=postgres://"):
            a_task().execute(CONTEXT)

    def test_a_setting_that_libpq_does_not_know_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        extra = {"iam": True, "sslmode": "require", "cursor": "dictcursor"}
        monkeypatch.setenv("AIRFLOW_CONN_POSTGRES_DEFAULT", json.dumps({"conn_type": "postgres", "host": "db", "extra": extra}))

        with pytest.raises(AirflowFailException, match="has cursor, iam, which libpq does not know"):
            database_address("postgres_default")


def test_the_task_reads_the_file_when_it_runs(tmp_path: Path) -> None:
    """Not when it is parsed: a broken file of a stream must not break the DAG."""
    (tmp_path / "broken.yaml").write_text("job: [")
    task = a_task(stream="broken", streams_folder=str(tmp_path))

    with pytest.raises(AirflowFailException, match=r"broken\.yaml:1"):
        task.execute(CONTEXT)
