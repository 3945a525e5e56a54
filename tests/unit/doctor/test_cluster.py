"""Airflow's components, the cluster's APIs and rights, the queue and its quota: with good and bad answers."""

from __future__ import annotations

from dataclasses import asdict, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from nightshift import DISTRIBUTION, __version__
from nightshift.doctor import cluster, components, queue
from nightshift.doctor.context import Surroundings, Triggerer
from nightshift.doctor.findings import Failed, Ok, Skipped
from nightshift.hooks.services import Components
from nightshift.jobset.kubernetes import kueue, quota
from nightshift.jobset.kubernetes.rbac import RIGHTS
from nightshift.spec import JobSpec
from tests.builders import a_spec
from tests.canned_cluster import CLUSTER_QUEUE, FLAVOR, LOCAL_QUEUE, USER, CannedApi, Cluster
from tests.unit.doctor.fakes import Ask, FakeConnections, here, only, problem

pytestmark = pytest.mark.unit

QUEUED = a_spec(queue="nightly")
MIB = 2**20


def at(faulty: Cluster, job: JobSpec | None = QUEUED, **settings: Any) -> Surroundings:
    return here(FakeConnections(api=CannedApi(faulty)), job, **settings)


class TestComponents:
    def test_all_is_seen(self) -> None:
        assert only(components.airflow, here()) == Ok("airflow", "Airflow 3.3.1")
        assert only(components.plugin, here()) == Ok("plugin", "nightshift, from an entry point")
        assert only(components.provider, here()) == Ok("provider", f"airflow-provider-nightshift {__version__}")

    @pytest.mark.parametrize(
        ("ask", "seen", "wrong"),
        [
            (components.plugin, Components("3", {}, {}, {}), "does not list the plugin"),
            (components.plugin, Components("3", {}, {"nightshift": "no module x"}, {}), "no module x"),
            (components.provider, Components("3", {}, {}, {}), "does not list the provider"),
            (components.provider, Components("3", {}, {}, {DISTRIBUTION: "0.0.9"}), "another copy comes first"),
        ],
    )
    def test_it_is_not(self, ask: Ask, seen: Components, wrong: str) -> None:
        found = problem(ask, here(FakeConnections(seen=seen)))

        assert wrong in found.problem
        assert found.fix

    def test_the_triggerer_answers(self) -> None:
        surroundings = here()
        answer = Triggerer(version=__version__, settings=asdict(surroundings.settings))

        assert isinstance(only(components.triggerer, replace(surroundings, triggerer=answer)), Ok)

    def test_the_triggerer_was_not_asked(self) -> None:
        assert only(components.triggerer, here()) == Skipped(
            "triggerer", "only a task can wait in it: trigger the DAG nightshift_doctor"
        )

    @pytest.mark.parametrize(
        ("answer", "wrong", "fix"),
        [
            (Triggerer(problem="Trigger failure"), "Trigger failure", "composer-bundle"),
            (Triggerer(version="0.0.9"), "it runs nightshift 0.0.9", "composer-bundle"),
            (Triggerer(version=__version__), "NIGHTSHIFT_BUCKET, NIGHTSHIFT_PROJECT", "NIGHTSHIFT_BUCKET=runs"),
        ],
    )
    def test_the_triggerer_is_another(self, answer: Triggerer, wrong: str, fix: str) -> None:
        found = problem(components.triggerer, here(triggerer=answer))

        assert wrong in found.problem
        assert fix in found.fix


