"""The whole doctor on a pretended Google Cloud: all well, then one fault after the other, each named alone and with its fix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from local.google_cloud import rest
from local.google_cloud import state as types
from local.google_cloud.state import full_name
from nightshift.doctor.checks import diagnose
from nightshift.doctor.findings import Failed, Ok, Report, Skipped
from tests.google_deployment import (
    AGENT,
    AIRFLOW,
    CLUSTER,
    CLUSTERS,
    DATA,
    DATABASE,
    DEAD,
    QUOTAS,
    SUBSCRIBER,
    SUBSCRIPTION,
    SUBSCRIPTION_OF_DEAD,
    TEXTS,
    TEXTS_NAME,
    TOPIC,
    Deployment,
    deploy,
    healthy,
)
from tests.unit.doctor.fakes import on

pytestmark = pytest.mark.unit

HPA = "autoscaling/HorizontalPodAutoscaler"
PRIORITY = "scheduling.k8s.io/PriorityClass"
CLASS = "cloud.google.com/ComputeClass"
POOL = f"{CLUSTER}/nodePools/l4-spot"


@pytest.fixture(autouse=True)
def _own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = MemoryStore()
    monkeypatch.setattr("nightshift.store.open_store", lambda _, credentials: memory)


@pytest.fixture
def made(tmp_path: Path) -> Deployment:
    # To render a stream whose database is known, which Airflow does not do, takes the extra stream.
    pytest.importorskip("psycopg")
    return healthy(tmp_path)


def examine(made: Deployment, stream: bool, connections: Any = None) -> Report:
    file = made.stream_file if stream else made.job_file
    return diagnose(made.environment, lambda _: connections or on(made.state), job_file=file)


def a_class(made: Deployment) -> None:
    """The job leaves the choice of machines to a ComputeClass."""
    made.job["compute"] = {"profile": "gpu-l4-any", "workers": 4}


NOT_ASKED = {"triggerer", "notifiers", "driver image", "server image", "model"}
"""What is no fault of a deployment: nobody triggered the DAG, images are on Docker Hub, and the Hub is off here."""


class TestAllIsWell:
    def test_for_a_job(self, made: Deployment) -> None:
        report = examine(made, stream=False)

        assert report.problems == (), report.lines()
        assert report.exit_code == 0
        assert {each.check for each in report.findings if isinstance(each, Skipped)} == NOT_ASKED | {"compute classes"}
        found = {each.check: each.found for each in report.findings if isinstance(each, Ok)}
        assert found["nodes gpu-l4-spot"] == "l4-spot (g2-standard-8, Spot, at most 16 nodes): room for 16 workers"
        assert found["priority class"] == "nightshift-batch has the value -10"

    def test_for_a_job_with_a_compute_class(self, made: Deployment) -> None:
        a_class(made)
        report = examine(made, stream=False)

        assert report.problems == (), report.lines()
        assert Ok("nodes gpu-l4-any", "ComputeClass nightshift-gpu-l4-x1 makes them") in report.findings

    def test_for_a_stream(self, made: Deployment) -> None:
        report = examine(made, stream=True)

        assert report.problems == (), report.lines()
        assert report.exit_code == 0
        silent = {each.check for each in report.findings if isinstance(each, Skipped)}
        assert silent == (NOT_ASKED - {"driver image"}) | {"stream image", "compute classes"}
        found = {each.check: each.found for each in report.findings if isinstance(each, Ok)}
        assert found["pool texts-server"] == "with its picker texts-server-epp"
        assert found["alloydb login"] == f"{TEXTS}, by IAM, as which texts-subscriber acts"

    def test_what_is_asked_of_google_needs_no_more_than_the_roles_of_the_page(self, made: Deployment) -> None:
        page = (Path(__file__).parents[3] / "docs/operate/doctor.md").read_text()
        bindings = [
            binding
            for name in (DATA, CLUSTERS)
            for binding in made.policy(types.PROJECT, full_name("cloudresourcemanager", "projects", name))
        ]

        roles = [each["role"].removeprefix("roles/") for each in bindings if f"serviceAccount:{AIRFLOW}" in each["members"]]
        assert [each for each in roles if f"`{each}`" not in page] == []


def low_priority(made: Deployment) -> None:
    made.of_cluster(PRIORITY, "nightshift-batch")["value"] = -100


def no_priority(made: Deployment) -> None:
    made.remove(PRIORITY, "nightshift-batch")


def low_pods(made: Deployment) -> None:
    pod = {
        "metadata": {"name": "notes-0"},
        "spec": {"priority": -100, "priorityClassName": "old"},
        "status": {"phase": "Pending"},
    }
    made.state.put("k8s.io/Pod", f"{CLUSTER}/k8s/namespaces/nightshift/pods/notes-0", pod)


def low_default(made: Deployment) -> None:
    del made.environment["NIGHTSHIFT_PRIORITY_CLASS"]
    found = {"metadata": {"name": "cheap"}, "value": -50, "globalDefault": True}
    made.state.put(PRIORITY, f"{CLUSTER}/k8s/priorityclasses/cheap", found)


def addon_off(key: str) -> Callable[[Deployment], None]:
    def off(made: Deployment) -> None:
        addons = made.cluster["addonsConfig"]
        addons[key] = {"enabled": False} if "enabled" in addons[key] else {"disabled": True}

    off.__name__ = f"off_{key}"
    return off


def mounted_without_fuse(made: Deployment) -> None:
    made.environment["NIGHTSHIFT_WEIGHTS"] = "mount"
    addon_off("gcsFuseCsiDriverConfig")(made)


def no_gateway_api(made: Deployment) -> None:
    made.cluster["networkConfig"]["gatewayApiConfig"] = {}


def no_prometheus(made: Deployment) -> None:
    made.cluster["monitoringConfig"] = {}


def no_workload_identity(made: Deployment) -> None:
    made.cluster["workloadIdentityConfig"] = {}
    made.state.of(types.NODE_POOL)[POOL]["config"]["workloadMetadataConfig"] = {"mode": "GKE_METADATA"}


def no_policies(made: Deployment) -> None:
    made.cluster["networkConfig"]["datapathProvider"] = "LEGACY_DATAPATH"


def no_endpoint(made: Deployment) -> None:
    made.cluster["controlPlaneEndpointsConfig"] = {}


def degraded(made: Deployment) -> None:
    made.cluster.update({"status": "DEGRADED", "conditions": [{"code": "UNKNOWN", "message": "nodes do not register"}]})


def old_cluster(made: Deployment) -> None:
    made.cluster["currentMasterVersion"] = "1.32.9-gke.100"


def no_cluster(made: Deployment) -> None:
    made.environment["NIGHTSHIFT_RUNTIME"] = made.environment["NIGHTSHIFT_RUNTIME"].replace(
        "clusters/nightshift", "clusters/gone"
    )


def no_pool(made: Deployment) -> None:
    made.state.remove(types.NODE_POOL, POOL)


def pool_on_demand(made: Deployment) -> None:
    made.state.of(types.NODE_POOL)[POOL]["config"]["spot"] = False


def small_pool(made: Deployment) -> None:
    made.state.of(types.NODE_POOL)[POOL]["autoscaling"]["totalMaxNodeCount"] = 2


def tainted_pool(made: Deployment) -> None:
    taint = {"key": "team", "value": "others", "effect": "NO_SCHEDULE"}
    made.state.of(types.NODE_POOL)[POOL]["config"]["taints"] = [taint]


def node_metadata(made: Deployment) -> None:
    made.state.of(types.NODE_POOL)[POOL]["config"]["workloadMetadataConfig"] = {"mode": "GCE_METADATA"}


def unspecified_metadata(made: Deployment) -> None:
    made.state.of(types.NODE_POOL)[POOL]["config"]["workloadMetadataConfig"] = {"mode": "MODE_UNSPECIFIED"}


def no_crd(made: Deployment) -> None:
    a_class(made)
    made.state.seconds = made.cluster["createdAtSeconds"] = 100


def no_class(made: Deployment) -> None:
    a_class(made)
    made.remove(CLASS, "nightshift-gpu-l4-x1")


def sick_class(made: Deployment) -> None:
    a_class(made)
    words = {"type": "Health", "status": "False", "reason": "NodepoolMisconfigured", "message": "no such reservation"}
    made.of_cluster(CLASS, "nightshift-gpu-l4-x1")["status"] = {"conditions": [words]}


def class_makes_nothing(made: Deployment) -> None:
    a_class(made)
    made.of_cluster(CLASS, "nightshift-gpu-l4-x1")["spec"]["nodePoolAutoCreation"] = {"enabled": False}


def class_of_others(made: Deployment) -> None:
    a_class(made)
    for rule in made.of_cluster(CLASS, "nightshift-gpu-l4-x1")["spec"]["priorities"]:
        rule["machineType"] = "g2-standard-12"


def class_too_early(made: Deployment) -> None:
    a_class(made)
    made.cluster["currentMasterVersion"] = "1.33.1-gke.100"


def no_quota(quota: str) -> Callable[[Deployment], None]:
    def fault(made: Deployment) -> None:
        prefix = full_name("cloudquotas", "projects", CLUSTERS, "locations", "global", "quotaPreferences")
        made.state.remove(types.QUOTA, f"{prefix}/{quota}")

    assert quota in QUOTAS
    fault.__name__ = f"no_quota_of_{quota}"
    return fault


def no_compute_api(made: Deployment) -> None:
    made.state.remove(types.SERVICE, full_name("serviceusage", "projects", CLUSTERS, "services", "compute.googleapis.com"))


def no_pubsub_api(made: Deployment) -> None:
    made.state.remove(types.SERVICE, full_name("serviceusage", "projects", DATA, "services", "pubsub.googleapis.com"))


def deleted_topic(made: Deployment) -> None:
    made.state.remove(types.TOPIC, TOPIC)


def push(made: Deployment) -> None:
    made.state.of(types.SUBSCRIPTION)[SUBSCRIPTION]["pushConfig"] = {"pushEndpoint": "https://example.com"}


def to_bigquery(made: Deployment) -> None:
    made.state.of(types.SUBSCRIPTION)[SUBSCRIPTION]["bigqueryConfig"] = {"table": "acme.d.t"}


def to_cloud_storage(made: Deployment) -> None:
    made.state.of(types.SUBSCRIPTION)[SUBSCRIPTION]["cloudStorageConfig"] = {"bucket": "kept"}


def detached(made: Deployment) -> None:
    made.state.of(types.SUBSCRIPTION)[SUBSCRIPTION]["detached"] = True


def no_order(made: Deployment) -> None:
    made.stream["source"] |= {"ordering": True}


def short_retention(made: Deployment) -> None:
    made.state.of(types.SUBSCRIPTION)[SUBSCRIPTION]["messageRetentionDuration"] = "3600s"


def retention_of_almost_a_day(made: Deployment) -> None:
    made.state.of(types.SUBSCRIPTION)[SUBSCRIPTION]["messageRetentionDuration"] = "86399s"


def policy_leads_back(made: Deployment) -> None:
    made.state.of(types.SUBSCRIPTION)[SUBSCRIPTION]["deadLetterPolicy"]["deadLetterTopic"] = TOPIC


def policy_to_a_deleted_topic(made: Deployment) -> None:
    made.state.of(types.SUBSCRIPTION)[SUBSCRIPTION]["deadLetterPolicy"]["deadLetterTopic"] = "projects/acme/topics/gone"


def no_dead_letter_policy(made: Deployment) -> None:
    del made.state.of(types.SUBSCRIPTION)[SUBSCRIPTION]["deadLetterPolicy"]


def dead_letters_unread(made: Deployment) -> None:
    made.state.remove(types.SUBSCRIPTION, SUBSCRIPTION_OF_DEAD)


def dead_letters_with_schema(made: Deployment) -> None:
    made.state.of(types.TOPIC)[DEAD]["schemaSettings"] = {"schema": "projects/acme/schemas/s", "encoding": "JSON"}


def no_dead_letter_topic(made: Deployment) -> None:
    made.stream["dead_letters"]["topic"] = "forgotten"


def dead_letters_come_back(made: Deployment) -> None:
    made.stream["dead_letters"]["topic"] = "texts"


def unbound(kind: str, name: str, member: str) -> Callable[[Deployment], None]:
    def fault(made: Deployment) -> None:
        bindings = made.policy(kind, name)
        bindings[:] = [each for each in bindings if member not in each["members"]]

    fault.__name__ = f"unbound_{name.rpartition('/')[2]}_{member.partition(':')[0]}"
    return fault


def publishes_on_a_condition(made: Deployment) -> None:
    for each in made.policy(types.TOPIC, DEAD):
        if SUBSCRIBER in each["members"]:
            each["condition"] = {"title": "until", "expression": "request.time < timestamp('2020-01-01T00:00:00Z')"}


def database_cluster_stopped(made: Deployment) -> None:
    made.state.of(types.ALLOYDB)[DATABASE]["state"] = "STOPPED"


def database_stopped(made: Deployment) -> None:
    made.state.of(types.ALLOYDB_INSTANCE)[f"{DATABASE}/instances/primary"]["state"] = "STOPPED"


def database_elsewhere(made: Deployment) -> None:
    made.state.of(types.ALLOYDB)[DATABASE]["networkConfig"] = {"network": "projects/acme/global/networks/private"}


def no_iam_flag(made: Deployment) -> None:
    made.state.of(types.ALLOYDB_INSTANCE)[f"{DATABASE}/instances/primary"]["databaseFlags"] = {}


def no_database_user(made: Deployment) -> None:
    made.state.remove(types.ALLOYDB_USER, f"{DATABASE}/users/texts@acme.iam")


def may_not_act(made: Deployment) -> None:
    made.state.of(types.SERVICE_ACCOUNT)[TEXTS_NAME]["iamPolicy"] = {"bindings": []}


def no_account(made: Deployment) -> None:
    made.state.remove(types.SERVICE_ACCOUNT, TEXTS_NAME)


def may_not_log_in(made: Deployment) -> None:
    bindings = made.policy(types.PROJECT, full_name("cloudresourcemanager", "projects", DATA))
    bindings[:] = [each for each in bindings if each["role"] != "roles/alloydb.databaseUser"]


def no_adapter(made: Deployment) -> None:
    made.remove("apps/Deployment", "custom-metrics-stackdriver-adapter")


def other_project(made: Deployment) -> None:
    """As release 0.2.0 rendered it: the selector without the project."""
    metric = made.of_cluster(HPA, "texts-subscriber")["spec"]["metrics"][0]["external"]["metric"]
    del metric["selector"]["matchLabels"]["resource.labels.project_id"]


def adapter_without_role(made: Deployment) -> None:
    bindings = made.policy(types.PROJECT, full_name("cloudresourcemanager", "projects", DATA))
    bindings[:] = [each for each in bindings if each["role"] != "roles/monitoring.viewer"]


def no_gateway(made: Deployment) -> None:
    made.remove("gateway.networking.k8s.io/Gateway", "inference")


def gateway_not_programmed(made: Deployment) -> None:
    words = {"type": "Programmed", "status": "False", "reason": "Invalid", "message": "no proxy-only subnet"}
    made.of_cluster("gateway.networking.k8s.io/Gateway", "inference")["status"] = {"conditions": [words]}


def route_refused(made: Deployment) -> None:
    words = {"type": "ResolvedRefs", "status": "False", "reason": "BackendNotFound", "message": "no pool"}
    made.of_cluster("gateway.networking.k8s.io/HTTPRoute", "texts")["status"] = {"parents": [{"conditions": [words]}]}


def no_health_check(made: Deployment) -> None:
    made.remove("networking.gke.io/HealthCheckPolicy", "texts-server")


def health_of_root(made: Deployment) -> None:
    policy = made.of_cluster("networking.gke.io/HealthCheckPolicy", "texts-server")
    policy["spec"]["default"]["config"]["httpHealthCheck"]["requestPath"] = "/"


def no_backend_policy(made: Deployment) -> None:
    made.remove("networking.gke.io/GCPBackendPolicy", "texts-server")


def backend_policy_not_attached(made: Deployment) -> None:
    words = {"type": "Attached", "status": "False", "reason": "TargetNotFound", "message": "no such pool"}
    made.of_cluster("networking.gke.io/GCPBackendPolicy", "texts-server")["status"] = {"conditions": [words]}


def no_picker(made: Deployment) -> None:
    made.remove("k8s.io/Service", "texts-server-epp")


NIGHT: list[Callable[[Deployment], None]] = [
    low_priority,
    no_priority,
    low_default,
    low_pods,
    no_cluster,
    degraded,
    old_cluster,
    no_endpoint,
    mounted_without_fuse,
    no_workload_identity,
    no_policies,
    no_pool,
    pool_on_demand,
    small_pool,
    tainted_pool,
    node_metadata,
    unspecified_metadata,
    no_crd,
    no_class,
    sick_class,
    class_makes_nothing,
    class_of_others,
    class_too_early,
    no_compute_api,
    no_quota("PREEMPTIBLE-NVIDIA-L4-GPUS-per-project-region"),
    no_quota("GPUS-ALL-REGIONS-per-project"),
    no_quota("CPUS-per-project-region"),
    no_quota("SSD-TOTAL-GB-per-project-region"),
]
STREAM: list[Callable[[Deployment], None]] = [
    addon_off("horizontalPodAutoscaling"),
    no_prometheus,
    no_pubsub_api,
    deleted_topic,
    push,
    to_bigquery,
    to_cloud_storage,
    detached,
    no_order,
    short_retention,
    retention_of_almost_a_day,
    policy_leads_back,
    policy_to_a_deleted_topic,
    no_dead_letter_policy,
    dead_letters_unread,
    dead_letters_with_schema,
    no_dead_letter_topic,
    dead_letters_come_back,
    unbound(types.TOPIC, DEAD, AGENT),
    unbound(types.SUBSCRIPTION, SUBSCRIPTION, AGENT),
    unbound(types.TOPIC, DEAD, SUBSCRIBER),
    unbound(types.SUBSCRIPTION, SUBSCRIPTION, SUBSCRIBER),
    publishes_on_a_condition,
    database_cluster_stopped,
    database_stopped,
    database_elsewhere,
    no_iam_flag,
    no_database_user,
    may_not_act,
    no_account,
    may_not_log_in,
    no_adapter,
    other_project,
    adapter_without_role,
    no_gateway,
    gateway_not_programmed,
    route_refused,
    no_health_check,
    health_of_root,
    no_backend_policy,
    backend_policy_not_attached,
    no_picker,
]
FAULTS = [(False, each) for each in NIGHT] + [(True, each) for each in STREAM]
LINES = Path(__file__).with_name("faults.txt").read_text().splitlines()
"""What the doctor says of each fault, in their order."""


@pytest.mark.parametrize(
    ("stream", "fault", "line"),
    [(*fault, line) for fault, line in zip(FAULTS, LINES, strict=True)],
    ids=[each[1].__name__ for each in FAULTS],
)
def test_a_fault_is_named_alone_and_with_its_fix(
    made: Deployment, stream: bool, fault: Callable[[Deployment], None], line: str
) -> None:
    fault(made)

    report = examine(made, stream)

    assert [each for each in report.lines() if each.startswith("failed ")] == [line], report.lines()
    assert report.exit_code == 1


def test_a_retention_of_a_day_will_do(made: Deployment) -> None:
    made.state.of(types.SUBSCRIPTION)[SUBSCRIPTION]["messageRetentionDuration"] = "86400s"

    assert examine(made, stream=True).problems == ()


def test_a_cluster_without_the_gateway_api_is_no_fault_while_no_stream_has_a_route(made: Deployment) -> None:
    no_gateway_api(made)
    report = examine(made, stream=True)

    [found] = [each for each in report.findings if each.check == "add-on Gateway API"]
    assert report.problems == ()
    assert isinstance(found, Skipped)
    assert "it is off in nightshift: only a stream behind a gateway needs it" in found.because
    assert found.because.endswith("--gateway-api=standard)")


@pytest.mark.parametrize("field", ["ipAddress", "publicIpAddress", "pscDnsName"])
def test_an_instance_is_known_by_each_of_its_addresses(made: Deployment, field: str) -> None:
    fields = made.state.of(types.ALLOYDB_INSTANCE)[f"{DATABASE}/instances/primary"]
    address = fields.pop("ipAddress")
    fields |= {"pscInstanceConfig": {field: f"{address}."}} if field == "pscDnsName" else {field: address}
    report = examine(made, stream=True)

    assert report.problems == ()
    assert [type(each) for each in report.findings if each.check == "alloydb"] == [Ok]


def test_what_google_writes_in_several_ways_is_well(made: Deployment) -> None:
    """A cluster that is being upgraded, a flag as the API may have it, Autopilot's drivers, which its document calls off."""
    made.cluster.update({"status": "RECONCILING", "autopilot": {"enabled": True}})
    mounted_without_fuse(made)
    made.state.of(types.ALLOYDB_INSTANCE)[f"{DATABASE}/instances/primary"]["databaseFlags"] = {
        "alloydb.iam_authentication": "true"
    }

    assert examine(made, stream=True).problems == ()


