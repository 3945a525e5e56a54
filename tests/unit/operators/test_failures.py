"""Every error that stops a night has an entry in the runbook, and the log ends with it."""

from __future__ import annotations

import ast
import importlib
import logging
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.sdk.definitions.asset import AssetUniqueKey
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowInactiveAssetInInletOrOutletException

import nightshift
from nightshift.fields.text import WIDTH, lines
from nightshift.jobset.fleet.errors import Failure, JobSetFailed
from nightshift.jobset.verdict.outcome import CANNOT_START
from nightshift.operators import failures, infer
from nightshift.operators.bigquery_jobs import finished_jobs
from nightshift.operators.failures import OF_JOBSETS, OF_REASONS, PASSING, PERMANENT, RUNBOOK, Entry, NightFailed, entry_of
from nightshift.operators.jobset_errors import raised_for
from nightshift.operators.run import keep_error, permanent_failures
from nightshift.run.tolerance import ToleranceExceeded
from nightshift.triggers.bigquery import jobs_event
from nightshift.warehouse import JobState
from tests.unit.test_citations import ROOT

pytestmark = pytest.mark.unit

PRODUCT = Path(nightshift.__file__).parent


def test_each_entry_has_a_section_and_each_section_is_an_entry() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / RUNBOOK).read_text(), re.MULTILINE)

    # The last one says of pods what costs no retry; no message names it.
    assert headings == [*(str(entry) for entry in Entry), "Disruptions"]


def test_each_entry_is_used() -> None:
    of_mappings = {*PERMANENT.values(), *PASSING.values(), *OF_JOBSETS.values(), *OF_REASONS.values()}
    used = of_mappings | {Entry[name] for _, _, name in raised_by_hand()} | {Entry.UNEXPECTED}

    assert used == set(Entry)


@pytest.mark.parametrize("name", [*PERMANENT, *PASSING])
def test_each_error_that_has_one_exists(name: str) -> None:
    module, _, kind = name.rpartition(".")
    found = getattr(importlib.import_module(module), kind)

    assert issubclass(found, Exception)
    assert (
        f"{found.__module__}.{found.__qualname__}" in {*PERMANENT, *PASSING, "builtins.object"}
        or module == "obstore.exceptions"
    )


@pytest.mark.parametrize("failure", list(Failure))
def test_each_failure_of_a_jobset_has_one(failure: Failure) -> None:
    assert entry_of(raised_for(JobSetFailed(failure, "words"))) is OF_JOBSETS[failure]


def test_what_a_verdict_names_says_more() -> None:
    assert set(OF_REASONS) == {CANNOT_START, infer.TOO_MANY, "OOMKilled"}
    assert entry_of(raised_for(JobSetFailed(Failure.APPLICATION, "words", CANNOT_START))) is Entry.ENGINE_CANNOT_START


OTHER_DAGS = {"doctor", "engine_work", "pause", "preview", "redrive", "tune"}
"""Modules of operators whose tasks are no night's: their logs end without an entry."""
EXPECTED = {
    ("audit", "execute", "EARLIER_TASK"),
    ("audit", "_end_as_stopped", "STOPPED"),
    ("bigquery_jobs", "finished_jobs", "BIGQUERY"),
    ("extract", "_decided", "EARLIER_TASK"),
    ("file_periods", "periods_of_events", "WRONG_PARAM"),
    ("params", "only_params", "WRONG_PARAM"),
    ("partition", "partition_of", "WRONG_PARAM"),
    ("plan", "_again", "WRONG_PARAM"),
    ("plan", "_began", "UNEXPECTED"),
    ("plan", "_only", "WRONG_PARAM"),
    ("plan", "_sealed", "WRONG_PARAM"),
    ("publish", "manifest", "EARLIER_TASK"),
    ("run", "permanent_failures", "STORE"),
    ("run", "plan", "EARLIER_TASK"),
    ("run", "pre_execute", "EARLIER_TASK"),
    ("run", "spec", "EARLIER_TASK"),
    ("workers_rights", "check_workers", "STORE"),
}


def raised_by_hand() -> set[tuple[str, str, str]]:
    """Module, function and entry of each error that a task of a night makes with an entry that it names itself."""
    found = set()
    for path in sorted((PRODUCT / "operators").glob("*.py")):
        functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
        for function in functions:
            for node in ast.walk(function):
                if (
                    isinstance(node, ast.Call)
                    and ast.unparse(node.func) == "NightFailed"
                    and isinstance(node.args[1], ast.Attribute)
                ):
                    found.add((path.stem, function.name, node.args[1].attr))
    return found


def test_each_error_that_a_night_makes_has_the_entry_that_fits() -> None:
    assert raised_by_hand() == EXPECTED


