"""KubernetesJobSetOperator by itself: what becomes of the manifest that it is given, and what it refuses."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from nightshift.jobset.fleet.memory import FleetMember
from nightshift.operators.jobset import JobSetRefused, KubernetesJobSetOperator
from nightshift.operators.kubernetes_engine import CONNECTION_FIELDS, GKEJobSetLink, GKEStartJobSetOperator
from nightshift.triggers.kubernetes_engine import GKEJobSetTrigger
from tests.kept_state import KeptState

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]

POD = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "busybox"}]}
JOBSET: dict[str, Any] = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "train", "namespace": "theirs", "labels": {"team": "a"}, "annotations": {"note": "b"}},
    "spec": {"replicatedJobs": [{"name": "worker", "template": {"spec": {"template": {"spec": POD}}}}]},
}
CONTEXT: Any = {
    "ti": SimpleNamespace(id="0193", dag_id="nightly", task_id="run", run_id="manual__1", map_index=-1),
    "task_state_store": KeptState(),
}


def an_operator(jobset: Mapping[str, Any] | str = JOBSET, **parameters: Any) -> KubernetesJobSetOperator:
    with DAG("nightly", schedule=None):
        operator = KubernetesJobSetOperator(task_id="run", jobset=jobset, **parameters)
    return in_an_attempt(operator)


def in_an_attempt(operator: KubernetesJobSetOperator, context: Any = CONTEXT) -> KubernetesJobSetOperator:
    """As `run_jobset` leaves it."""
    operator._context = context
    return operator


def created(operator: KubernetesJobSetOperator, generation: int = 1) -> dict[str, Any]:
    """What would be created."""
    return operator.manifest(FleetMember(generation), operator.jobset_name(generation))


class TestManifest:
    @pytest.mark.parametrize("given", [JOBSET, yaml.safe_dump(JOBSET), json.dumps(JOBSET)], ids=["mapping", "yaml", "json"])
    def test_may_be_given_as_a_mapping_or_as_text(self, given: Mapping[str, Any] | str) -> None:
        assert created(an_operator(given)) == created(an_operator())

    def test_may_be_given_as_a_file_beside_the_dag(self, tmp_path: Path) -> None:
        (tmp_path / "train.yaml").write_text(yaml.safe_dump(JOBSET))
        with DAG("nightly", schedule=None, template_searchpath=str(tmp_path)):
            operator = KubernetesJobSetOperator(task_id="run", jobset="train.yaml")

        operator.resolve_template_files()

        assert created(in_an_attempt(operator)) == created(an_operator())

    def test_is_kept_but_for_its_name(self) -> None:
        document = created(an_operator())

        assert document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"] == {"spec": POD}
        assert document["metadata"]["namespace"] == "theirs"
        assert document["metadata"]["annotations"] == {"note": "b"}
        assert document["metadata"]["labels"]["team"] == "a"

    def test_what_the_operator_is_told_goes_over_what_the_manifest_says(self) -> None:
        meta = created(
            an_operator(
                namespace="ours",
                name="other",
                labels={"team": "c"},
                annotations={"note": "d"},
                queue_name="nightly",
                priority_class="low",
            )
        )["metadata"]

        assert meta["namespace"] == "ours"
        assert meta["name"].startswith("other-")
        assert meta["annotations"] == {"note": "d"}
        assert meta["labels"] == {
            "team": "c",
            "dag_id": "nightly",
            "task_id": "run",
            "run_id": "manual__1",
            "kueue.x-k8s.io/queue-name": "nightly",
            "kueue.x-k8s.io/priority-class": "low",
        }

    def test_a_given_manifest_is_not_altered(self) -> None:
        before = json.dumps(JOBSET)

        created(an_operator(labels={"team": "c"}, queue_name="nightly"))

        assert json.dumps(JOBSET) == before

    def test_generate_name_gives_way_to_the_name(self) -> None:
        generated = {**JOBSET, "metadata": {"generateName": "train-"}}

        meta = created(an_operator(generated))["metadata"]

        assert "generateName" not in meta
        assert meta["name"].startswith("run-")

    def test_no_namespace_anywhere_is_default(self) -> None:
        bare = {**JOBSET, "metadata": {}}

        assert created(an_operator(bare))["metadata"]["namespace"] == "default"

    @pytest.mark.parametrize(
        ("given", "sentence"),
        [
            ("kind: [", "jobset is not YAML"),
            ("just text", "jobset is str. Give a JobSet's manifest"),
            ({**JOBSET, "kind": "Job"}, "jobset has kind 'Job'. Write kind: JobSet"),
            ({"kind": "JobSet"}, "Write kind: JobSet, and its spec"),
        ],
    )
    def test_what_is_none_is_refused_with_a_sentence(self, given: Any, sentence: str) -> None:
        with pytest.raises(JobSetRefused, match=sentence) as refused:
            created(an_operator(given))
        assert str(refused.value).startswith("run: ")


class TestName:
    def test_is_the_same_for_every_attempt_and_another_for_every_generation(self) -> None:
        first = an_operator().jobset_name(1)

        assert an_operator().jobset_name(1) == first
        assert an_operator().jobset_name(2) != first

    @pytest.mark.parametrize("what", ["dag_id", "task_id", "run_id", "map_index"])
    def test_differs_between_task_instances(self, what: str) -> None:
        other = {**CONTEXT, "ti": SimpleNamespace(**{**vars(CONTEXT["ti"]), what: "another"})}

        assert in_an_attempt(an_operator(), other).jobset_name(1) != an_operator().jobset_name(1)

    def test_leaves_room_for_the_names_of_pods(self) -> None:
        name = an_operator(name="n" * 80).jobset_name(1)

        assert len(f"{name}-worker-0-9999-abcde") <= 63

    def test_a_task_id_that_no_kubernetes_name_may_be_is_made_one(self) -> None:
        with DAG("nightly", schedule=None):
            operator = KubernetesJobSetOperator(task_id="Group.Träin_It", jobset={**JOBSET, "metadata": {}})

        assert in_an_attempt(operator).jobset_name(1).startswith("group-tr-in-it-")


class TestParameters:
    def test_an_unknown_policy_is_refused_when_the_dag_is_parsed(self) -> None:
        with pytest.raises(ValueError, match=r"on_kill_policy is 'keep'\. Write 'delete' or 'suspend' or 'leave'\."):
            an_operator(on_kill_policy="keep")

    def test_every_parameter_is_documented(self) -> None:
        for operator in (KubernetesJobSetOperator, GKEStartJobSetOperator):
            documented = (inspect.getdoc(operator) or "") + (inspect.getdoc(KubernetesJobSetOperator) or "")
            for name in set(inspect.signature(operator).parameters) - {"kwargs"}:
                assert f":param {name}:" in documented

    def test_templated_fields_are_marked_as_such(self) -> None:
        for operator in (KubernetesJobSetOperator, GKEStartJobSetOperator):
            documented = " ".join(((operator.__doc__ or "") + (KubernetesJobSetOperator.__doc__ or "")).split())
            for name in operator.template_fields:
                said = documented.partition(f":param {name}:")[2].partition(":param")[0]
                assert "(templated)" in said, name

    def test_the_manifest_is_rendered(self) -> None:
        operator = an_operator({**JOBSET, "metadata": {"name": "train", "labels": {"day": "{{ ds }}"}}}, queue_name="{{ ds }}")

        operator.render_template_fields({"ds": "2026-11-20"})

        labels = created(operator)["metadata"]["labels"]
        assert (labels["day"], labels["kueue.x-k8s.io/queue-name"]) == ("2026-11-20", "2026-11-20")

    def test_a_dag_with_it_lives_through_serialization(self) -> None:
        operator = an_operator(deadline=timedelta(hours=6), startup_timeout=timedelta(minutes=20))

        stored = json.loads(json.dumps(DagSerialization.to_dict(operator.dag)))

        assert list(DagSerialization.from_dict(stored).get_task("run").template_fields) == list(operator.template_fields)


class TestOnGKE:
    def an_operator(self, **parameters: Any) -> GKEStartJobSetOperator:
        with DAG("nightly", schedule=None):
            operator = GKEStartJobSetOperator(
                task_id="run", location="europe-west4", cluster_name="gpu", project_id="acme", jobset=JOBSET, **parameters
            )
        # What Google's API would say of the cluster.
        operator.__dict__.update(cluster_info=("https://gke.example", "YQ=="))
        return operator

    @pytest.mark.parametrize("name", CONNECTION_FIELDS)
    def test_another_way_to_a_cluster_is_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match=f"{name} has no meaning for GKEStartJobSetOperator"):
            self.an_operator(**{name: "x"})

    def test_the_trigger_gets_all_that_it_needs_to_reach_the_cluster(self) -> None:
        operator = self.an_operator(use_dns_endpoint=True, gcp_conn_id="gcp", impersonation_chain=["a@example"])
        pushed: dict[str, Any] = {}
        context: Any = {
            **CONTEXT,
            "ti": SimpleNamespace(**vars(CONTEXT["ti"]), xcom_push=lambda key, value: pushed.update({key: value})),
        }

        in_an_attempt(operator, context)
        trigger = operator.waiter([SimpleNamespace(name="train-1", uid="u")], 17.5)  # type: ignore[list-item]

        assert isinstance(trigger, GKEJobSetTrigger)
        kwargs = trigger.serialize()[1]
        assert kwargs["cluster_url"] == "https://gke.example"
        assert kwargs["ssl_ca_cert"] == "YQ=="
        assert kwargs["use_dns_endpoint"] is True
        assert kwargs["gcp_conn_id"] == "gcp"
        assert kwargs["impersonation_chain"] == ["a@example"]
        assert kwargs["jobsets"] == [{"name": "train-1", "uid": "u"}]
        link = GKEJobSetLink()._format_link(**pushed[GKEJobSetLink.key])  # type: ignore[no-untyped-call]
        assert link == (
            "https://console.cloud.google.com/kubernetes/job/europe-west4/gpu/theirs/train-1-worker-0/details?project=acme"
        )


def test_importing_the_operator_brings_no_client_along() -> None:
    """It is imported at each parse of a DAG that uses it."""
    code = (
        "import sys, airflow.sdk.definitions.dag\n"
        "before = set(sys.modules)\n"
        "import nightshift.operators.jobset\n"
        "heavy = ('kubernetes', 'kubernetes_asyncio', 'aiohttp', 'google.cloud', 'airflow.providers.cncf')\n"
        "print([name for name in heavy if name in set(sys.modules) - before])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "plugins")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)

    assert done.stdout.splitlines()[-1] == "[]"
