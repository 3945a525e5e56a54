"""The task of the DAG nightshift_tune: what it asks, what it says, and that a retry goes on with the trials that are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from nightshift.operators import engine_work
from nightshift.operators.tune import TuneOperator
from nightshift.trial.outcomes import Cause, EngineTaken
from nightshift.trial.tune import tuner
from tests.unit.cli.test_tune_command import DAY, PlantedEngines, Tuned, by_seqs

pytestmark = pytest.mark.unit


@pytest.fixture
def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tuned:
    made = Tuned(tmp_path, PlantedEngines(by_seqs))
    monkeypatch.setattr(engine_work, "world_of", lambda settings, say: made.world({"HF_HUB_OFFLINE": "1"}))
    monkeypatch.setattr(tuner, "JobSetEngines", lambda *_: made.engines)
    monkeypatch.setenv("NIGHTSHIFT_BUCKET", "b")
    monkeypatch.setenv("NIGHTSHIFT_PROJECT", "p")
    return made


def run(tuned: Tuned, **changes: Any) -> Any:
    given = {"job": "tickets", "rows": "200", "partition": DAY, **changes}
    return TuneOperator(task_id="tune", jobs_folder=str(tuned.folder), **given).execute({})


def test_it_returns_the_result_and_logs_each_trial_and_the_patch(tuned: Tuned, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(tuned)

    assert found["better"]
    assert found["changes"]["engine"]["max_num_seqs"] > 64
    assert "trials" not in found, "they are in the bucket"
    said = capsys.readouterr().out
    assert "  1  rows  the default: max_num_seqs 64" in said
    assert found["sentence"] in said
    assert "+++ b/tickets.yaml" in said
    assert f"+  max_num_seqs: {found['changes']['engine']['max_num_seqs']}" in said


def test_a_retry_goes_on_with_the_next_trial(tuned: Tuned) -> None:
    tuned.engines.taken_from = 3

    with pytest.raises(EngineTaken):
        run(tuned)
    assert len(tuned.kept()) == 3
    tuned.engines.taken_from = None

    assert run(tuned)["better"]
    assert [asked[0] for asked in tuned.engines.asked[:4]] == [1, 1, 1, 4]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"job": "tikets"}, "There is no job 'tikets'"),
        ({"rows": "0"}, "from 1 to 100,000"),
        ({"rows": "many"}, "from 1 to 100,000"),
        ({"budget": "soon"}, "budget is 'soon'.* neither a time"),
        ({"partition": "tomorrow"}, "Write a date"),
    ],
)
def test_a_wrong_question_fails_for_good(tuned: Tuned, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(AirflowFailException, match=words):
        run(tuned, **changes)
    assert tuned.engines.asked == []


def test_no_settings_that_hold_fail_the_task_for_good(tuned: Tuned) -> None:
    tuned.engines.rate = lambda job: Cause.CANNOT_START

    with pytest.raises(AirflowFailException, match="No settings held the longest rows"):
        run(tuned)
