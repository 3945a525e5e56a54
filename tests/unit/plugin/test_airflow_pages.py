"""The pages in Airflow without an Airflow: their routes and tokens, and what they make of a run's hostile texts."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import obstore
import pytest
from airflow.models import import_all_models
from airflow.models.dag import DagModel, DagTag
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from obstore.store import MemoryStore
from sqlalchemy import Engine, create_engine, insert
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from nightshift.jobset.fleet.shown import save_now
from nightshift.plugin.address import address, dag_run_address, run_address
from nightshift.plugin.mounted import AT_ONCE, Mounted
from nightshift.plugin.pages import actions, app, bucket, dag_runs, facts, files, job, plots, rights, runs, tokens, words
from nightshift.run import pauses
from nightshift.run.answers.compare import Pair
from nightshift.run.observed.endings import Ending, record
from nightshift.run.observed.pods_now import Acts, JobSetNow, LastWords, PodNow, Stage
from nightshift.status.overview import RunLook
from nightshift.status.text import text as text_of
from nightshift.store import StoreUnavailable
from nightshift.trial.engine_folder import new_id
from nightshift.trial.preview.results import NightEstimate, Preview, PreviewRow, Variant, save
from tests.chat_run import ChatRun, a_chat_run

pytestmark = pytest.mark.unit

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>'\"{{7*7}}"
RIGHTS = {rights.READS_RUN, rights.READS_ROWS, rights.CHANGES_RUN, rights.TRIGGERS}
WRITES = {rights.CHANGES_RUN, rights.TRIGGERS}
IN_AIRFLOW = {name: getattr(dag_runs, name) for name in ("night", "that_worked_on", "without_run")}
"""What asks Airflow's database."""
LOGS_BY_NAME = {**actions.LOGS, "preview": job.LOG}
LOGS = set(LOGS_BY_NAME.values())


class Users:
    """In place of Airflow's auth manager: a token is the user's name. reads, edits: DAGs, of everybody."""

    def __init__(self, reads: set[str], edits: set[str]) -> None:
        self.reads, self.edits = reads, edits

    async def get_user_from_token(self, token: str) -> Any:
        return type("User", (), {"get_id": lambda self: token, "get_name": lambda self: token})()

    def is_authorized_dag(self, *, method: str, details: Any, user: Any, access_entity: Any = None) -> bool:
        return details.id is None or details.id in (self.reads if method == "GET" else self.edits)

    def get_authorized_dag_ids(self, *, user: Any, method: str) -> set[str]:
        return self.reads


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    made = MemoryStore()
    monkeypatch.setenv("NIGHTSHIFT_BUCKET", "nights")
    monkeypatch.setenv("NIGHTSHIFT_PROJECT", "local")
    for module in (bucket, facts, runs):
        monkeypatch.setattr(module, "bucket", lambda: made, raising=False)
    monkeypatch.setattr(actions, "bucket", lambda: made)
    monkeypatch.setattr(facts, "of", bucket.Kept(facts._look))
    monkeypatch.setattr(runs, "_runs", bucket.Kept(runs._made))
    return made


@pytest.fixture(scope="module")
def made() -> FastAPI:
    """Without Airflow's database, in which it logs what users do."""
    pages = app.make()
    pages.dependency_overrides |= {log: lambda: None for log in LOGS}
    return pages


@pytest.fixture
def users() -> Users:
    """Who may read the jobs tickets and others, and change tickets."""
    return Users({"tickets", "others"}, {"tickets"})


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch, store: MemoryStore, made: FastAPI, users: Users) -> Iterator[TestClient]:
    monkeypatch.setattr("airflow.api_fastapi.app._AuthManagerState.instance", users)
    monkeypatch.setattr(DagModel, "get_team_name", lambda dag_id: None)
    monkeypatch.setattr(dag_runs, "night", lambda dag_id, dag_run_id: None)
    monkeypatch.setattr(dag_runs, "that_worked_on", lambda run: ())
    monkeypatch.setattr(dag_runs, "without_run", lambda dags: [])
    airflow = FastAPI()
    airflow.mount("/nightshift", made)
    with TestClient(airflow, cookies={"_token": "reader"}, follow_redirects=False, raise_server_exceptions=True) as client:
        yield client


@pytest.fixture
def night(store: MemoryStore) -> ChatRun:
    """Of the job tickets: 40 rows, of which four are dead; texts that try to be more than text."""
    made = a_chat_run(store, rows=40, chunk_rows=10)
    for number in range(4):
        made.commit(number, lambda row: None if row % 10 == 3 else f"{HOSTILE} {row}", reason="bad_input")
    record(store, made.run, Ending("failed", "2099-01-01T00:00:00+00:00", "d1", task="seal", error=HOSTILE, dead_letters=4))
    return made


def page_of(run: ChatRun, rest: str = "") -> str:
    return f"/nightshift/runs/{run.run.prefix}{rest}"