def test_of_several_profiles_the_one_that_needs_most_of_a_quota_counts(made: Deployment) -> None:
    made.job["compute"]["fallback"] = ["gpu-l4"]
    config = {**made.state.of(types.NODE_POOL)[POOL]["config"], "spot": False, "diskSizeGb": 2000}
    scaling = {"enabled": True, "totalMaxNodeCount": 16}
    made.state.put(types.NODE_POOL, f"{CLUSTER}/nodePools/l4", {"config": config, "autoscaling": scaling})

    lines = [each for each in examine(made, stream=False).lines() if "compute quota SSD_TOTAL_GB" in each]

    assert "4 workers need 8000 in europe-west4 of acme-gpu, and SSD_TOTAL_GB is 4096" in lines[0]


def test_a_quota_of_the_region_counts_before_the_projects_and_one_without_a_limit_holds_all(
    made: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(rest.PROJECT_QUOTAS, "SSD_TOTAL_GB", 1)
    no_quota("CPUS-per-project-region")(made)
    monkeypatch.setitem(rest.REGION_QUOTAS, "CPUS", -1)

    assert examine(made, stream=False).problems == ()


def test_more_workers_of_several_hosts_need_more_nodes_of_the_pool(made: Deployment) -> None:
    made.job["compute"] = {"profile": "tpu-v6e-spot", "topology": "4x4", "workers": 2, "fallback": []}
    fields = {
        "config": {"machineType": "ct6e-standard-4t", "spot": True},
        "placementPolicy": {"tpuTopology": "4x4"},
        "autoscaling": {"enabled": True, "totalMaxNodeCount": 4},
    }
    made.state.put(types.NODE_POOL, f"{CLUSTER}/nodePools/slice", fields)

    [nodes] = [each for each in examine(made, stream=False).problems if each.check == "nodes tpu-v6e-spot"]

    assert "has room for 1 of 2 workers" in nodes.problem
    assert nodes.fix.endswith("--total-max-nodes=8")


def test_addresses_count_the_nodes_that_are_always_there(made: Deployment) -> None:
    """Six workers and the three nodes of the default pool are more than the eight addresses of a new project."""
    made.job["compute"]["workers"] = 6
    no_quota("IN-USE-ADDRESSES-per-project-region")(made)

    [problem] = examine(made, stream=False).problems

    assert problem.check == "compute quota IN_USE_ADDRESSES"
    assert "6 workers need 9 in europe-west4 of acme-gpu, and IN_USE_ADDRESSES is 8" in problem.problem


def test_disks_of_nodes_that_a_class_makes_count_too(made: Deployment) -> None:
    a_class(made)
    no_quota("SSD-TOTAL-GB-per-project-region")(made)

    [problem] = examine(made, stream=False).problems

    assert problem.check == "compute quota SSD_TOTAL_GB"
    assert "4 workers need 680 in europe-west4 of acme-gpu, and SSD_TOTAL_GB is 500" in problem.problem


def test_private_nodes_have_no_addresses(made: Deployment) -> None:
    made.job["compute"]["workers"] = 6
    no_quota("IN-USE-ADDRESSES-per-project-region")(made)
    made.cluster["networkConfig"]["defaultEnablePrivateNodes"] = True

    assert examine(made, stream=False).problems == ()


def test_a_subscriber_without_a_google_account_is_known_by_its_kubernetes_account(made: Deployment) -> None:
    """Its database takes a password, and nobody has told Airflow of it."""
    deploy(made, sink_url="")

    wrong = examine(made, stream=True)
    own = "principal://iam.googleapis.com/projects/2/locations/global/workloadIdentityPools/p.svc.id.goog"
    for kind, name, role in ((types.SUBSCRIPTION, SUBSCRIPTION, "subscriber"), (types.TOPIC, DEAD, "publisher")):
        member = f"{own}/subject/ns/nightshift/sa/texts-subscriber"
        made.policy(kind, name).append({"role": f"roles/pubsub.{role}", "members": [member]})
    right = examine(made, stream=True)

    assert [each.check for each in wrong.problems] == ["subscriber's rights, subscriber", "subscriber's rights, publisher"]
    assert "subject/ns/nightshift/sa/texts-subscriber --role=roles/pubsub.publisher" in wrong.problems[1].fix
    assert right.problems == ()
    silent = {each.check: each.because for each in right.findings if isinstance(each, Skipped)}
    assert "nor a connection postgres_default of Airflow says where the stream's database is" in silent["alloydb"]


def watched(made: Deployment) -> None:
    made.stream["source"] = {"prefix": "gs://incoming/texts", "key": ["name"]}


def test_a_stream_that_watches_a_folder_has_dead_letters_too(made: Deployment) -> None:
    watched(made)
    well = examine(made, stream=True)
    unbound(types.TOPIC, DEAD, SUBSCRIBER)(made)
    mute = examine(made, stream=True)
    no_dead_letter_topic(made)
    gone = examine(made, stream=True)

    assert well.problems == (), well.lines()
    assert [each.check for each in mute.problems] == ["subscriber's rights, publisher"]
    assert [each.check for each in gone.problems] == ["dead-letter topic"]
    silent = {each.check: each.because for each in well.findings if isinstance(each, Skipped)}
    assert silent["subscription"] == silent["retention"] == "the stream texts watches a folder, and has no subscription"


def test_before_it_is_deployed_nobody_knows_whom_a_subscriber_will_be(made: Deployment) -> None:
    for kind, ends in (
        ("k8s.io/ServiceAccount", "texts-subscriber"),
        ("apps/Deployment", "texts-subscriber"),
        (HPA, "texts-subscriber"),
        (HPA, "texts-server"),
        ("gateway.networking.k8s.io/HTTPRoute", "texts"),
    ):
        made.remove(kind, ends)

    report = examine(made, stream=True)

    assert report.problems == ()
    silent = {each.check: each.because for each in report.findings if isinstance(each, Skipped)}
    assert "it is not deployed, so as whom it will act is not known" in silent["subscriber's rights, publisher"]
    assert "it is not deployed, or not scaled" in silent["autoscalers"]
    assert "has no HTTPRoute" in silent["gateway"]


class TestWhatMayNotBeAsked:
    """It is skipped, with the reason and the command that allows it, and never ok."""

    @pytest.mark.parametrize(
        ("role", "stream", "checks", "permission"),
        [
            ("container.clusterViewer", False, {"gke cluster"}, "container.clusters.get"),
            ("compute.viewer", False, {"compute quotas"}, "compute.regions.get"),
            ("pubsub.viewer", True, {"subscription"}, "pubsub.subscriptions.get"),
            ("alloydb.viewer", True, {"alloydb"}, "alloydb.instances.list"),
            ("iam.securityReviewer", True, {"Pub/Sub's service agent", "subscriber's rights"}, "getIamPolicy"),
        ],
    )
    def test_without_a_role(self, made: Deployment, role: str, stream: bool, checks: set[str], permission: str) -> None:
        for project in (DATA, CLUSTERS):
            bindings = made.policy(types.PROJECT, full_name("cloudresourcemanager", "projects", project))
            bindings[:] = [each for each in bindings if each["role"] != f"roles/{role}"]

        report = examine(made, stream)

        assert report.problems == ()
        silent = {each.check: each.because for each in report.findings if isinstance(each, Skipped)}
        assert checks <= silent.keys()
        for check in checks:
            assert permission in silent[check]
            assert f"--member=serviceAccount:{AIRFLOW} --role=roles/{role}" in silent[check]
        assert not checks & {each.check for each in report.findings if isinstance(each, Ok)}

    def test_without_the_rights_in_the_cluster(self, made: Deployment) -> None:
        made.remove("rbac.authorization.k8s.io/ClusterRoleBinding", "nightshift-doctor")

        report = examine(made, stream=True)

        assert report.problems == ()
        silent = {each.check: each.because for each in report.findings if isinstance(each, Skipped)}
        for check in ("priority class", "autoscalers", "gateway", "route", "pools", "subscriber's rights"):
            assert "kubectl apply -f k8s/components/doctor/reader.yaml" in silent[check]

    def test_an_api_of_the_doctor_alone_that_is_off_is_no_fault(self, made: Deployment) -> None:
        made.job["compute"] = {"profile": "gpu-h200-spot", "fallback": [], "workers": 1}
        gpu = {"acceleratorType": "nvidia-h200-141gb", "acceleratorCount": "8"}
        config = {"machineType": "a3-ultragpu-8g", "spot": True, "accelerators": [gpu], "diskType": "hyperdisk-balanced"}
        fields = {"config": config, "autoscaling": {"enabled": True, "totalMaxNodeCount": 1}}
        made.state.put(types.NODE_POOL, f"{CLUSTER}/nodePools/h200", fields)
        name = full_name("serviceusage", "projects", CLUSTERS, "services", "cloudquotas.googleapis.com")
        asked = [each for each in examine(made, stream=False).findings if each.check.endswith("H200_GPUS")]
        made.state.remove(types.SERVICE, name)
        off = [each for each in examine(made, stream=False).findings if each.check.endswith("H200_GPUS")]

        assert isinstance(asked[0], Failed)
        assert "--quota-id=PREEMPTIBLE-NVIDIA-H200-GPUS-per-project-region" in asked[0].fix
        assert isinstance(off[0], Skipped)
        assert "gcloud services enable cloudquotas.googleapis.com --project=acme-gpu" in off[0].because

    def test_a_subscription_that_is_gone_explains_what_hangs_on_it(self, made: Deployment) -> None:
        made.stream["source"]["subscription"] = "elsewhere"

        report = examine(made, stream=True)

        assert "subscription" in [each.check for each in report.problems]
        assert {each.check for each in report.findings if isinstance(each, Skipped) and each.needs == "subscription"} == {
            *("retention", "dead-letter policy", "Pub/Sub's service agent", "dead-letter topic")
        }
        assert "subscriber's rights" not in {each.check for each in report.problems}
