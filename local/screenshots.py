"""Pictures of Airflow's pages for the README: ``python -m local.screenshots [--state DIR] [--out DIR]``.

Needs a stack that is up (``make up``) with a night that succeeded (``make demo``). Runs in the test environment, whose
playwright brings no browser: it drives the system's Chromium with a fresh profile. Changes nothing: the trigger form is
filled in and left. Exit codes: 0, 1 if a picture cannot be taken.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from playwright.sync_api import Error, Locator, Page, sync_playwright

from local.chromium import QUIET, NothingToShow, chromium
from local.demo.airflow_api import AirflowApi
from local.stack import Stack, StackError
from local.stack.folder import ROOT
from local.stack.stack import DEFAULT_STATE

DAG = "package-embeddings"
DAY = "2026-11-19"
TASKS = 7
PATIENCE_MS = 30_000
SETTLED_MS = 2_000
LOOKS = 20


def take(stack: Stack, out: Path) -> None:
    """Writes the pictures as PNG files into `out`. Raises NothingToShow, StackError, playwright's Error."""
    airflow = stack.airflow()
    api = AirflowApi(airflow["url"], airflow["user"], airflow["password"])
    done = [run["dag_run_id"] for run in api.dag_runs(DAG) if run["state"] == "success"]
    if not done:
        raise NothingToShow("No night has succeeded in this stack yet: make demo")
    out.mkdir(parents=True, exist_ok=True)
    # Chromium refuses to run its sandbox as root.
    arguments = [*QUIET, "--no-sandbox"] if os.geteuid() == 0 else list(QUIET)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), headless=True, args=arguments)
        page = browser.new_page(base_url=airflow["url"], color_scheme="light", reduced_motion="reduce")
        page.set_default_timeout(PATIENCE_MS)
        page.goto("/")
        page.get_by_label("Username").fill(airflow["user"])
        page.get_by_label("Password").fill(airflow["password"])
        page.get_by_role("button", name="Sign in").click()
        page.get_by_text("Manage Pools").wait_for()
        _dag(page, out)
        # Before the run's graph: Airflow then shows that beside each page, and no grid.
        _nightshift(page, f"/dags/{DAG}/runs/{done[0]}/plugin/nightshift-run", out)
        _run(page, f"/dags/{DAG}/runs/{done[0]}", out)
        if api.import_errors():
            _import_errors(page, out)
        browser.close()


def _dag(page: Page, out: Path) -> None:
    """The DAG's page, its documentation, and its trigger form, filled in."""
    _open(page, f"/dags/{DAG}", 1280, 800)
    page.locator("canvas[role=img]").last.wait_for()
    _picture(page, out / "airflow-dag.png")

    page.get_by_test_id("markdown-button").click()
    words = page.get_by_role("dialog")
    words.get_by_text("Source", exact=True).wait_for()
    _enlarge(words, 860, 700)
    _picture(page, out / "airflow-docs.png")

    _open(page, f"/dags/{DAG}", 1280, 960)
    page.get_by_test_id("trigger-dag-button").click()
    form = page.get_by_role("dialog")
    form.locator("#element_partition").fill(DAY)
    form.locator("[id='switch:element_fresh']").click()
    form.get_by_role("heading").first.click()  # takes the focus, and its frame, off the switch
    _picture(page, out / "airflow-trigger.png")


def _run(page: Page, address: str, out: Path) -> None:
    """A finished run: its tasks, their times, their graph."""
    _open(page, address, 1520, 850)
    page.get_by_text("PlanOperator").wait_for()
    _picture(page, out / "airflow-run.png")

    _open(page, address, 1280, 540)
    page.get_by_role("button", name="Show Gantt").click()
    page.get_by_role("button", name="Collapse Details Panel").click()
    # Once the panel is gone, the rows go, and come again.
    page.wait_for_timeout(SETTLED_MS)
    page.locator("[data-task-id=audit] a:not([data-testid])").wait_for()
    _picture(page, out / "airflow-gantt.png")

    # So high that the map in the corner hides no task.
    page.set_viewport_size({"width": 1280, "height": 680})
    page.get_by_role("button", name="Show Graph").click()
    page.locator(".react-flow__node").filter(has_text="AuditOperator").get_by_test_id("state-badge").wait_for()
    page.get_by_role("button", name="Fit View").click()
    _picture(page, out / "airflow-graph.png")


def _nightshift(page: Page, address: str, out: Path) -> None:
    """Our own page of the same run, in Airflow's frame."""
    _open(page, address, 1280, 1000)
    frame = page.frame_locator("iframe")
    frame.locator("#distributions svg").first.wait_for()
    frame.locator("#dead p, #dead table").first.wait_for()
    _picture(page, out / "airflow-nightshift.png")


def _import_errors(page: Page, out: Path) -> None:
    """What Airflow shows for broken job files, if there are any."""
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto("/")
    page.get_by_role("button", name="Import Error").click()
    page.get_by_role("dialog").get_by_role("button", name="broken_jobs.py").click()
    _picture(page, out / "airflow-import-errors.png")


def _open(page: Page, address: str, width: int, height: int) -> None:
    """A page of the DAG, with its grid: the newest run's last task is there last."""
    page.set_viewport_size({"width": width, "height": height})
    page.goto(address)
    page.get_by_test_id("task-state-badge").nth(TASKS - 1).wait_for()


def _enlarge(dialog: Locator, width: int, height: int) -> None:
    """Pulls the corner of a dialog, as a user would."""
    box = dialog.bounding_box()
    assert box is not None, "a dialog that is shown has a box"
    mouse = dialog.page.mouse
    right, bottom = box["x"] + box["width"], box["y"] + box["height"]
    mouse.move(right - 4, bottom - 4)
    mouse.down()
    mouse.move(right - 4 + width - box["width"], bottom - 4 + height - box["height"], steps=4)
    mouse.up()


def _picture(page: Page, file: Path) -> None:
    """Takes the page once it is still: Airflow animates its charts and panels."""
    page.wait_for_load_state("networkidle")
    before, image = b"", page.screenshot(animations="disabled")
    for _ in range(LOOKS):
        if image == before:
            break
        before, image = image, page.screenshot(animations="disabled")
    file.write_bytes(image)
    print(f"{file}  {len(image) // 1000} kB", flush=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m local.screenshots", description=__doc__)
    parser.add_argument("--state", type=Path, default=DEFAULT_STATE, metavar="DIR", help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images", metavar="DIR", help="default: %(default)s")
    options = parser.parse_args(arguments)
    try:
        take(Stack.attach(options.state), options.out)
    except (NothingToShow, StackError, Error) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
