"""The questions of `make smoke-gcp`, asked of the emulators: they answer as the documents say, and leave nothing behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.cloud import bigquery
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]

from local.smoke import __main__ as smoke
from local.smoke import place as places
from local.smoke.doubts import DOUBTS, Answer, Doubt
from local.smoke.place import Place

pytestmark = [pytest.mark.integration, pytest.mark.gate]


@pytest.fixture(scope="module")
def place(bigquery_client: bigquery.Client, storage_client: StorageClient) -> Iterator[Place]:
    with places.made(bigquery_client, storage_client, "US") as made:
        yield made


@pytest.mark.parametrize("doubt", DOUBTS, ids=lambda doubt: doubt.ask.__name__)
def test_the_emulators_answer_as_documented(place: Place, doubt: Doubt) -> None:
    answer = doubt.ask(place)
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
    report = smoke.ask(place, [Doubt("Is this SQL?", "nothing", lambda there: Answer(str(there.query("SELEC 1")), True, True))])
    assert report == [smoke.Line("Is this SQL?", report[0].found, smoke.FAILED, "nothing")]
    assert "Syntax error" in report[0].found


def test_the_report_names_what_breaks(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        smoke.Line("A | B?", "found", smoke.AS_DOCUMENTED, "x"),
        smoke.Line("C?", "other", smoke.BREAKS, "publish: a wrong table"),
    ]
    assert smoke.tell(lines) == 1
    said = capsys.readouterr().out
    assert "| A \\| B? | found | as documented |" in said
    assert "| C? | other | **publish: a wrong table** |" in said
    assert smoke.tell(lines[:1]) == 0