def token_in(page: str) -> dict[str, str]:
    found = re.search(r'"X-Nightshift-Token": "([^"]+)"', page)
    assert found
    return {tokens.HEADER: found[1]}


def a_preview(*jobs: str) -> Preview:
    """Of one row, whose answer is another one in the second job."""
    night = NightEstimate(100, 1000, 500, "cpu")
    variants = tuple(
        Variant(f"{job}.yaml", job, "m", "d", (PreviewRow(HOSTILE, HOSTILE, key={"id": 1}),), 10, 5, "0.32", 0.5, night)
        for job in jobs
    )
    pair = Pair({"id": 1}, None, (("-", "ham"), ("+", HOSTILE)))
    return Preview(new_id(), jobs[0], "2026-11-20", "2026-11-20T08:00:00+00:00", "d", variants, (pair,))


class TestRoutes:
    def test_each_checks_rights(self, made: FastAPI) -> None:
        """Airflow mounts the application without authentication. Every route of ours, and there are no others."""
        routes = list(routes_of(made))

        assert len(routes) > 10
        assert [route.path for route in routes if not RIGHTS & calls_of(route)] == []

    def test_each_of_a_dag_has_it_in_its_path(self, made: FastAPI) -> None:
        """Airflow's dependency takes the DAG from there; from the query only where a path has none."""
        without = {route.path for route in routes_of(made) if "{dag_id}" not in route.path}

        assert without == {"/", "/list", "/static/{name}"}

    def test_each_that_writes_needs_a_token_and_the_right_to_write(self, made: FastAPI) -> None:
        writing = [route for route in routes_of(made) if route.methods - {"GET", "HEAD"}]

        assert {route.path.rpartition("/")[2] for route in writing} == {"pause", "resume", "redo", "republish", "preview"}
        for route in writing:
            assert LOGS & calls_of(route) == {LOGS_BY_NAME[route.path.rpartition("/")[2]]}, "Airflow's log names what was done"
        assert [route.path for route in writing if tokens.carries_token not in calls_of(route)] == []
        assert [route.path for route in writing if not WRITES & calls_of(route)] == []

    def test_each_that_shows_rows_needs_the_right_to_read_what_tasks_pass_on(self, made: FastAPI) -> None:
        with_rows = {route.path.rpartition("/")[2] for route in routes_of(made) if rights.READS_ROWS in calls_of(route)}

        assert with_rows == {"dead", "samples", "distributions", "previews", "preview"}

    def test_the_check_bites(self) -> None:
        open_door = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

        @open_door.get("/open")
        def unguarded() -> None: ...

        [route] = routes_of(open_door)
        assert calls_of(route) & RIGHTS == set()
        with pytest.raises(AssertionError, match="has no dependencies"):
            list(routes_of(FastAPI()))


def routes_of(made: FastAPI) -> Iterator[APIRoute]:
    for route in made.routes:
        assert isinstance(route, APIRoute), f"{route} has no dependencies"
        yield route


def calls_of(route: APIRoute) -> set[Any]:
    return {each.call for each in route.dependant.dependencies}


class TestRights:
    def test_nobody_sees_anything_without_signing_in(self, browser: TestClient, night: ChatRun) -> None:
        browser.cookies.clear()

        for path in ("/nightshift/", page_of(night), page_of(night, "/dead"), "/nightshift/static/style.css"):
            reply = browser.get(path)
            assert (reply.status_code, "tickets" in reply.text) == (401, False)

    def test_a_list_has_the_jobs_of_dags_that_a_user_may_read(self, browser: TestClient, store: MemoryStore) -> None:
        for name in ("tickets", "secrets"):
            a_chat_run(store, job=name)

        page = browser.get("/nightshift/").text

        assert ("tickets" in page, "secrets" in page) == (True, False)

    def test_a_night_without_rows_is_not_one_that_has_none_yet(self, browser: TestClient, store: MemoryStore) -> None:
        empty = a_chat_run(store, rows=0)
        empty.seal()
        record(store, empty.run, Ending("published", "2026-11-22T03:00:00Z", "scheduled"))

        page, listed = (browser.get(path).text for path in (page_of(empty), "/nightshift/list"))

        assert "no rows for this day: published an empty partition" in page
        assert "no rows yet" not in page + listed

    def test_a_jobs_page_has_its_runs_alone(self, browser: TestClient, store: MemoryStore) -> None:
        for name in ("tickets", "others", "secrets"):
            a_chat_run(store, job=name)

        page = browser.get("/nightshift/jobs/tickets").text

        assert ("/runs/tickets/" in page, "/runs/others/" in page) == (True, False)
        assert browser.get("/nightshift/jobs/secrets").status_code == 403
        assert "/runs/" not in browser.get("/nightshift/list?job=secrets").text

    def test_a_run_of_another_dag_is_refused_whether_it_is_there_or_not(self, browser: TestClient, store: MemoryStore) -> None:
        there = a_chat_run(store, job="secrets")

        replies = [browser.get(f"/nightshift/runs/{path}") for path in (there.run.prefix, f"secrets/2026-01-01/{'0' * 16}")]

        assert [reply.status_code for reply in replies] == [403, 403]
        assert replies[0].text == replies[1].text

    @pytest.mark.parametrize(
        "path",
        ["tickets/../secrets", "~/2026-11-20/0123456789abcdef", "tickets/2026-11-20/..%2F..%2Fx", "tickets/x/1", "%2e%2e/1/2"],
    )
    def test_an_address_leads_nowhere_else(self, browser: TestClient, night: ChatRun, path: str) -> None:
        assert browser.get(f"/nightshift/runs/{path}").status_code in (403, 404)


