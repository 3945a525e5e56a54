"""Templates whose C code would never come back: they end with their row, in a process apart, and the driver lives on."""

from __future__ import annotations

import datetime
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nightshift import exits
from nightshift.planner.inputs import _prompts
from nightshift.tasks import NoProcess, _subprocess
from nightshift.tasks.base import BadInput, Text
from tests.builders import a_spec
from tests.integration.driver.canned import CannedEngine
from tests.integration.driver.runs import DriverProcess, PreparedRun
from tests.integration.driver.tables import prepare_table

pytestmark = [pytest.mark.integration, pytest.mark.gate]

ROWS = 20
HOSTILE = 7
LENGTH = 3_000_000
LONG = "a" * LENGTH
NEVER = "b" * (LENGTH - 1) + "a"
"""Each character of `LONG` is looked for in the whole of it."""
ALMOST = "ab" + "a" * (LENGTH // 2)
"""At each place of `LONG` it is found out only at its end that this is not there."""
SECONDS_MAX = 14.2 + 5.0
"""From SIGTERM to the end of the process: what is promised, and what a busy machine may add."""


def prepare(tmp_path: Path, template: str, b: str) -> PreparedRun:
    columns = {"a": [f"text {n}" for n in range(ROWS)], "b": ["-"] * ROWS}
    columns["a"][HOSTILE], columns["b"][HOSTILE] = LONG, b
    return prepare_table(tmp_path, a_spec(request={"input": template, "rows_per_request": 4}), columns, chunk_rows=8)


def children(process: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except FileNotFoundError:
        return []


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("template", "b"),
    [
        ("{{ a | trim(b) }}", NEVER),
        ("{{ a.rpartition(b)[2] }}", ALMOST),
        ("{% if a.rfind(b) < 0 %}{{ a[:20] }}{% endif %}", ALMOST),
    ],
)
def test_one_row_that_would_stop_its_worker_is_a_dead_letter(tmp_path: Path, template: str, b: str) -> None:
    prepared = prepare(tmp_path, template, b)
    with CannedEngine() as engine:
        assert DriverProcess(prepared, engine.url).finish() == exits.DONE

    rows = prepared.rows()
    assert [ordinal for ordinal, row in rows.items() if row["dead_reason"]] == [HOSTILE]
    assert rows[HOSTILE]["dead_message"] == "the template failed on this row: it took more than 5 s of processor time"
    assert sorted(rows) == list(range(ROWS))


def test_sigterm_while_such_a_row_is_rendered_is_heard(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, "{{ a | trim(b) }}", NEVER)
    with CannedEngine() as engine:
        driver = DriverProcess(prepared, engine.url)
        while not (apart := [each for each in children(driver.process.pid) if cpu_seconds(each) > 1.5]):
            assert driver.process.poll() is None, "it came to its end, and nothing took long"
            time.sleep(0.02)
        driver.terminate()
        told = time.monotonic()
        assert driver.finish() == exits.RESUME
        assert time.monotonic() - told < SECONDS_MAX

    assert driver.messages()[-1] == "exit", "it came to its own end"
    [stopped] = [entry for entry in driver.log if entry["message"] == "stopped"]
    assert stopped["rows_dead"] == 0, "the template was the row's own, but the end was not"
    while any(map(is_alive, apart)):
        time.sleep(0.02)


@pytest.fixture
def renderer() -> Iterator[None]:
    """None is there before, and none is left."""
    yield
    if _subprocess._renderer is not None:
        _subprocess._renderer.end()
        _subprocess._renderer = None


@pytest.mark.usefixtures("renderer")
class TestApart:
    def of(self, template: str, **row: Any) -> str:
        return Text(template).of(row)

    def test_a_large_row_is_rendered_as_a_small_one_is(self) -> None:
        row = {
            "n": 12,
            "day": datetime.date(2026, 1, 2),
            "none": None,
            "deep": [{"a": None, "b": [b"x"]}],
            "half": "\u00e9\U0001f600",
        }
        template = "{{ n }} {{ day }} [{{ nothing }}] {{ deep }} {{ half }} {{ text | length }}"

        small = self.of(template, text="x" * 10, nothing=None, **row)
        assert self.of(template, text="x" * 100_000, nothing=None, **row) == small.removesuffix("10") + "100000"

    def test_what_a_template_makes_counts_as_what_a_row_has(self) -> None:
        """The rows are small, and C code meets millions of characters all the same."""
        with pytest.raises(BadInput, match=r"more than 5 s of processor time"):
            self.of("{% set a = x * 3000000 %}{{ a | trim('b' * 2999999 ~ x) }}", x="a")

    def test_it_serves_many_and_starts_once(self) -> None:
        self.of("{{ x }}", x="x" * 100_000)
        assert _subprocess._renderer is not None
        first = _subprocess._renderer._process.pid
        for number in range(20):
            assert self.of("{{ x | length }} {{ n }}", x="x" * 100_000, n=number) == f"100000 {number}"
        assert _subprocess._renderer._process.pid == first

    def test_an_error_there_costs_the_row_alone(self) -> None:
        with pytest.raises(BadInput, match="the template failed on this row: division by zero"):
            self.of("{{ x }}{{ 1 / n }}", x="x" * 100_000, n=0)
        assert self.of("{{ x | length }}", x="x" * 100_000) == "100000"

    def test_memory_that_no_rule_foresees_is_bounded(self) -> None:
        """Each character becomes the 80 of its name, of which no rule knows."""
        with pytest.raises(BadInput, match=r"more than 1,024 MiB"):
            self.of("{% set y = x * 8000000 %}{{ y.encode('ascii', 'namereplace') | length }}", x="\ufbf9")

    def test_memory_of_what_a_template_holds_on_to_is_bounded(self) -> None:
        template = (
            "{% set s = namespace(v=x) %}{% for i in range(99999) %}{% set s.v = namespace(a=s.v, b='y' * 30000) %}{% endfor %}"
        )
        with pytest.raises(BadInput, match=r"more than 1,024 MiB"):
            self.of(template, x="h")

    def test_one_that_was_killed_is_replaced(self) -> None:
        self.of("{{ x }}", x="x" * 100_000)
        assert _subprocess._renderer is not None
        os.kill(_subprocess._renderer._process.pid, signal.SIGKILL)

        assert self.of("{{ x | length }}", x="x" * 100_000) == "100000"

    def test_without_a_process_no_row_is_blamed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: Any, **__: Any) -> None:
            raise BlockingIOError(11, "Resource temporarily unavailable")

        monkeypatch.setattr("subprocess.Popen", refuse)
        with pytest.raises(NoProcess, match="Resource temporarily unavailable"):
            self.of("{{ x }}", x="x" * 100_000)

    def test_a_sample_of_the_plan_has_a_clock_too(self) -> None:
        """Nothing watches the task `plan` while it renders a sample of the rows."""
        endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{{ text }}"

        rows = [{"text": "a"}] * 200

        assert list(_prompts(a_spec(request__input=endless), rows)) == [], "one row's five seconds, not two hundred's"
