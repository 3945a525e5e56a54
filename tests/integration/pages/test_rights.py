"""Rights and tokens of the pages in a real Airflow below a path, with FAB's auth manager, as Cloud Composer has it."""

from __future__ import annotations

import json
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from local.environments import ROOT
from nightshift.plugin.pages.tokens import HEADER
from nightshift.run import pauses
from tests.chat_run import ChatRun
from tests.integration.pages.conftest import HOSTILE, Nights
from tests.integration.pages.server import PATH, ApiServer

pytestmark = pytest.mark.integration


IDLE_S = 11.0
"""After which FastAPI ends a thread."""


FORGETS_S = 90.0
"""Within which FAB's auth manager looks at a user's rights again."""


def page_of(run: ChatRun, rest: str = "") -> str:
    return f"/nightshift/runs/{run.run.prefix}{rest}"


def token_in(page: str) -> dict[str, str]:
    found = re.search(rf'"{HEADER}": "([^"]+)"', page)
    assert found, page
    return {HEADER: found[1]}


@pytest.mark.gate
def test_a_viewer_without_rights_on_a_dag_sees_nothing_of_it(airflow: ApiServer, nights: Nights) -> None:
    """And who has some sees what they give. One test, because an Airflow takes a minute to start."""
    who = {name: airflow.token(name) for name in ("nobody", "looker", "reader", "editor")}
    pages = {name: airflow.get("/nightshift/", cookie) for name, cookie in who.items()}

    assert {name: reply.status for name, reply in pages.items()} == dict.fromkeys(who, 200)
    assert [name for name, reply in pages.items() if "tickets" in reply.text] == ["looker", "reader", "editor"]
    assert [name for name, reply in pages.items() if "secrets" in reply.text] == []
    for rest in ("", "/now", "/dead", "/samples", "/distributions", "/ask/redo"):
        seen = {name: airflow.get(page_of(nights.failed, rest), cookie) for name, cookie in who.items()}
        rows = rest in ("/dead", "/samples", "/distributions")
        expected = {"nobody": 403, "looker": 403 if rows else 200, "reader": 200, "editor": 200}
        assert {name: reply.status for name, reply in seen.items()} == expected, rest
        assert "bad_input" not in seen["nobody"].text
        assert [airflow.get(page_of(nights.secret, rest), cookie).status for cookie in who.values()] == [403] * 4
        assert airflow.get(page_of(nights.failed, rest)).status == 401
    assert airflow.get(page_of(nights.failed, "/static/app.js")).status in (401, 404)

    # A write: not without a token, not with another one's, not without the right.
    token = token_in(airflow.get(page_of(nights.working), who["editor"]).text)
    others = token_in(airflow.get(page_of(nights.working), who["reader"]).text)
    for cookie, headers in ((who["editor"], {}), (who["editor"], others), (who["reader"], others), ("", token)):
        reply = airflow.get(page_of(nights.working, "/pause"), cookie, body="", headers=headers)
        assert reply.status in (401, 403)
    assert pauses.newest(nights.store, nights.working.run) is None
    for action, paused in (("pause", True), ("resume", False)):
        reply = airflow.get(page_of(nights.working, f"/{action}"), who["editor"], body="", headers=token)
        assert (reply.status, "by editor" in reply.text) == (200, True)
        request = pauses.newest(nights.store, nights.working.run)
        assert request is not None
        assert (request.paused, request.by) == (paused, "editor")


def test_the_view_of_a_dag_run_leads_to_its_run(airflow: ApiServer, nights: Nights) -> None:
    reader = airflow.token("reader")

    def at(dag_run: str, dag: str = "tickets") -> tuple[int, str]:
        reply = airflow.get(f"/nightshift/dag-runs/{dag}?dag_run_id={dag_run}", reader)
        return reply.status, reply.headers.get("location", reply.text)

    assert at("manual__1") == (303, f"{PATH}{page_of(nights.failed)}?dag_run_id=manual__1")
    assert "has opened no run yet" in at("manual__4")[1]
    assert "no run yet" in at("manual__5")[1], "the run of another job is not shown"
    assert at("manual__9")[0] == 404
    assert at("manual__3", "secrets")[0] == 403


