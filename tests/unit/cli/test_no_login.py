"""What commands and the doctor say on a machine without any account: at once, and how to log in."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.auth.exceptions import DefaultCredentialsError

from nightshift.cli import trouble
from nightshift.cli.plan import Options, run
from nightshift.hooks import google
from nightshift.hooks.deployment import Deployment
from nightshift.hooks.services import Wrong
from nightshift.settings import Settings
from nightshift.warehouse import WarehouseError
from tests.unit.cli.test_run_command import JOB

pytestmark = pytest.mark.unit

LOG_IN = "gcloud auth application-default login"


def no_account(_: str, unavailable: type[Exception]) -> None:
    """As `nightshift.hooks.credentials.credentials_of`, without an account."""
    raise unavailable("no credentials now") from DefaultCredentialsError("Your default credentials were not found.")  # type: ignore[no-untyped-call]


def test_the_doctor_says_how_to_log_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(google, "credentials_of", no_account)

    with pytest.raises(Wrong, match="no credentials now") as wrong:
        _ = google.GoogleAccount("google_cloud_default").token

    assert wrong.value.fix.startswith(LOG_IN)
    assert 'eval "$(make env)"' in wrong.value.fix


def test_what_may_pass_is_still_an_error_of_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_: str, unavailable: type[Exception]) -> None:
        raise unavailable("503") from ConnectionError()

    monkeypatch.setattr(google, "credentials_of", away)

    with pytest.raises(OSError, match="503"):
        _ = google.GoogleAccount("google_cloud_default").token


def test_a_command_that_asks_bigquery_says_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    connections = Deployment(Settings("b", "p"))
    monkeypatch.setattr(connections, "warehouse", lambda: no_account("", OSError))

    with pytest.raises(WarehouseError, match=f"no Google credentials here. Log in with `{LOG_IN}`"):
        trouble.warehouse_of(connections.warehouse)


def test_a_plan_does_not_wait_for_the_metadata_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The store's client would ask it for two minutes."""
    monkeypatch.setattr(trouble, "_has_key", lambda: False)
    monkeypatch.setattr(trouble, "_on_google", lambda: False)
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setattr(trouble, "open_store", lambda url: pytest.fail("asked"))
    job = tmp_path / "tickets.yaml"
    job.write_text(JOB.replace("compute: {profile: cpu}", "compute: {profile: cpu, rows_per_worker_per_second: 5}"))

    code = run(Options(job, "2026-11-20", rows=100), {"NIGHTSHIFT_BUCKET": "b", "HF_HUB_OFFLINE": "1"})

    assert code == 0
    assert capsys.readouterr().err.startswith("Planned without recorded speeds: gs://b cannot be read: there are no Google")
