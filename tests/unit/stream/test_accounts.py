"""The name of a job may choose its pods' account, but never one that has other rights than a job's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from nightshift import exits
from nightshift.cli import main
from nightshift.jobset.manifest import model_copy
from nightshift.settings import OF_STREAMS, OTHERS_ACCOUNTS, Settings, SettingsError, account_of
from nightshift.stream.manifests import picker
from nightshift.stream.manifests.render_request import CANARY, SERVER, SUBSCRIBER
from tests.builders import a_spec

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]
OWN = "nightshift-{job}"
PRINCIPAL = re.compile(r"\bsa/([a-z0-9$][-a-zA-Z0-9_${}.]*)")
A_JOBS = {"nightshift-product-texts", "nightshift-$job", "nightshift-${each.key}"}
"""How pages and Terraform write the account of a job."""
OF_ADD_ONS = {"custom-metrics-stackdriver-adapter"}
"""In a namespace of its own."""


def made() -> set[str]:
    """Every Kubernetes service account that manifests, pages, Terraform and commands make or give rights to."""
    found = {model_copy.ACCOUNT}
    for file in (ROOT / "k8s").rglob("*.yaml"):
        text = file.read_text()
        for document in yaml.safe_load_all(text) if "ServiceAccount" in text else ():
            each = document or {}
            named = [each["metadata"]] if each.get("kind") == "ServiceAccount" else each.get("subjects", [])
            found |= {item["name"] for item in named if item.get("kind", "ServiceAccount") == "ServiceAccount"}
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "k8s").rglob("*.md"), *(ROOT / "infra").rglob("*.tf")]
    for file in pages:
        found |= set(PRINCIPAL.findall(file.read_text()))
    return found - A_JOBS - OF_ADD_ONS


def test_every_account_that_is_no_jobs_is_reserved() -> None:
    accounts = made()

    assert {"nightshift-worker", "nightshift-airflow", "nightshift-models"} <= accounts
    assert {name for name in accounts if name not in OTHERS_ACCOUNTS and not name.endswith(OF_STREAMS)} == set()
    for component in (SUBSCRIBER, picker.component_of(SERVER), picker.component_of(CANARY)):
        assert f"a-stream-{component}".endswith(OF_STREAMS)


@pytest.mark.parametrize(
    ("setting", "job"),
    [
        (OWN, "models"),
        (OWN, "worker"),
        (OWN, "airflow"),
        ("{job}", "default"),
        ("{job}", "nightshift-models"),
        ("{job}", "texts-subscriber"),
        (OWN, "texts-server-epp"),
        ("{job}-worker", "nightshift"),
    ],
)
def test_a_name_that_is_anothers_account_is_refused(setting: str, job: str) -> None:
    with pytest.raises(SettingsError, match=f"job: {job} makes .* Give the job another name"):
        account_of(setting, job)


@pytest.mark.parametrize("job", ["models", "worker", "texts-subscriber", "notes"])
def test_with_one_account_for_all_jobs_each_name_is_free(job: str) -> None:
    """As it was before; and the account of any other job keeps its name."""
    assert Settings("b", "p").account_of(job) == "nightshift-worker"
    assert Settings("b", "p", service_account=OWN).account_of(f"{job}-2") == f"nightshift-{job}-2"


def test_validate_says_so_where_the_deployment_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(yaml.safe_dump(a_spec(job="models").model_dump(mode="json", exclude_defaults=True)))
    monkeypatch.delenv("NIGHTSHIFT_SERVICE_ACCOUNT", raising=False)
    assert main(["validate", str(file)]) == exits.DONE
    monkeypatch.setenv("NIGHTSHIFT_SERVICE_ACCOUNT", OWN)
    capsys.readouterr()

    assert main(["validate", str(file)]) == exits.BAD_INPUT
    said = capsys.readouterr()
    assert "makes nightshift-models the account of its pods" in said.err
    assert "valid" not in said.out