class TestWrites:
    def test_without_a_token_nothing_is_done(self, browser: TestClient, night: ChatRun, store: MemoryStore) -> None:
        reply = browser.post(page_of(night, "/pause"))

        assert reply.status_code == 403
        assert pauses.newest(store, night.run) is None

    @pytest.mark.parametrize("token", ["x", tokens.token_for("somebody else")], ids=["no token", "another user"])
    def test_a_token_of_somebody_else_is_none(self, browser: TestClient, night: ChatRun, token: str) -> None:
        assert browser.post(page_of(night, "/pause"), headers={tokens.HEADER: token}).status_code == 403

    def test_an_old_token_is_none(self, browser: TestClient, night: ChatRun, monkeypatch: pytest.MonkeyPatch) -> None:
        token = token_in(browser.get(page_of(night)).text)
        monkeypatch.setattr(tokens, "MOST_S", -1)

        assert browser.post(page_of(night, "/pause"), headers=token).status_code == 403

    def test_the_page_has_one_that_pauses_and_resumes(self, browser: TestClient, night: ChatRun, store: MemoryStore) -> None:
        token = token_in(browser.get(page_of(night)).text)

        reply = browser.post(page_of(night, "/pause"), headers=token)

        request = pauses.newest(store, night.run)
        assert request is not None
        assert (request.paused, request.by, "paused by reader" in reply.text) == (True, "reader", True)
        browser.post(page_of(night, "/resume"), headers=token)
        assert not getattr(pauses.newest(store, night.run), "paused", True)

    @pytest.mark.parametrize("action", ["pause", "resume"])
    @pytest.mark.parametrize(
        ("address", "status"),
        [
            ("tickets/2030-01-01T0710/0123456789abcdef", 409),
            ("tickets/2026-11-20/0123456789abcdef-g2", 409),
            ("tickets/2026-11-20/0123456789abcdef-g99999999999999999999", 404),
            ("tickets/2026-11-20/0123456789abcdef-g1", 404),
            ("tickets/2026-11-20/0123456789abcdef-g0", 404),
        ],
    )
    def test_a_run_that_is_not_there_is_not_paused_and_nothing_is_left(
        self, browser: TestClient, night: ChatRun, store: MemoryStore, action: str, address: str, status: int
    ) -> None:
        token = token_in(browser.get(page_of(night)).text)
        before = [meta["path"] for meta in obstore.list(store).collect()]

        reply = browser.post(f"/nightshift/runs/{address}/{action}", headers=token)

        assert (reply.status_code, "Workers" in reply.text) == (status, False)
        assert [meta["path"] for meta in obstore.list(store).collect()] == before

    def test_a_sealed_run_is_not_paused(self, browser: TestClient, night: ChatRun, store: MemoryStore) -> None:
        token = token_in(browser.get(page_of(night)).text)
        night.seal()

        reply = browser.post(page_of(night, "/pause"), headers=token)

        assert (reply.status_code, "is sealed: nothing is left to compute" in reply.text) == (409, True)
        assert pauses.newest(store, night.run) is None

    def test_one_who_may_only_read_is_refused(self, browser: TestClient, store: MemoryStore) -> None:
        run = a_chat_run(store, job="others")
        page = browser.get(page_of(run)).text

        assert "Pause" not in page
        assert browser.post(page_of(run, "/pause"), headers=token_in(page)).status_code == 403

    def test_a_redo_asks_airflow_for_a_dag_run(
        self, browser: TestClient, night: ChatRun, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[Any] = []

        def start(*what: Any) -> str:
            asked.append(what)
            return "manual__7"

        monkeypatch.setattr(dag_runs, "start", start)
        token = token_in(browser.get(page_of(night)).text)

        actions = ("redo", "redo?how=corrected", "republish")
        replies = [browser.post(page_of(night, f"/{action}"), headers=token) for action in actions]

        assert [("/dags/tickets/runs/manual__7" in reply.text) for reply in replies] == [True] * 3
        assert asked == [
            ("tickets", {"partition": "2026-11-20", "redo": "dead_letters"}, "reader"),
            ("tickets", {"partition": "2026-11-20", "redo": "corrected"}, "reader"),
            ("tickets", {"partition": "2026-11-20", "republish": "0123456789abcdef"}, "reader"),
        ]

    def test_a_preview_needs_the_right_on_the_dag_that_makes_it(
        self, browser: TestClient, night: ChatRun, monkeypatch: pytest.MonkeyPatch, users: Users
    ) -> None:
        asked: list[Any] = []

        def start(*what: Any) -> str:
            asked.append(what)
            return "manual__8"

        monkeypatch.setattr(dag_runs, "start", start)
        token = token_in(browser.get(page_of(night)).text)

        refused = browser.post("/nightshift/jobs/tickets/preview?partition=2026-11-20", headers=token)
        assert (refused.status_code, asked, "Try 20 rows" in browser.get("/nightshift/jobs/tickets/previews").text) == (
            403,
            [],
            False,
        )

        users.edits.add("nightshift_preview")
        assert "Try 20 rows" in browser.get("/nightshift/jobs/tickets/previews").text
        assert browser.post("/nightshift/jobs/tickets/preview?partition=2026-11-20", headers=token).status_code == 200
        assert asked == [("nightshift_preview", {"job": "tickets", "rows": 20, "partition": "2026-11-20"}, "reader")]

    def test_each_is_asked_for_before(self, browser: TestClient, night: ChatRun) -> None:
        for action in ("pause", "resume", "redo", "republish"):
            assert f'hx-post="{page_of(night)}/{action}"' in browser.get(page_of(night, f"/ask/{action}")).text
        assert f'hx-post="{page_of(night)}/redo?how=corrected"' in browser.get(page_of(night, "/ask/redo")).text
        assert browser.get(page_of(night, "/ask/else")).status_code == 422

    def test_enter_on_a_question_does_nothing(self, browser: TestClient, night: ChatRun) -> None:
        """Its focus stands on Cancel: a second Enter does not start what the first one asked about."""
        asked = [page_of(night, f"/ask/{action}") for action in ("pause", "resume", "redo", "republish")]
        for question in (*asked, "/nightshift/jobs/tickets/ask/preview"):
            buttons = re.findall("<button[^>]*>", browser.get(question).text)
            assert [each for each in buttons if "autofocus" in each] == [each for each in buttons if "data-close" in each]
            assert len(buttons) > 1


class TestPages:
    def test_a_failed_night_says_why_and_offers_a_redo(self, browser: TestClient, night: ChatRun) -> None:
        page = browser.get(page_of(night)).text

        assert "The task seal failed" in page
        assert "Redo dead letters" in page
        assert 'hx-trigger="every' not in page, "nothing changes any more"

    def test_texts_of_rows_are_texts(self, browser: TestClient, night: ChatRun) -> None:
        """Prompts, answers, keys and errors may hold anything; the policy forbids scripts besides."""
        for rest in (
            "",
            "/now",
            "/dead",
            "/samples",
            "/distributions",
            f"/dead?search={HOSTILE}",
            "/work",
            "/ask/redo",
        ):
            reply = browser.get(page_of(night, rest))
            assert reply.status_code == 200
            assert "<script>alert" not in reply.text
            assert "<img" not in reply.text
            assert "script-src 'self'" in reply.headers["content-security-policy"]
            assert reply.headers["cache-control"] == "no-store", "no browser keeps prompts and answers"
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in browser.get(page_of(night, "/samples")).text
        assert "7*7" in browser.get(page_of(night, "/samples")).text

    def test_an_engine_that_cannot_start_is_heard(self, browser: TestClient, store: MemoryStore) -> None:
        made = a_chat_run(store, rows=40, chunk_rows=10)
        words = LastWords("server", 1, "Error", 3, "2026-11-21T01:10:00+00:00", HOSTILE, ("Traceback", HOSTILE))
        since = "2026-11-21T01:05:00+00:00"
        pod = PodNow("tickets-0", 0, Stage.WEIGHTS, since, Acts.AUTHOR, restarts=3, words=words)
        save_now(store, made.run, JobSetNow("tickets", since, 2, pods=(pod,)))

        page = browser.get(page_of(made, "/work")).text

        assert "who wrote the job" in page
        assert "Last words of server" in page
        assert "&lt;script&gt;alert(1)" in page
        assert "<script>" not in page

    @pytest.mark.parametrize(("other", "shown"), [("others", True), ("secrets", False)])
    def test_a_preview_is_shown_to_those_who_may_read_both_jobs(
        self, browser: TestClient, night: ChatRun, store: MemoryStore, other: str, shown: bool
    ) -> None:
        save(store, a_preview("tickets", other))

        page = browser.get("/nightshift/jobs/tickets/previews").text

        assert ("of 1 changed" in page, "<ins>&lt;script&gt;" in page) == (shown, shown)
        assert "<script>" not in page

    def test_runs_are_searched_and_filtered_beyond_the_first_page(
        self, browser: TestClient, night: ChatRun, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("nightshift.status.runs.Runs.page.__kwdefaults__", {"jobs": None, "after": None, "count": 1})
        for day in ("2026-11-01", "2026-11-02"):
            record(store, a_chat_run(store, partition=day).run, Ending("failed", "2099-01-01T00:00:00+00:00", "d1", error="x"))

        def days(query: str) -> list[str]:
            return re.findall(r"<td>(2026-\d\d-\d\d)<div", browser.get(f"/nightshift/{query}").text)

        assert set(days("?state=failed")) == {"2026-11-01", "2026-11-02", night.run.partition}
        assert set(days("?search=TICKETS+2026-11-0&state=attention")) == {"2026-11-01", "2026-11-02"}
        assert days("list?search=2026-11-01") == ["2026-11-01"]
        assert "There are no such runs" in browser.get("/nightshift/?search=nothing").text

    def test_dead_letters_by_reason_and_searched(self, browser: TestClient, night: ChatRun) -> None:
        found = browser.get(page_of(night, "/dead")).text

        assert "bad input 4" in found
        assert found.count("row 3 has no text") == 1
        assert "row 13 has no text" not in browser.get(page_of(night, "/dead?search=row+3+has")).text
        assert "No dead letter has that" in browser.get(page_of(night, "/dead?reason=timeout")).text

    def test_a_night_that_stopped_early_has_not_tried_all_rows(self, browser: TestClient, store: MemoryStore) -> None:
        made = a_chat_run(store, rows=60, chunk_rows=7)
        for number in range(6):
            made.commit(number, lambda row: None if row % 5 == 3 else "spam")
        assert "8 so far; 18 rows still to come" in browser.get(page_of(made, "/dead")).text

        record(store, made.run, Ending("failed", "2099-01-01T00:00:00+00:00", "d1", task="infer", error="x", dead_letters=8))
        facts.of[made.run]._made = None  # Looked at again, without the wait.
        found = browser.get(page_of(made, "/dead")).text

        assert "8 so far; 18 rows were not tried" in found
        assert "all 8" not in found

    def test_the_dead_letters_of_a_whole_run_are_all(self, browser: TestClient, night: ChatRun) -> None:
        found = browser.get(page_of(night, "/dead")).text

        assert ("all 4" in found, "so far" in found) == (True, False)

    def test_a_published_run_has_the_rate_that_the_command_has(self, browser: TestClient, store: MemoryStore) -> None:
        made = a_chat_run(store, rows=40, chunk_rows=10)
        for number in range(4):
            made.commit(number)
        profile = {"profile": "cpu", "rows": 40, "work_s": 16.0, "workers": 1, "attempts": 1, "input_tokens": 480}
        profile |= {"output_tokens": 200, "start_up_s": {}, "ended": {}, "rows_unused": 0, "rows_lost": 0}
        made.seal(measured={"profiles": [profile], "not_seen": 0})
        record(store, made.run, Ending("published", "2026-11-21T02:00:00+00:00", "d1", dead_letters=0))

        page = browser.get(page_of(made)).text

        assert "2.5 rows/s" in "\n".join(text_of(facts.of[made.run].look()).splitlines())
        assert "<b>2.50 rows/s</b><span>by each worker at work" in page

    def test_a_part_that_is_not_new_is_not_sent(self, browser: TestClient, store: MemoryStore) -> None:
        made = a_chat_run(store, rows=40, chunk_rows=10)
        made.commit(0)
        page = browser.get(page_of(made)).text
        seen = re.search(r'"seen": "([0-9a-f]{16})"', page)
        assert seen

        assert browser.get(page_of(made, f"/now?seen={seen[1]}")).status_code == 204
        reply = browser.get(page_of(made, "/now?seen=0"))
        assert (reply.status_code, 'hx-trigger="every 5s"' in reply.text) == (200, True)

    def test_what_is_wrong_is_said_in_words(self, browser: TestClient, night: ChatRun, monkeypatch: pytest.MonkeyPatch) -> None:
        other = browser.get(f"/nightshift/runs/tickets/2026-11-20/{'f' * 16}")
        assert (other.status_code, "There is no run" in other.text) == (404, True)

        monkeypatch.setattr(RunLook, "look", lambda self: fail(StoreUnavailable("read spec.json: no route to host")))
        silent = browser.get(page_of(night))
        assert (silent.status_code, "no route to host" in silent.text) == (503, True)
        part = browser.get(page_of(night, "/now"), headers={"HX-Request": "true"})
        assert (part.status_code, "<html" in part.text) == (503, False)

    def test_a_deployment_without_a_bucket_is_told_so(self, browser: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("NIGHTSHIFT_BUCKET")
        monkeypatch.setattr(runs, "bucket", lambda: bucket.settings())

        reply = browser.get("/nightshift/")

        assert (reply.status_code, "NIGHTSHIFT_BUCKET is not set" in reply.text) == (503, True)

    def test_files_are_ours_and_have_their_licences(self, browser: TestClient) -> None:
        for name in ("app.js", "style.css", "icon.svg", "LICENSE.htmx.txt", "LICENSE.idiomorph.txt"):
            reply = browser.get(files.static(name))
            assert (reply.status_code, "max-age" in reply.headers["cache-control"]) == (200, True)
        assert browser.get("/nightshift/static/..%2Fapp.py").status_code == 404
        assert browser.get("/nightshift/static/app.py").status_code == 404

    def test_no_page_names_another_host(self) -> None:
        for folder in ("templates", "static"):
            for file in (files.FOLDER.parent / folder).iterdir():
                hosts = set(re.findall(r"https?://[^\s\"'`)]+", file.read_text())) - {"http://www.w3.org/2000/svg"}
                assert file.name.endswith(".min.js") or not hosts, file


def fail(error: Exception) -> Any:
    raise error


class TestDagRuns:
    """With Airflow's tables in memory."""

    @pytest.fixture(autouse=True)
    def airflow(self, browser: TestClient, monkeypatch: pytest.MonkeyPatch) -> Engine:
        engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
        import_all_models()  # type: ignore[no-untyped-call]
        DagRun.metadata.create_all(engine)
        monkeypatch.setattr("airflow.utils.session.create_session", lambda scoped: Session(engine))
        for name, real in IN_AIRFLOW.items():
            monkeypatch.setattr(dag_runs, name, real)
        return engine

    def worked(
        self, airflow: Engine, number: int, hour: int, prefix: str, *, dag_id: str = "tickets", run_id: str = "", **tasks: str
    ) -> None:
        """A DAG run, by default manual__NUMBER of the job tickets, whose task plan has passed on the run with this prefix."""
        of_it = {"dag_id": dag_id, "run_id": run_id or f"manual__{number}"}
        at = datetime(2026, 11, 21, hour, tzinfo=UTC)
        with Session(airflow) as session:
            session.execute(
                insert(DagRun).values(
                    id=number, state=tasks["audit"], start_date=at, run_after=at, run_type="manual", clear_number=0, **of_it
                )
            )
            for task, state in {"plan": "success", **tasks}.items():
                session.execute(
                    insert(TaskInstance).values(task_id=task, state=state, map_index=-1, pool="p", pool_slots=1, **of_it)
                )
            passed = {"run_prefix": prefix, "rows": 40}
            session.execute(
                insert(XComModel).values(dag_run_id=number, task_id="plan", key="return_value", value=passed, **of_it)
            )
            session.commit()

    def test_the_one_that_worked_on_a_run_last_is_shown(self, browser: TestClient, store: MemoryStore, airflow: Engine) -> None:
        """Not the one that opened it, and failed; that one is named. Runs with a like id, and of other jobs, have their own."""
        made = a_chat_run(store, rows=40, chunk_rows=10, opened_by="manual__1")
        failed = {"infer": "failed", "seal": "upstream_failed", "audit": "failed"}
        repaired = {"infer": "success", "seal": "success", "audit": "success"}
        self.worked(airflow, 1, 5, made.run.prefix, **failed)
        self.worked(airflow, 2, 7, made.run.prefix, **repaired)
        self.worked(airflow, 3, 6, made.run.prefix, **failed)
        self.worked(airflow, 4, 8, made.run.prefix + "-g2", **failed)
        self.worked(airflow, 5, 9, made.run.prefix.replace("tickets", "secrets"), **failed)

        page = browser.get(page_of(made)).text

        assert "/dags/tickets/runs/manual__2/tasks/infer" in page
        assert '<a data-outside href="/dags/tickets/runs/manual__2">DAG run</a>' in page
        assert "upstream failed" not in page
        others = page.partition("Other DAG runs of this run")[2].partition("</p>")[0]
        assert re.findall("manual__[0-9]</a> [(]failed", others) == ["manual__3</a> (failed", "manual__1</a> (failed"]
        assert re.search("manual__[45]", page) is None

        came_from = browser.get(page_of(made, "?dag_run_id=manual__1")).text
        assert "/dags/tickets/runs/manual__1/tasks/infer" in came_from
        assert "manual__2</a> (success" in came_from

    def test_the_tasks_of_another_dag_at_the_same_time_are_not_its_own(self, airflow: Engine) -> None:
        """Airflow names scheduled DAG runs by their time alone."""
        name = "scheduled__2026-11-21T00:00:00+00:00"
        for number, (dag, state) in enumerate((("others", "failed"), ("tickets", "success"), ("secrets", "failed"))):
            prefix = f"{dag}/2026-11-20/{'0' * 16}"
            self.worked(airflow, number, 5, prefix, dag_id=dag, run_id=name, infer=state, audit=state)

        night = dag_runs.night("tickets", name)

        assert night is not None
        assert [(task.name, task.state) for task in night.tasks] == [(each, "success") for each in ("plan", "infer", "audit")]
        assert (night.state, night.run and night.run.job) == ("success", "tickets")

    def dag(
        self,
        airflow: Engine,
        dag_id: str,
        *,
        paused: bool = False,
        due: datetime | None = None,
        tags: tuple[str, ...] = ("nightshift",),
    ) -> None:
        with Session(airflow) as session:
            session.execute(
                insert(DagModel).values(
                    dag_id=dag_id,
                    is_paused=paused,
                    is_stale=False,
                    next_dagrun_create_after=due,
                    bundle_name="dags",
                    max_active_tasks=1,
                    max_consecutive_failed_dag_runs=0,
                    has_task_concurrency_limits=False,
                )
            )
            session.execute(insert(DagTag), [{"name": tag, "dag_id": dag_id} for tag in tags])
            session.commit()

    @pytest.mark.parametrize("action", ["redo", "republish", "preview"])
    def test_a_dag_that_is_paused_is_not_asked_for_a_run(
        self, browser: TestClient, night: ChatRun, airflow: Engine, users: Users, action: str
    ) -> None:
        users.edits.add("nightshift_preview")
        asked = "nightshift_preview" if action == "preview" else "tickets"
        self.dag(airflow, asked, paused=True)
        token = token_in(browser.get(page_of(night)).text)
        where = "/nightshift/jobs/tickets/preview" if action == "preview" else page_of(night, f"/{action}")

        reply = browser.post(where, headers=token)

        assert reply.status_code == 409
        assert f"The DAG {asked} is paused in Airflow, so a run of it would wait for ever. Unpause it first." in reply.text
        with Session(airflow) as session:
            assert session.query(DagRun).count() == 0

    def test_nights_without_a_run_are_seen(self, browser: TestClient, airflow: Engine, users: Users) -> None:
        """One that failed in its task plan, with its error; a paused DAG, once; nothing of a job that one may not read, and of
        what is none."""
        self.dag(airflow, "tickets")
        self.worked(airflow, 1, 5, "", plan="failed", audit="failed")
        with Session(airflow) as session:
            of_it = {"dag_id": "tickets", "run_id": "manual__1", "dag_run_id": 1, "task_id": "plan"}
            session.execute(insert(XComModel).values(key="error", value=f"No table {HOSTILE}", **of_it))
            session.commit()
        self.dag(airflow, "others", paused=True, due=datetime(2999, 1, 1, tzinfo=UTC), tags=("nightshift", "team-a"))
        self.dag(airflow, "secrets", paused=True, due=datetime(2999, 1, 1, tzinfo=UTC))
        self.dag(airflow, "foreign", paused=True, due=datetime(2999, 1, 1, tzinfo=UTC), tags=("team-a",))
        users.reads.add("foreign")

        for path in ("/nightshift/", "/nightshift/list"):
            page = browser.get(path).text
            assert "The last night of tickets failed in its task plan: No table" in page
            assert "/dags/tickets/runs/manual__1" in page
            assert page.count("The DAG others is paused in Airflow: no night of it begins until you unpause it there.") == 1
            assert ("secrets" in page, "foreign" in page, "<script>alert" in page) == (False, False, False)
        assert "tickets failed in its task plan" in browser.get("/nightshift/jobs/tickets").text
        assert "failed: No table" in browser.get("/nightshift/dag-runs/tickets?dag_run_id=manual__1").text
        assert "tickets failed in its task plan" not in browser.get("/nightshift/jobs/others").text

        self.worked(airflow, 2, 7, "tickets/2026-11-20/" + "0" * 16, audit="failed")
        assert "failed in its task plan" not in browser.get("/nightshift/").text, "a later night has a run"


class TestAddresses:
    def test_below_a_path_of_airflows_address(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://example.com/team/airflow/")

        assert address("/") == "/team/airflow/nightshift/"
        assert run_address("a/b/c", "/now") == "/team/airflow/nightshift/runs/a/b/c/now"
        assert dag_run_address("d", "manual__2026-11-20T00:00:00+00:00", "seal") == (
            "/team/airflow/dags/d/runs/manual__2026-11-20T00%3A00%3A00%2B00%3A00/tasks/seal"
        )


class TestKept:
    def test_the_newest_are_kept_and_each_is_made_once(self) -> None:
        made: list[int] = []

        def make(key: int) -> int:
            made.append(key)
            return key

        kept = bucket.Kept[int, int](make, most=2)

        assert [kept[key] for key in (1, 2, 1, 3, 1, 2)] == [1, 2, 1, 3, 1, 2]
        assert made == [1, 2, 3, 2]


class TestWords:
    @pytest.mark.parametrize(
        ("said", "expected"),
        [
            (words.percent(0.99999), "99.9%"),
            (words.percent(None), "–"),
            (words.number(1234.5), "1,234"),
            (words.number(0.1234), "0.123"),
            (words.number(3.0), "3"),
            (words.duration(None), "not known yet"),
            (words.duration(7_260), "2 h 1 min"),
            (words.duration(-3), "0 s"),
            (words.when("2026-11-20T01:00:00+02:00"), "2026-11-19 23:00 UTC"),
            (words.when("soon"), "soon"),
            (words.FILTERS["noun"](1, "row"), "1 row"),
            (words.text({"a": "ä"}), '{\n "a": "ä"\n}'),
            (words.text([0.0625] * 384), "0.0625, 0.0625, 0.0625, 0.0625, … (384 numbers)"),
            (words.text([*[-1.5] * 32, "... 1,352 more"]), "-1.5, -1.5, -1.5, -1.5, … (1,384 numbers)"),
            (words.text({"v": [1, 2], "a": ["x", True]}), '{\n "v": "[1, 2]",\n "a": [\n  "x",\n  true\n ]\n}'),
            (words.one_line({"id": 3}), "3"),
            (words.one_line({"id": 3, "lang": "de"}), "id 3, lang de"),
        ],
    )
    def test_as_people_read_them(self, said: str, expected: str) -> None:
        assert said == expected


class TestPlots:
    def test_two_histograms_have_one_axis_and_one_scale(self) -> None:
        now = {"of": "characters", "least": 0.0, "most": 24.0, "mean": 12.0, "counts": [10] * 24}
        before = {"of": "characters", "least": 0.0, "most": 12.0, "mean": 6.0, "counts": [20] * 12}

        found = plots.histograms(now, before)

        # The earlier answers lie in half of the axis, so they are twice as dense there.
        assert {bar.height for bar in found.bars} == {plots.HEIGHT / 2}
        heights = [plots.HEIGHT - float(point.split(",")[1]) for point in found.line.split()]
        assert heights == pytest.approx([plots.HEIGHT] * 24 + [0] * 24)

    def test_one_value_is_one_bar(self) -> None:
        found = plots.histograms({"of": "norm", "least": 1.0, "most": 1.0, "mean": 1.0, "counts": [7]}, None)

        assert ([(bar.x, bar.height) for bar in found.bars], found.line) == ([(0, plots.HEIGHT)], "")

    @pytest.mark.parametrize(
        ("least", "most", "ends"),
        [
            (0.99999994, 1.0000001, ("all 1",)),
            (1.0, 1.0004, ("1.0000", "1.0004")),
            (0.998, 1.0, ("0.998", "1")),
            (3.0, 24.0, ("3", "24")),
        ],
    )
    def test_the_ends_of_an_axis_differ(self, least: float, most: float, ends: tuple[str, ...]) -> None:
        now = {"of": "norm", "least": least, "most": most, "mean": least, "counts": [3, 4]}

        found = plots.histograms(now, None)

        assert found.ends == ends
        assert len(found.bars) == (1 if len(ends) == 1 else plots.BINS)

    def test_labels_that_are_new_or_gone(self) -> None:
        now = [{"value": "spam", "count": 3, "share": 0.75}, {"value": "new", "count": 1, "share": 0.25}]

        found = plots.labels(now, [{"value": "spam", "share": 0.5}, {"value": "gone", "share": 0.5}])

        assert [(each.value, each.share, each.before) for each in found] == [
            ("spam", 0.75, 0.5),
            ("new", 0.25, 0.0),
            ("gone", 0.0, 0.5),
        ]
        assert [each.before for each in plots.labels(now, None)] == [None, None]


def test_a_component_that_shows_no_pages_does_not_import_them() -> None:
    """Each process of a task imports the plugin."""
    code = "import nightshift.plugin, sys; print('fastapi' in sys.modules, 'nightshift.plugin.pages.app' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_with_nightshift(), cwd="/"
    )

    assert done.stdout.split()[-2:] == ["False", "False"]


def _with_nightshift() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3] / "plugins")}


async def test_what_airflow_mounts_makes_the_pages_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    async def page(scope: Any, receive: Any, send: Any) -> None:
        made.append(scope["path"])

    def make() -> Any:
        made.append("made")
        return page

    monkeypatch.setattr("nightshift.plugin.mounted._made", make)
    mounted = Mounted()
    for path in ("/a", "/b"):
        await mounted({"path": path}, None, None)  # type: ignore[arg-type]

    assert made == ["made", "/a", "/b"]


async def test_few_requests_are_worked_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket that does not answer must not take all threads of Airflow's API server."""
    at_once: list[int] = [0]
    most: list[int] = [0]

    async def page(scope: Any, receive: Any, send: Any) -> None:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        await asyncio.sleep(0)
        at_once[0] -= 1

    monkeypatch.setattr("nightshift.plugin.mounted._made", lambda: page)
    mounted = Mounted()
    await asyncio.gather(*(mounted({}, None, None) for _ in range(3 * AT_ONCE)))  # type: ignore[arg-type]

    assert most == [AT_ONCE]
