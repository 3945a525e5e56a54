"""The pages as people see them: in Airflow's frame, in Chromium, in a real Airflow with FAB's auth manager below a path."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, FrameLocator, Page, expect, sync_playwright

from local.chromium import QUIET, NothingToShow, chromium
from tests.integration.pages.conftest import Nights
from tests.integration.pages.server import PATH, ApiServer
from tests.integration.pages.test_rights import page_of

pytestmark = pytest.mark.integration

PATIENCE_MS = 120_000
expect.set_options(timeout=PATIENCE_MS)
PICTURES = os.environ.get("PAGES_PICTURES")
"""A folder for pictures, if a person wants to look at some."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        program = chromium()
    except NothingToShow as error:
        pytest.skip(str(error))
    with sync_playwright() as playwright:
        arguments = [*QUIET, "--no-sandbox"] if os.geteuid() == 0 else list(QUIET)
        made = playwright.chromium.launch(executable_path=program, headless=True, args=arguments)
        yield made
        made.close()


@pytest.fixture
def seat_for(browser: Browser, airflow: ApiServer) -> Iterator[Callable[..., Seat]]:
    """A user in front of a browser, until the test ends: a page that is left open goes on asking."""
    with ExitStack() as left:

        def sit(user: str, mode: str = "light") -> Seat:
            seat = Seat(browser, airflow, user, mode)
            left.callback(seat.page.context.close)
            return seat

        yield sit


class Seat:
    """A user in front of a browser. said: errors of scripts and of the policy for them."""

    def __init__(self, browser: Browser, airflow: ApiServer, user: str, mode: str = "light") -> None:
        context = browser.new_context(base_url=airflow.url, viewport={"width": 1280, "height": 900}, color_scheme="light")
        context.add_cookies([{"name": "_token", "value": airflow.token(user), "url": airflow.url}])
        context.add_init_script(f"localStorage.setItem('theme', {mode!r})")
        context.set_default_timeout(PATIENCE_MS)
        self.airflow = airflow
        self.page: Page = context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("console", lambda message: self.said.append(message.text) if message.type == "error" else None)
        self.page.on("request", lambda request: self.asked.append(request.url))

    def open(self, path: str) -> FrameLocator:
        """A page of Airflow; its frame."""
        self.page.goto(self.airflow.url + path)
        return self.page.frame_locator("iframe")

    def picture(self, name: str) -> None:
        if PICTURES:
            self.page.screenshot(path=str(Path(PICTURES) / f"{name}.png"), animations="disabled")

    def ours_said(self) -> list[str]:
        """Without what Airflow's own page says: it asks for things that a user with few rights may not see."""
        return [line for line in self.said if "nightshift" in line or "Content Security Policy" in line]


def test_from_the_red_square_to_the_reasons_in_two_clicks(
    seat_for: Callable[..., Seat], airflow: ApiServer, nights: Nights
) -> None:
    seat = seat_for("reader")
    seat.page.goto(f"{airflow.url}/dags/tickets/runs/manual__1")
    square = seat.page.locator("a[href*='/runs/manual__1/tasks/seal']").first
    square.wait_for()

    square.click()
    seat.page.locator("a[href$='/plugin/nightshift-task']").click()

    frame = seat.page.frame_locator("iframe")
    expect(frame.get_by_text("The task seal failed: 75 of 600 rows")).to_be_visible()
    expect(frame.get_by_role("button", name="bad input 75")).to_be_in_viewport()
    expect(frame.get_by_text("row 0 has no text")).to_be_visible()
    seat.picture("pages-failed")
    # What strangers wrote stayed text, the policy had nothing to forbid, and no other host was asked.
    samples = frame.locator("#samples")
    samples.scroll_into_view_if_needed()
    expect(samples.get_by_text("<script>document.title='taken'</script>").first).to_be_visible()
    assert "taken" not in seat.page.title()
    assert seat.ours_said() == []
    # Airflow's own page asks for its version beside its path, not below it.
    host = airflow.url.removesuffix(PATH)
    assert [url for url in seat.asked if not url.startswith((f"{host}/", "data:", "blob:"))] == []