def test_no_night_ends_with_an_error_of_airflow_that_says_no_entry() -> None:
    plain = {
        (room, path.stem)
        for room in ("operators", "triggers", "hooks")
        for path in (PRODUCT / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "AirflowFailException"
    }

    # The connection to PostgreSQL is that of streams alone.
    assert plain == {("operators", name) for name in OTHER_DAGS} | {("hooks", "postgres")}


def test_what_a_room_below_says_it_raises_for_outages_has_one() -> None:
    """Airflow repeats the task; when no retry is left, its log ends with where the runbook speaks of it."""
    unavailable = {
        f"{'.'.join(['nightshift', *path.relative_to(PRODUCT).with_suffix('').parts])}.{name}"
        for room in ("run", "planner", "warehouse", "jobset", "store.py")
        for path in ([PRODUCT / room] if room.endswith(".py") else (PRODUCT / room).rglob("*.py"))
        for name in re.findall(r"^class (\w+(?:Unavailable|Refused))\(", path.read_text(), re.MULTILINE)
    }

    assert len(unavailable) >= 5
    kinds = {getattr(importlib.import_module(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in unavailable}
    known = {**PERMANENT, **PASSING}
    assert {
        kind for kind in kinds if not any(f"{each.__module__}.{each.__qualname__}" in known for each in kind.__mro__)
    } == set()


@pytest.mark.parametrize("retryable", [False, True])
def test_a_bigquery_job_that_failed_leads_to_bigquery(retryable: bool) -> None:
    """Its dry run, count and sample had passed."""
    state = JobState("nightshift-x-extract-0", done=True, error="division by zero: 100 / 0", retryable=retryable)
    with pytest.raises(AirflowException, match="division by zero") as raised:
        finished_jobs(jobs_event([state]))

    assert entry_of(raised.value) is Entry.BIGQUERY
    assert isinstance(raised.value, AirflowFailException) is not retryable


def test_an_asset_of_two_names_leads_to_its_own_entry() -> None:
    inactive = AirflowInactiveAssetInInletOrOutletException([AssetUniqueKey("p.d.t", "p.d.t")])

    assert entry_of(inactive) is Entry.ASSET_NAME


def test_errors_that_operators_define_have_one() -> None:
    """A class of a task's error that nobody gave an entry would be called unexpected."""
    defined = re.findall(
        r"^class (\w+)\((?:AirflowException|AirflowFailException)\)",
        "\n".join(path.read_text() for room in ("hooks", "operators", "triggers") for path in (PRODUCT / room).rglob("*.py")),
        re.MULTILINE,
    )
    named = {name.rpartition(".")[2] for name in {**PERMANENT, **PASSING}}
    of_jobsets = {type(raised_for(JobSetFailed(failure, ""))).__name__ for failure in Failure}

    assert set(defined) - named - of_jobsets == {"NightFailed", "DeadLettersLeft"}, (
        "the one has its own, the other is no night's"
    )


def test_an_error_that_a_repeat_cannot_mend_is_told_without_the_stack_of_where_it_was_noticed() -> None:
    with pytest.raises(AirflowFailException) as raised, permanent_failures():
        raise ToleranceExceeded("9 rows are dead letters")

    assert entry_of(raised.value) is Entry.TOO_MANY_DEAD_LETTERS
    assert raised.value.__suppress_context__
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(
    ("error", "entry"),
    [
        (NightFailed("The param redo is 'x'.", Entry.WRONG_PARAM), Entry.WRONG_PARAM),
        (AirflowFailException("x"), Entry.UNEXPECTED),
        (AirflowException("x"), Entry.UNEXPECTED),
        (KeyError("x"), Entry.UNEXPECTED),
        ("killed", Entry.UNEXPECTED),
    ],
)
def test_others_have_one_too(error: BaseException | str, entry: Entry) -> None:
    assert entry_of(error) is entry


def test_a_log_ends_with_the_error_in_lines_that_fit_the_page(caplog: pytest.LogCaptureFixture) -> None:
    message = f"The engine cannot start: {'OSError: no such model, ' * 20}. Correct model.uri. {'x' * 400}"
    pushed: dict[str, str] = {}
    ti = SimpleNamespace(xcom_push=pushed.__setitem__)

    with caplog.at_level(logging.ERROR):
        keep_error({"exception": raised_for(JobSetFailed(Failure.APPLICATION, message, CANNOT_START)), "ti": ti})  # type: ignore[typeddict-item]

    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith("The engine cannot start: OSError")
    assert said[-1] == "More: docs/operate/runbook.md#engine-cannot-start"
    assert all(len(line) <= WIDTH for line in said)
    assert " ".join(said[:-1]).replace(" ", "") == message.replace(" ", "")
    assert pushed == {"error": message}


def test_lines_keep_sentences_together() -> None:
    assert list(lines("One. Two.\nThree.")) == ["One. Two.", "Three."]
    assert list(lines(f"One {'x' * 112}. Two.")) == [f"One {'x' * 112}.", "Two."]
    assert list(lines(f"{'a' * 80}; {'b' * 60}")) == [f"{'a' * 80};", "b" * 60]
    assert list(failures.told("", Entry.STORE))[-1] == "More: docs/operate/runbook.md#store"
