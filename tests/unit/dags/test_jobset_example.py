"""The example of the JobSet operator parses, for any cluster and for GKE; `tests/cluster/test_jobset_example.py` runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization

from nightshift.operators.jobset import KubernetesJobSetOperator
from nightshift.operators.kubernetes_engine import GKEStartJobSetOperator

pytestmark = pytest.mark.unit

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"


@pytest.fixture(scope="module")
def bag() -> DagBag:
    return DagBag(dag_folder=EXAMPLES)


def test_it_parses_and_each_dag_has_the_operator_of_its_cluster(bag: DagBag) -> None:
    assert bag.import_errors == {}
    kinds = {name: type(dag.get_task("estimate_pi")) for name, dag in bag.dags.items()}
    assert kinds == {"jobset-example": KubernetesJobSetOperator, "jobset-example-gke": GKEStartJobSetOperator}


@pytest.mark.parametrize("name", ["jobset-example", "jobset-example-gke"])
def test_it_lives_through_serialization_with_its_button(bag: DagBag, name: str) -> None:
    stored = json.loads(json.dumps(DagSerialization.to_dict(bag.dags[name])))

    task = DagSerialization.from_dict(stored).get_task("estimate_pi")

    assert list(task.operator_extra_link_dict) == (["Kubernetes Engine JobSet"] if name.endswith("gke") else [])