class TestApis:
    def test_the_cluster_says_who_we_are(self) -> None:
        assert only(cluster.there, here()) == Ok(
            "cluster", f"Kubernetes v1.36.3, which authenticates Airflow as {USER}; namespace nightshift"
        )

    def test_the_local_runtime_has_none(self) -> None:
        assert isinstance(only(cluster.there, here(FakeConnections(api=None), runtime="local:/state")), Skipped)

    @pytest.mark.parametrize(
        ("runtime", "fix"),
        [
            ("kubernetes", "airflow connections get kubernetes_default"),
            ("gke:projects/p/locations/l/clusters/c", "gcloud container clusters describe c --location=l --project=p"),
            ("somewhere", "NIGHTSHIFT_RUNTIME=gke:projects/PROJECT/locations/LOCATION/clusters/CLUSTER"),
        ],
    )
    def test_a_cluster_that_is_not_reached(self, runtime: str, fix: str) -> None:
        class Down(FakeConnections):
            def cluster(self) -> Any:
                raise RuntimeError("no route to host")

        found = problem(cluster.there, here(Down(), runtime=runtime))

        assert "RuntimeError: no route to host" in found.problem
        assert fix in found.fix

    def test_both_are_served(self) -> None:
        assert only(cluster.jobset, here()) == Ok("jobset api", "jobset.x-k8s.io/v1alpha2: jobsets")
        assert isinstance(only(cluster.kueue, here()), Ok)

    def test_jobset_is_not_installed(self) -> None:
        faulty = Cluster()
        del faulty.groups["jobset.x-k8s.io/v1alpha2"]

        found = problem(cluster.jobset, at(faulty))

        assert "jobset.x-k8s.io is not served, and nightshift needs jobset.x-k8s.io/v1alpha2" in found.problem
        assert found.fix == f"kubectl apply --server-side -f {cluster.JOBSET_MANIFESTS}"

    def test_kueue_is_of_another_version(self) -> None:
        faulty = Cluster()
        faulty.groups["kueue.x-k8s.io/v1beta1"] = faulty.groups.pop("kueue.x-k8s.io/v1beta2")

        found = problem(cluster.kueue, at(faulty))

        assert "kueue.x-k8s.io is served as v1beta1" in found.problem
        assert found.fix.endswith(cluster.KUEUE_MANIFESTS)

    def test_a_resource_is_missing(self) -> None:
        faulty = Cluster(groups={"jobset.x-k8s.io/v1alpha2": ("other",)})

        assert "served without jobsets" in problem(cluster.jobset, at(faulty)).problem

    @pytest.mark.parametrize("job", [None, a_spec()])
    def test_a_cluster_without_kueue_is_fine_for_jobs_without_a_queue(self, job: JobSpec | None) -> None:
        faulty = Cluster()
        del faulty.groups["kueue.x-k8s.io/v1beta2"]

        assert isinstance(only(cluster.kueue, at(faulty, job)), Skipped)
        assert isinstance(only(cluster.kueue, at(faulty)), Failed)

    def test_the_manifests_are_those_of_the_page(self) -> None:
        page = (Path(__file__).parents[3] / "k8s/README.md").read_text()

        assert cluster.JOBSET_MANIFESTS in page
        assert cluster.KUEUE_MANIFESTS in page


class TestRights:
    def test_each_is_asked(self) -> None:
        assert list(cluster.rights(here())) == [Ok(str(right), "in namespace nightshift") for right in RIGHTS]

    @pytest.mark.parametrize("right", RIGHTS, ids=str)
    def test_one_that_is_missing_is_named(self, right: object) -> None:
        found = [each for each in cluster.rights(at(Cluster(denied={str(right)}))) if not isinstance(each, Ok)]

        assert [each.check for each in found] == [str(right)]
        assert isinstance(found[0], Failed)
        assert f"--role=nightshift-airflow --user={USER}" in found[0].fix