def test_a_published_night_says_that_the_table_shows_it(
    seat_for: Callable[..., Seat], airflow: ApiServer, nights: Nights
) -> None:
    seat = seat_for("reader")
    frame = seat.open("/plugin/nightshift")
    frame.locator("a[href*='aaaaaaaaaaaaaaaa']").first.click()

    expect(frame.get_by_text("of 400, 100.0%")).to_be_visible()
    expect(frame.get_by_text("shown", exact=True).first).to_be_visible()
    expect(frame.get_by_role("img", name=re.compile("Distribution of")).first).to_be_visible()
    expect(frame.get_by_text(re.compile("^Reading"))).to_have_count(0)
    seat.picture("pages-published")


def test_dead_letters_are_searched_and_unfolded_by_the_keyboard(
    seat_for: Callable[..., Seat], airflow: ApiServer, nights: Nights
) -> None:
    seat = seat_for("reader")
    seat.page.goto(airflow.url + page_of(nights.failed))
    page = seat.page
    page.get_by_text("row 0 has no text").wait_for()

    page.get_by_label("Search").focus()
    page.keyboard.type("row 248")
    page.keyboard.press("Enter")

    expect(page.get_by_text("row 248 has no text")).to_be_visible()
    expect(page.get_by_text("row 0 has no text")).to_have_count(0)
    page.locator("summary", has_text="Prompt and row").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("Label this: text of row 248")).to_be_visible()


def test_a_working_night_moves_by_itself(seat_for: Callable[..., Seat], airflow: ApiServer, nights: Nights) -> None:
    """And what a user has unfolded stays as it is."""
    seat = seat_for("editor", mode="dark")
    frame = seat.open("/plugin/nightshift")
    frame.get_by_role("link", name="tickets").first.wait_for()
    seat.picture("pages-runs-dark")
    frame = seat.open("/dags/tickets/runs/manual__2/plugin/nightshift-run")
    expect(frame.get_by_text("of 2,000, 50.0%")).to_be_visible()
    expect(frame.locator("html")).to_have_attribute("data-theme", "dark")
    plot = frame.get_by_role("img", name=re.compile("Distribution of characters"))
    expect(plot).to_be_visible()
    expect(frame.get_by_text("the last run that was published before (400 answers")).to_be_visible()
    expect(frame.get_by_text(re.compile("from 8 of 10 committed chunks"))).to_be_visible()
    seat.picture("pages-working-dark")

    for number in range(10, 15):
        nights.working.commit(number, lambda row: "spam", attempt="tickets-0-1")

    expect(frame.get_by_text("of 2,000, 75.0%")).to_be_visible()
    # It asks again, and gets nothing if nothing is new.
    with seat.page.expect_response(lambda reply: "/work?" in reply.url and reply.status == 204):
        pass
    assert seat.ours_said() == []


def test_a_button_asks_first_and_airflows_page_opens_around_the_frame(
    seat_for: Callable[..., Seat], airflow: ApiServer, nights: Nights
) -> None:
    seat = seat_for("editor")
    frame = seat.open("/dags/tickets/runs/manual__1/plugin/nightshift-run")
    frame.get_by_role("button", name="Redo dead letters").click()
    dialog = frame.get_by_role("dialog")
    expect(dialog.get_by_text("Compute the rows without an answer?")).to_be_visible()
    seat.page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()

    frame.get_by_role("button", name="Redo dead letters").click()
    dialog.get_by_role("button", name="Redo corrected").click()

    expect(frame.get_by_text("Airflow has started a DAG run.")).to_be_visible()
    expect(dialog).to_be_hidden()
    frame.locator("#notice a").click()
    seat.page.wait_for_url(re.compile(re.escape(f"{PATH}/dags/tickets/runs/") + "(?!manual__1/)"))
    assert seat.ours_said() == []


def test_the_first_screen_of_10000_chunks(seat_for: Callable[..., Seat], airflow: ApiServer, large_night: str) -> None:
    """How fast it is, docs/operate/pages.md says."""
    seat = seat_for("reader")
    began = time.monotonic()

    seat.page.goto(f"{airflow.url}/nightshift/runs/{large_night}", wait_until="domcontentloaded")

    first_s = time.monotonic() - began
    expect(seat.page.get_by_text("of 1,000,000, 90.0%")).to_be_visible()
    expect(seat.page.get_by_text(re.compile("of 9,000 committed chunks; each look reads more"))).to_be_visible()
    expect(seat.page.get_by_text(re.compile("from 8 of 9,000 committed chunks"))).to_be_visible()
    seat.picture("pages-large")
    print(f"first screen of 10,000 chunks: {first_s:.2f} s")
