"""The questions of `make smoke-gcp`, asked of the emulators: they answer as the documents say, and leave nothing behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.cloud import bigquery
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]

from local.smoke import place as places
from local.smoke import report
from local.smoke.open_questions import OPEN_QUESTIONS, Answer, Question
from local.smoke.place import Place

pytestmark = [pytest.mark.integration, pytest.mark.gate]


@pytest.fixture(scope="module")
def place(bigquery_client: bigquery.Client, storage_client: StorageClient) -> Iterator[Place]:
    with places.made(bigquery_client, storage_client, "US") as made:
        yield made


@pytest.mark.parametrize("question", OPEN_QUESTIONS, ids=lambda question: question.ask.__name__)
def test_the_emulators_answer_as_documented(place: Place, question: Question) -> None:
    answer = question.ask(place)
    assert answer.documented, answer.found
    assert answer.works


def test_nothing_is_left_behind_after_a_failure(bigquery_client: bigquery.Client, storage_client: StorageClient) -> None:
    seen: list[Place] = []

    def fail() -> None:
        with places.made(bigquery_client, storage_client, "US") as made:
            seen.append(made)
            made.storage.bucket(made.name).blob("a").upload_from_string(b"")
            made.query(f"CREATE TABLE `{made.table('t')}` (n INT64)")
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fail()
    assert seen[0].name not in {each.dataset_id for each in bigquery_client.list_datasets()}
    assert seen[0].name not in {each.name for each in storage_client.list_buckets()}


def test_a_question_that_the_service_refuses_is_answered_too(place: Place) -> None:
    refused = Question("Is this SQL?", "nothing", lambda there: Answer(str(there.query("SELEC 1")), True, True))
    [line] = report.open_questions(place, [refused])
    assert line == report.Line("Is this SQL?", line.found, report.FAILED, "nothing")
    assert "Syntax error" in line.found


def test_the_report_names_what_breaks() -> None:
    lines = [
        report.Line("A | B?", "found", report.AS_DOCUMENTED, "x"),
        report.Line("C?", "other\nand more", report.BREAKS, "publish: a wrong table"),
    ]
    assert report.exit_code(lines) == 1
    assert report.exit_code(lines[:1]) == 0
    assert report.table(lines).splitlines()[2:] == [
        "| A \\| B? | found | as documented |",
        "| C? | other | **other than it should be. Affects: publish: a wrong table** |",
    ]