class TestQueue:
    def test_the_way_is_open(self) -> None:
        assert only(queue.manifest, here(job=QUEUED)) == Ok("manifest", "the JobSet of job can be rendered for cpu")
        assert only(queue.queue, here(job=QUEUED)) == Ok(
            "queue", "LocalQueue nightly, ClusterQueue nightshift, flavors no-accelerator"
        )
        assert only(queue.quotas, here(job=QUEUED)) == Ok(
            "quota cpu", "ClusterQueue nightshift has room for 1 worker when it is empty"
        )

    def test_a_job_without_a_queue(self) -> None:
        assert isinstance(only(queue.queue, here(job=a_spec())), Skipped)

    @pytest.mark.parametrize(
        ("path", "wrong", "fix"),
        [
            (LOCAL_QUEUE, "no LocalQueue nightly in namespace nightshift", "k8s/components/queues/queue.yaml"),
            (CLUSTER_QUEUE, "names ClusterQueue nightshift, which is not there", "kubectl apply"),
            (FLAVOR, "names ResourceFlavor no-accelerator, which is not there", "kubectl apply"),
        ],
    )
    def test_a_part_is_missing(self, path: str, wrong: str, fix: str) -> None:
        faulty = Cluster()
        del faulty.objects[path]

        found = problem(queue.queue, at(faulty))

        assert wrong in found.problem
        assert fix in found.fix

    @pytest.mark.parametrize("path", [LOCAL_QUEUE, CLUSTER_QUEUE])
    def test_a_part_is_stopped_or_not_active(self, path: str) -> None:
        stopped, inactive = Cluster(), Cluster()
        stopped.objects[path]["spec"]["stopPolicy"] = "Hold"
        inactive.objects[path]["status"] = {"conditions": [{"type": "Active", "status": "False", "message": "no flavor"}]}

        assert "stopPolicy Hold" in problem(queue.queue, at(stopped)).problem
        assert "no flavor" in problem(queue.queue, at(inactive)).problem

    @pytest.mark.parametrize("path", [LOCAL_QUEUE, CLUSTER_QUEUE, FLAVOR])
    def test_a_part_that_must_not_be_read_is_not_well(self, path: str) -> None:
        found = only(queue.queue, at(Cluster(hidden={path})))

        assert isinstance(found, Skipped)
        assert kueue.READERS in found.because

    def test_the_quota_is_too_small_for_all_its_workers(self) -> None:
        found = problem(queue.quotas, at(Cluster(), a_spec(queue="nightly", compute__workers=3)))

        assert "would never admit 3 workers" in found.problem
        assert "3 workers need 4.5 of cpu, and it has 4" in found.problem
        assert found.fix == "kubectl edit clusterqueue nightshift"

    def test_an_accelerator_that_the_queue_does_not_cover(self) -> None:
        found = problem(queue.quotas, at(Cluster(), a_spec(queue="nightly", compute={"profile": "gpu-l4", "fallback": []})))

        assert "nvidia.com/gpu, which the queue does not cover" in found.problem

    def test_an_override_file_that_is_not_there(self) -> None:
        found = problem(queue.manifest, at(Cluster(), pod_patch="/nowhere.yaml"))

        assert "/nowhere.yaml" in found.problem
        assert found.fix.startswith("nightshift render")


def gpu_queue(**spec: Any) -> dict[str, Any]:
    def flavor(name: str, gpus: int) -> dict[str, Any]:
        return {"name": name, "resources": [{"name": "cpu", "nominalQuota": 8}, {"name": "gpu", "nominalQuota": gpus}]}

    group = {"coveredResources": ["cpu", "gpu"], "flavors": [flavor("l4", 2), flavor("plain", 0)]}
    return {"metadata": {"name": "q"}, "spec": {"resourceGroups": [group], **spec}}