def test_a_redo_is_a_dag_run_of_the_user(airflow: ApiServer, nights: Nights) -> None:
    editor = airflow.token("editor")
    token = token_in(airflow.get(page_of(nights.failed), editor).text)

    reply = airflow.get(page_of(nights.failed, "/redo"), editor, body="", headers=token)

    found = re.search(rf"{PATH}/dags/tickets/runs/([^\"]+)", reply.text)
    assert found, reply.text
    made = json.loads(airflow.get(f"/api/v2/dags/tickets/dagRuns/{found[1]}", editor).text)
    assert made["conf"] == {"partition": "2026-11-20", "redo": "dead_letters"}
    assert (made["triggering_user_name"], made["state"]) == ("editor", "queued")


def test_texts_of_rows_stay_texts(airflow: ApiServer, nights: Nights) -> None:
    reader = airflow.token("reader")
    for rest in ("", "/dead", "/samples", "/distributions"):
        reply = airflow.get(page_of(nights.failed, rest), reader)
        assert HOSTILE not in reply.text
        assert "script-src 'self'" in reply.headers["content-security-policy"]


def test_every_address_on_a_page_is_below_airflows_path(airflow: ApiServer, nights: Nights) -> None:
    reader = airflow.token("editor")
    for path in ("/nightshift/", page_of(nights.failed), page_of(nights.failed, "/dead"), page_of(nights.failed, "/ask/redo")):
        page = airflow.get(path, reader).text
        named = re.findall(r'(?:href|src|hx-get|hx-post)="(/[^"]*)"', page)
        assert named
        assert [each for each in named if not each.startswith(f"{PATH}/")] == []
        for each in {each for each in named if "/nightshift/" in each and "hx-post" not in each}:
            below = each.removeprefix(PATH).replace("&amp;", "&")
            assert airflow.get(below, reader).status in (200, 204, 405), each


def test_the_server_survives_the_end_of_the_threads_that_served_the_first_pages(airflow: ApiServer, nights: Nights) -> None:
    """FastAPI's threads end when they were idle for 10 s; the first one to import pyarrow 25 took the process along."""
    reader = airflow.token("reader")
    parts = ("", "/dead", "/samples", "/distributions")
    for run in (nights.failed, nights.published):
        with ThreadPoolExecutor(len(parts)) as pool:
            found = list(pool.map(lambda rest, run=run: airflow.get(page_of(run, rest), reader).status, parts))
        assert found == [200] * len(parts)
        time.sleep(IDLE_S)


def test_the_entry_in_the_navigation_needs_a_right_that_viewers_lack(airflow: ApiServer, nights: Nights) -> None:
    """Airflow's pages ask for all plugins to know the entries. The line of docs/operate/pages.md gives the right."""
    viewer = airflow.token("viewer")
    assert airflow.get(page_of(nights.failed, "/dead"), viewer).status == 200
    assert airflow.get("/api/v2/plugins", viewer).status == 403

    [line] = re.findall(r"`(airflow roles add-perms [^`]+)`", (ROOT / "docs" / "operate" / "pages.md").read_text())
    command = [airflow.command[0], "-m", *line.split()]
    done = subprocess.run(command, env=dict(airflow.variables), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]

    deadline = time.monotonic() + FORGETS_S
    while (found := airflow.get("/api/v2/plugins", viewer)).status != 200 and time.monotonic() < deadline:
        time.sleep(1)
    views = [
        view for each in json.loads(found.text)["plugins"] if each["name"] == "nightshift" for view in each["external_views"]
    ]
    assert {view["destination"] for view in views} == {"nav", "dag", "dag_run", "task_instance"}
