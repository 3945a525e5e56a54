"""The operator's notifiers: the doctor imports their classes, and makes and tells nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightshift.doctor import notifiers
from nightshift.doctor.findings import Ok, Skipped
from tests.unit.doctor.fakes import here, only, problem
from tests.unit.notices import Blackboard

pytestmark = pytest.mark.unit

BOARD = "{notifier: tests.unit.notices.Blackboard, arguments: {text: x}, jobs_may_set: [colour, text]}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "notifiers.yaml"


def test_a_deployment_without_any() -> None:
    assert isinstance(only(notifiers.ask, here()), Skipped)


def test_all_can_be_made(file: Path) -> None:
    file.write_text(f"board: {BOARD}")
    Blackboard.told.clear()

    assert only(notifiers.ask, here(notifiers=str(file))) == Ok("notifiers", f"{file} names board")
    assert Blackboard.told == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("board: [", "This is not valid YAML"),
        ("board: {notifier: airflow.providers.absent.Notifier}", "board: The notifier has failed"),
        ("board: {notifier: nightshift.cli.__main__.X}", "SystemExit"),
        (BOARD.replace("colour", "size").join(["board: ", ""]), "board: got an unexpected keyword argument 'size'"),
    ],
)
def test_what_is_wrong(file: Path, text: str, wrong: str) -> None:
    file.write_text(text)
    found = problem(notifiers.ask, here(notifiers=str(file)))

    assert wrong in found.problem
    assert found.fix