FLAVORS: dict[str, dict[str, Any]] = {
    "l4": {"spec": {"nodeLabels": {"kind": "l4"}, "nodeTaints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}},
    "plain": {"spec": {}},
}
TOLERANT = ({"key": "gpu", "operator": "Exists"},)


def demand(gpus: int, selector: dict[str, str] | None = None, tolerations: Any = TOLERANT) -> quota.Demand:
    return quota.Demand({"pods": Decimal(1), "cpu": Decimal(1), "gpu": Decimal(gpus)}, selector or {}, tolerations)


class TestQuota:
    def test_it_fits(self) -> None:
        assert quota.refusal(demand(2, {"kind": "l4", "other": "label"}), gpu_queue(), FLAVORS) is None

    def test_it_does_not(self) -> None:
        assert quota.refusal(demand(3, {"kind": "l4"}), gpu_queue(), FLAVORS) == quota.Refusal(
            "no flavor of l4 has enough quota", (("gpu", Decimal(3), Decimal(2)),)
        )

    @pytest.mark.parametrize(
        ("selector", "tolerations"),
        [
            ({"kind": "h100"}, TOLERANT),
            ({"kind": "l4"}, ()),
            ({"kind": "l4"}, ({"key": "gpu", "value": "no"},)),
            ({"kind": "l4"}, ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"},)),
        ],
    )
    def test_no_flavor_takes_the_pods(self, selector: dict[str, str], tolerations: Any) -> None:
        refused = quota.refusal(demand(1, selector, tolerations), gpu_queue(), FLAVORS)

        assert refused is not None
        assert "none of its flavors (l4, plain)" in refused.why

    @pytest.mark.parametrize(
        "toleration",
        [{"operator": "Exists"}, {"key": "gpu", "value": "yes"}, {"key": "gpu", "operator": "Equal", "value": "yes"}],
    )
    def test_a_toleration_as_kubernetes_reads_it(self, toleration: dict[str, str]) -> None:
        assert quota.refusal(demand(1, {"kind": "l4"}, (toleration,)), gpu_queue(), FLAVORS) is None

    def test_a_cohort_may_lend(self) -> None:
        with pytest.raises(quota.Unknown, match="its cohort may lend the rest"):
            quota.refusal(demand(3, {"kind": "l4"}), gpu_queue(cohortName="all"), FLAVORS)

    def test_a_limit_to_borrowing_is_the_most(self) -> None:
        limited = gpu_queue(cohortName="all")
        limited["spec"]["resourceGroups"][0]["flavors"][0]["resources"][1]["borrowingLimit"] = 1

        refused = quota.refusal(demand(4, {"kind": "l4"}), limited, FLAVORS)

        assert refused is not None
        assert refused.lacking == (("gpu", Decimal(4), Decimal(3)),)

    def test_the_demand_of_two_workers(self) -> None:
        """A sidecar counts like any container, and a limit stands for the request that is missing."""
        container = {"resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "2", "memory": "1Mi"}}}
        sidecar = {**container, "restartPolicy": "Always"}
        pod = {"initContainers": [sidecar], "containers": [container], "nodeSelector": {"a": "b"}}
        job = {"replicas": 2, "template": {"spec": {"parallelism": 3, "template": {"spec": pod}}}}

        found = quota.demand_of({"spec": {"replicatedJobs": [job]}})

        assert found.requests == {"pods": 6, "cpu": Decimal(6), "memory": Decimal(12 * MIB)}
        assert found.node_selector == {"a": "b"}

    @pytest.mark.parametrize(("cpu", "most"), [("1", 2), ("2", 2), ("5", 5)])
    def test_of_a_container_that_ends_before_the_others_start_only_what_is_more(self, cpu: str, most: int) -> None:
        one = {"resources": {"requests": {"cpu": "1"}}}
        first = {"resources": {"requests": {"cpu": cpu}}}
        pod = {"initContainers": [first, {**one, "restartPolicy": "Always"}], "containers": [one]}
        job = {"replicas": 1, "template": {"spec": {"parallelism": 1, "template": {"spec": pod}}}}

        assert quota.demand_of({"spec": {"replicatedJobs": [job]}}).requests["cpu"] == most


class TestWorkersMost:
    """How many workers fit together; each asks for one cpu and some GPUs."""

    @pytest.mark.parametrize(
        ("gpus", "selector", "most"),
        [(1, {"kind": "l4"}, 2), (2, {"kind": "l4"}, 1), (3, {"kind": "l4"}, 0), (1, {"kind": "h100"}, 0), (0, {}, 8)],
    )
    def test_an_empty_queue(self, gpus: int, selector: dict[str, str], most: int) -> None:
        assert quota.workers_most(demand(gpus, selector), gpu_queue(), FLAVORS) == most

    def test_every_resource_counts(self) -> None:
        """Eight cpus are enough for two workers of four, whatever GPUs there are."""
        hungry = replace(demand(1, {"kind": "l4"}), requests={"cpu": Decimal(5), "gpu": Decimal(1)})

        assert quota.workers_most(hungry, gpu_queue(), FLAVORS) == 1

    def test_what_the_queue_does_not_cover_is_never_admitted(self) -> None:
        more = replace(demand(1), requests={"tpu": Decimal(1)})

        assert quota.workers_most(more, gpu_queue(), FLAVORS) == 0

    def test_what_may_be_borrowed_counts(self) -> None:
        lent = gpu_queue(cohortName="all")
        for each in lent["spec"]["resourceGroups"][0]["flavors"]:
            for resource in each["resources"]:
                resource["borrowingLimit"] = "3"

        assert quota.workers_most(demand(1, {"kind": "l4"}), lent, FLAVORS) == 5

    def test_a_cohort_that_lends_without_a_limit(self) -> None:
        with pytest.raises(quota.Unknown):
            quota.workers_most(demand(1, {"kind": "l4"}), gpu_queue(cohortName="all"), FLAVORS)

    def test_it_agrees_with_the_doctor(self) -> None:
        """As many as it says are admitted, and one more is refused."""
        for gpus in (1, 2):
            most = quota.workers_most(demand(gpus, {"kind": "l4"}), gpu_queue(), FLAVORS)
            for workers in (most, most + 1):
                one = demand(gpus, {"kind": "l4"})
                all_ = replace(one, requests={name: value * workers for name, value in one.requests.items()})
                assert (quota.refusal(all_, gpu_queue(), FLAVORS) is None) == (workers == most)
