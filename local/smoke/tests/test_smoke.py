"""The command line of `make smoke-gcp`; what it asks runs in `test_smoke_open_questions.py` and `test_smoke_night.py`."""

from __future__ import annotations

import json

import pytest

from local.smoke import __main__ as smoke
from local.smoke import report
from local.smoke.deployment import Deployment

pytestmark = pytest.mark.unit

CLUSTER = "projects/p/locations/l/clusters/c"


@pytest.mark.parametrize(
    ("arguments", "bucket", "message"),
    [
        ((), "b", "the following arguments are required: --project"),
        (("--project", "p", "--cluster", "c"), "b", "'c' is not a cluster. Write projects/PROJECT/locations"),
        (
            ("--project", "p", "--cluster", CLUSTER),
            "",
            "needs the bucket that the workers' account may use: set NIGHTSHIFT_BUCKET",
        ),
    ],
)
def test_a_wrong_command_line_is_explained(
    arguments: tuple[str, ...], bucket: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_BUCKET", bucket)
    with pytest.raises(SystemExit, match="2"):
        smoke.main(arguments)
    assert message in capsys.readouterr().err


def test_every_fault_that_the_doctor_finds_has_a_line_with_its_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [
        {"state": "ok", "check": "identity", "found": "me"},
        {
            "state": "failed",
            "check": "bucket",
            "problem": "there is none",
            "affects": "every task",
            "fix": "gcloud storage buckets create",
        },
        {"state": "skipped", "check": "store", "because": "bucket is not ok", "needs": "bucket"},
    ]
    said = "a warning of Airflow's\n" + json.dumps({"exit_code": 1, "checks": checks})
    # The real doctor answers in `test_smoke_night.py`.
    monkeypatch.setattr(Deployment, "run", lambda *_, **__: said)
    lines = report.doctor(Deployment({}, __file__), None)  # type: ignore[arg-type]
    assert lines == [
        report.Line("Is everything there for a night?", "1 ok, 1 failed, 1 skipped", report.BREAKS, "see the doctor's lines"),
        report.Line("Doctor: bucket", "there is none", report.BREAKS, "every task. Fix: `gcloud storage buckets create`"),
    ]
