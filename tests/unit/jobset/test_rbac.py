"""What Airflow's account does in a cluster is what `k8s/base/airflow.yaml` lets it do."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from nightshift.jobset.kubernetes.rbac import RIGHTS, Right

pytestmark = pytest.mark.unit

FILE = Path(__file__).parents[3] / "k8s/base/airflow.yaml"


def test_the_role_grants_each_right_and_no_other() -> None:
    [role] = [document for document in yaml.safe_load_all(FILE.read_text()) if document["kind"] == "Role"]

    granted = [
        Right(verb, group, resource.partition("/")[0], resource.partition("/")[2])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]

    assert sorted(map(str, granted)) == sorted(map(str, RIGHTS))
    assert set(granted) == set(RIGHTS)


def test_a_right_reads_as_rbac_names_it() -> None:
    assert str(Right("create", "jobset.x-k8s.io", "jobsets")) == "create jobsets.jobset.x-k8s.io"
    assert str(Right("get", "", "pods", "log")) == "get pods/log"
