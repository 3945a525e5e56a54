"""A stream's manifests: the numbers in them, what each variant adds, what is refused; and whole ones that a person has read.

``python -m tests.unit.stream.test_manifests`` writes tests/unit/manifests/streams/ again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from psycopg import pq

from nightshift.cli.render_stream import StreamOptions, preview
from nightshift.jobset.manifest.yaml_text import to_yaml
from nightshift.settings import Settings
from nightshift.stream.manifests.render import Unrenderable, render
from nightshift.stream.manifests.render_request import StreamRequest, Variant
from tests.stream_manifests import CANARY, CLUSTER, EXAMPLE, GATEWAY, PLAIN, SCALING, VARIANTS, a_stream, an_order
from tests.unit.spec_file import changed, write

pytestmark = pytest.mark.unit

GOLDEN = Path(__file__).parents[1] / "manifests/streams"
SETTINGS = Settings(bucket="runs", project="acme", runtime=CLUSTER)


def rendered(variant: Variant = PLAIN, **changes: Any) -> dict[tuple[str, str], dict[str, Any]]:
    """By kind and name."""
    return {(each["kind"], each["metadata"]["name"]): each for each in render(an_order(variant, SETTINGS, **changes))}


def refused(variant: Variant = PLAIN, **changes: Any) -> list[str]:
    with pytest.raises(Unrenderable) as caught:
        render(an_order(variant, SETTINGS, **changes))
    return str(caught.value).splitlines()


def test_servers_may_have_an_account_of_their_streams_own() -> None:
    order = an_order(PLAIN, Settings(bucket="runs", project="acme", service_account="nightshift-{job}"))
    pods = {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]["serviceAccountName"]
        for each in render(order)
        if each["kind"] == "Deployment"
    }

    assert pods == {
        f"{order.spec.job}-server": f"nightshift-{order.spec.job}",
        f"{order.spec.job}-subscriber": f"{order.spec.job}-subscriber",
    }


def golden() -> Iterator[tuple[str, str]]:
    for name, (variant, changes) in VARIANTS.items():
        yield name, "---\n".join(to_yaml(each) for each in render(an_order(variant, SETTINGS, **changes)))


@pytest.mark.parametrize(("name", "text"), list(golden()), ids=lambda value: value if "\n" not in value else "")
def test_whole_manifests(name: str, text: str) -> None:
    assert (GOLDEN / f"{name}.yaml").read_text() == text


def test_every_variant_has_its_file() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == {name for name, _ in golden()}


def test_subscribers_follow_the_backlog_by_the_formula() -> None:
    """replicas = backlog / (target x throughput): HPA divides the metric by AverageValue."""
    [metric] = rendered()["HorizontalPodAutoscaler", "package-texts-subscriber"]["spec"]["metrics"]

    assert metric["external"]["metric"]["name"] == "pubsub.googleapis.com|subscription|num_undelivered_messages"
    assert metric["external"]["metric"]["selector"] == {
        "matchLabels": {"resource.labels.project_id": "acme", "resource.labels.subscription_id": "package-texts"}
    }
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": "750"}


@pytest.mark.parametrize(("throughput", "target", "value"), [(0.001, "1s", "1"), (1.99, "1s", "1"), (0.35, "10s", "3")])
def test_the_share_of_a_subscriber_is_rounded_down(throughput: float, target: str, value: str) -> None:
    """So that there is rather one subscriber more; and never zero, which HPA refuses."""
    found = rendered(scaling={**SCALING, "messages_per_second": throughput}, latency={"target": target, "flush": "10ms"})
    [metric] = found["HorizontalPodAutoscaler", "package-texts-subscriber"]["spec"]["metrics"]

    assert metric["external"]["target"]["averageValue"] == value


@pytest.mark.parametrize(
    ("scaling", "replicas"),
    [
        ({}, (1, 4)),
        ({"subscribers_per_server": 3}, (1, 12)),
        ({"subscribers": {"min": 2, "max": 3}}, (2, 3)),
    ],
)
def test_there_are_no_more_subscribers_than_the_quota_of_servers_can_answer(
    scaling: dict[str, Any], replicas: tuple[int, int]
) -> None:
    spec = rendered(scaling={**SCALING, **scaling})["HorizontalPodAutoscaler", "package-texts-subscriber"]["spec"]

    assert (spec["minReplicas"], spec["maxReplicas"]) == replicas


@pytest.mark.parametrize(("servers", "seats", "value"), [({}, 64, "16"), ({}, 2, "1"), ({"waiting_requests": 7}, 64, "7")])
def test_servers_follow_the_requests_that_wait_in_them(servers: dict[str, Any], seats: int, value: str) -> None:
    found = rendered(scaling={**SCALING, "servers": {"max": 4, **servers}}, engine={"max_num_seqs": seats})
    [metric] = found["HorizontalPodAutoscaler", "package-texts-server"]["spec"]["metrics"]

    assert metric == {
        "type": "Pods",
        "pods": {
            "metric": {"name": "prometheus.googleapis.com|vllm:num_requests_waiting|gauge"},
            "target": {"type": "AverageValue", "averageValue": value},
        },
    }


def test_the_autoscalers_scale_what_is_there_and_nothing_states_replicas() -> None:
    found = rendered()
    autoscalers = [each for (kind, _), each in found.items() if kind == "HorizontalPodAutoscaler"]

    assert len(autoscalers) == 2
    for each in autoscalers:
        target = each["spec"]["scaleTargetRef"]
        assert "replicas" not in found[target["kind"], target["name"]]["spec"], "each apply would undo the autoscaler"


def test_a_file_that_changes_rolls_the_subscribers() -> None:
    spec, names = a_stream(), []
    for text in ("job: package-texts\n", "job: package-texts # changed\n"):
        found = render(StreamRequest(spec, text, SETTINGS))
        [config] = [each for each in found if each["kind"] == "ConfigMap"]
        [pods] = [each for each in found if each["kind"] == "Deployment" and each["metadata"]["name"].endswith("-subscriber")]
        assert (config["data"]["stream.yaml"], config["immutable"]) == (text, True)
        [volume] = [each for each in pods["spec"]["template"]["spec"]["volumes"] if each["name"] == "stream"]
        assert volume["configMap"]["name"] == config["metadata"]["name"]
        names.append(config["metadata"]["name"])

    assert len(set(names)) == 2


def test_only_what_selects_pods_reaches_them() -> None:
    """Every selector fits the labels of exactly one Deployment's pods."""
    found = rendered()
    pods = {
        name: each["spec"]["template"]["metadata"]["labels"] for (kind, name), each in found.items() if kind == "Deployment"
    }
    assert set(pods) == {"package-texts-subscriber", "package-texts-server"}
    for (kind, name), each in found.items():
        if kind in ("PodDisruptionBudget", "PodMonitoring", "Deployment", "NetworkPolicy", "Service"):
            selector = each["spec"].get("selector") or each["spec"]["podSelector"]
            labels = selector if kind == "Service" else selector["matchLabels"]
            assert [pod for pod, own in pods.items() if labels.items() <= own.items()] == [name], kind


def test_an_object_of_a_run_is_never_selected() -> None:
    """k8s/ selects the pods of runs by this label: their metrics would be counted twice, and their policy would let more in."""
    for each in rendered().values():
        assert each["metadata"]["labels"]["app.kubernetes.io/name"] == "nightshift-stream"


def test_subscribers_have_an_account_of_their_own_and_the_sinks_url_is_only_in_a_secret() -> None:
    found = rendered()
    pod = found["Deployment", "package-texts-subscriber"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    env = {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}

    assert pod["serviceAccountName"] == "package-texts-subscriber"
    assert ("ServiceAccount", "package-texts-subscriber") in found
    assert env == {
        "ENGINE_URL": "http://package-texts-server:8000",
        "NIGHTSHIFT_PROJECT": "acme",
        "NIGHTSHIFT_SINK_URL": {"secretKeyRef": {"name": "package-texts-sink", "key": "url"}},
    }
    assert found["Service", "package-texts-server"]["spec"]["ports"][0]["port"] == 8000


def test_files_need_no_secret_and_no_way_to_a_database() -> None:
    found = rendered(sink={"files": "gs://bucket/answers", "column": "embedding"})
    pod = found["Deployment", "package-texts-subscriber"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    policy = found["NetworkPolicy", "package-texts-subscriber"]["spec"]

    assert "NIGHTSHIFT_SINK_URL" not in {each["name"] for each in container["env"]}
    assert 5432 not in [port["port"] for rule in policy["egress"] for port in rule["ports"]]


IAM = "postgresql://texts%40acme.iam@10.1.2.3:6432/catalog"


@pytest.mark.parametrize(
    ("url", "to", "ports"),
    [
        ("", None, [5432, 5433, 6432]),
        ("postgresql://u:p@10.1.2.3/d", ["10.1.2.3/32"], [5432]),
        ("postgresql://u:p@10.1.2.3:6432/d", ["10.1.2.3/32"], [6432]),
        ("postgresql://u:p@10.1.2.3:5433,10.1.2.4:7777/d", ["10.1.2.3/32", "10.1.2.4/32"], [5433, 7777]),
        ("postgresql://u:p@[fd00::1]/d", ["fd00::1/128"], [5432]),
        ("postgresql://u:p@db.internal:7777/d", None, [7777]),
        ("postgresql://u:p@10.1.2.3,db.internal/d", None, [5432]),
        # A proxy in the pod, as a container of its own.
        ("postgresql://u:p@127.0.0.1:5432/d", None, [5433, 3307]),
        (IAM, ["10.1.2.3/32"], [6432]),
    ],
)
def test_subscribers_reach_the_database_at_its_ports(url: str, to: list[str] | None, ports: list[int]) -> None:
    policies = [each for each in render(replace(an_order(PLAIN, SETTINGS), sink_url=url)) if each["kind"] == "NetworkPolicy"]
    rule = policies[0]["spec"]["egress"][-1]

    assert policies[0]["metadata"]["name"] == "package-texts-subscriber"
    assert [each["port"] for each in rule["ports"]] == ports
    assert [each["ipBlock"]["cidr"] for each in rule.get("to", [])] == (to or [])


def test_a_password_is_never_in_the_manifests(tmp_path: Path) -> None:
    path = write(tmp_path, changed(EXAMPLE, scaling=SCALING), "stream.yaml")
    text = preview(StreamOptions(path), {"NIGHTSHIFT_SINK_URL": "postgresql://u:geheim@10.1.2.3:6432/d"})

    assert "geheim" not in text
    assert "name: package-texts-sink" in text
    assert "every address" not in text


def test_a_subscriber_that_logs_in_with_a_token_has_the_account_and_no_secret(tmp_path: Path) -> None:
    path = write(tmp_path, changed(EXAMPLE, scaling=SCALING), "stream.yaml")
    text = preview(StreamOptions(path), {"NIGHTSHIFT_SINK_URL": IAM})
    found = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(text)}
    account = found["ServiceAccount", "package-texts-subscriber"]["metadata"]["annotations"]
    [container] = found["Deployment", "package-texts-subscriber"]["spec"]["template"]["spec"]["containers"]

    assert account["iam.gke.io/gcp-service-account"] == "texts@acme.iam.gserviceaccount.com"
    scopes = [each.rpartition("/")[2] for each in account["iam.gke.io/scopes-override"].split(",")]
    assert scopes == ["cloud-platform", "userinfo.email", "openid", "alloydb.login", "sqlservice.login"]
    assert {"name": "NIGHTSHIFT_SINK_URL", "value": IAM} in container["env"]
    assert "secretKeyRef" not in text
    assert "# Subscribers act as texts@acme.iam.gserviceaccount.com" in text


@pytest.mark.parametrize("secret", ["sslpassword", "scram_client_key", "oauth_client_secret"])
def test_an_address_with_another_secret_is_in_no_deployment(secret: str) -> None:
    """Its account is, which is none."""
    if secret.encode() not in {option.keyword for option in pq.Conninfo.get_defaults()}:
        pytest.skip(f"this libpq has no {secret}")
    text = "".join(map(to_yaml, render(replace(an_order(PLAIN, SETTINGS), sink_url=f"{IAM}?sslcert=/c&{secret}=hush"))))

    assert "hush" not in text
    assert "secretKeyRef" in text
    assert "iam.gke.io/gcp-service-account: texts@acme.iam.gserviceaccount.com" in text


def test_without_the_library_of_the_database_it_is_said_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "nightshift.stream.sink_address", raising=False)
    order = an_order(PLAIN, SETTINGS)
    with pytest.raises(Unrenderable, match=r"cannot be read without psycopg.*extra stream.*or unset it"):
        render(replace(order, sink_url=IAM))
    assert render(replace(order, sink_url=""))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://ann%40acme.com@10.1.2.3/d", "NIGHTSHIFT_SINK_URL: ann@acme.com is a person's account"),
        ("postgresql://u:a@b@h/d", "NIGHTSHIFT_SINK_URL is not an address of PostgreSQL"),
        (f"{IAM}?sslmode=disable", "NIGHTSHIFT_SINK_URL: sslmode=disable would send the access token"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(url: str, said: str) -> None:
    with pytest.raises(Unrenderable) as caught:
        render(replace(an_order(PLAIN, SETTINGS), sink_url=url))

    assert str(caught.value).startswith(said)


def test_files_have_no_database_whatever_the_environment_says() -> None:
    order = replace(an_order(PLAIN, SETTINGS, sink={"files": "gs://bucket/answers", "column": "embedding"}), sink_url=IAM)

    assert order.database is None
    assert "NIGHTSHIFT_SINK_URL" not in "".join(map(to_yaml, render(order)))


def test_a_watched_folder_cannot_be_scaled_by_its_backlog() -> None:
    [problem] = refused(source={"prefix": "gs://bucket/in", "key": ["name", "version"]})

    assert problem.startswith("source.prefix: A watched folder has no backlog that an autoscaler can read")


def test_a_subscriber_has_time_to_drain() -> None:
    """15 s (nightshift.driver.drain), and the server outlives no grace."""
    for name in ("subscriber", "server"):
        pod = rendered()["Deployment", f"package-texts-{name}"]["spec"]["template"]["spec"]
        assert pod["terminationGracePeriodSeconds"] > 15


@pytest.mark.parametrize("owner", ["acme", "other"])
def test_each_metric_is_asked_of_the_project_that_has_it(owner: str) -> None:
    """Pub/Sub's of the subscription's project, stated or the deployment's, those of pods of the cluster's."""
    stated = "texts" if owner == "acme" else f"projects/{owner}/subscriptions/texts"
    plain = rendered(source__subscription=stated)
    [metric] = plain["HorizontalPodAutoscaler", "package-texts-subscriber"]["spec"]["metrics"]
    keda = rendered(Variant(keda=True), source__subscription=stated)
    triggers = [
        trigger["metadata"]
        for name in ("subscriber", "server")
        for trigger in keda["ScaledObject", f"package-texts-{name}"]["spec"]["triggers"]
    ]

    assert metric["external"]["metric"]["selector"]["matchLabels"]["resource.labels.project_id"] == owner
    [pods] = plain["HorizontalPodAutoscaler", "package-texts-server"]["spec"]["metrics"]
    assert "selector" not in pods["pods"]["metric"], "the adapter asks its own project, the cluster's"
    assert [each["serverAddress"].split("/")[5] for each in triggers] == [owner, owner, "acme-cluster"]
    # A metrics scope has several projects, with the same names in them.
    assert [f'project_id="{owner}"' in each["query"] for each in triggers] == [True, True, False]
    for label in (
        'project_id="acme-cluster"',
        'location="europe-west4"',
        'cluster="nightshift"',
        'namespace="nightshift"',
        'job="package-texts-server"',
    ):
        assert label in triggers[2]["query"]


def test_keda_is_refused_if_nothing_says_the_clusters_project() -> None:
    unknown = an_order(Variant(keda=True), replace(SETTINGS, runtime="kubernetes"))
    with pytest.raises(
        Unrenderable, match=r"^--keda: .*NIGHTSHIFT_RUNTIME does not name the cluster\. Set it to gke:projects/"
    ):
        render(unknown)
    # Their owner scales them.
    assert render(replace(unknown, variant=Variant(keda=True, engine_url="http://vllm:8000")))


@pytest.mark.parametrize(("least", "quiet"), [(0, "true"), (1, "false")])
def test_keda_reports_servers_without_a_metric_unless_there_may_be_none(least: int, quiet: str) -> None:
    found = rendered(Variant(keda=True), scaling={**SCALING, "servers": {"min": least, "max": 4}})
    backlog, waiting = found["ScaledObject", "package-texts-server"]["spec"]["triggers"]

    assert (backlog["metadata"]["ignoreNullValues"], waiting["metadata"]["ignoreNullValues"]) == ("false", quiet)


def test_keda_scales_both_by_the_backlog_and_to_zero() -> None:
    scaling = {**SCALING, "subscribers": {"min": 0}, "servers": {"min": 0, "max": 4}, "subscribers_per_server": 2}
    found = rendered(Variant(keda=True), scaling=scaling)
    subscribers, servers = (found["ScaledObject", f"package-texts-{name}"]["spec"] for name in ("subscriber", "server"))

    assert not [kind for kind, _ in found if kind == "HorizontalPodAutoscaler"]
    assert [(each["minReplicaCount"], each["maxReplicaCount"]) for each in (subscribers, servers)] == [(0, 8), (0, 4)]
    thresholds = [[each["metadata"]["threshold"] for each in spec["triggers"]] for spec in (subscribers, servers)]
    assert thresholds == [["750"], ["1500", "16"]]
    for spec in (subscribers, servers):
        backlog = spec["triggers"][0]
        assert 'subscription_id="package-texts"' in backlog["metadata"]["query"]
        assert backlog["metadata"]["ignoreNullValues"] == "false", "no data is not an empty backlog"
        assert backlog["metadata"]["activationThreshold"] == "0"
        assert all(("TriggerAuthentication", each["authenticationRef"]["name"]) in found for each in spec["triggers"])


def test_servers_of_others_are_called_and_not_rendered() -> None:
    found = rendered(Variant(engine_url="https://vllm.example/v2"))
    [container] = found["Deployment", "package-texts-subscriber"]["spec"]["template"]["spec"]["containers"]
    policy = found["NetworkPolicy", "package-texts-subscriber"]["spec"]

    assert not [name for _, name in found if name.endswith("-server")]
    assert {"name": "ENGINE_URL", "value": "https://vllm.example/v2"} in container["env"]
    assert {"ports": [{"protocol": "TCP", "port": 443}]} in policy["egress"]


def test_a_gateway_routes_the_url_that_subscribers_call() -> None:
    found = rendered(GATEWAY)
    pool, route = found["InferencePool", "package-texts-server"]["spec"], found["HTTPRoute", "package-texts"]["spec"]
    [rule] = route["rules"]

    labels = found["Deployment", "package-texts-server"]["spec"]["template"]["metadata"]["labels"]
    assert pool["selector"]["matchLabels"].items() <= labels.items()
    assert (route["parentRefs"], route["hostnames"]) == ([{"name": "inference", "namespace": "gateways"}], ["models.internal"])
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/texts"}}]
    assert rule["filters"][0]["urlRewrite"]["path"] == {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}
    assert [(each["name"], each["weight"]) for each in rule["backendRefs"]] == [("package-texts-server", 100)]


def test_gkes_load_balancer_asks_and_waits_as_the_servers_need() -> None:
    """It asks for / and ends a request after 30 s if no policy says otherwise."""
    found = rendered(GATEWAY, request__timeout="90s")
    name = "package-texts-server"
    health, backend = (found[kind, name]["spec"] for kind in ("HealthCheckPolicy", "GCPBackendPolicy"))
    [container] = found["Deployment", name]["spec"]["template"]["spec"]["containers"]
    ready = container["readinessProbe"]

    for policy in (health, backend):
        assert policy["targetRef"] == {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": name}
    assert health["default"]["config"] == {
        "type": "HTTP",
        "httpHealthCheck": {"port": container["ports"][0]["containerPort"], "requestPath": ready["httpGet"]["path"]},
    }
    assert health["default"]["timeoutSec"] <= health["default"]["checkIntervalSec"], "else the API refuses it"
    assert backend["default"] == {"timeoutSec": 90}


def test_each_pool_of_a_canary_has_policies_and_a_picker_of_its_own() -> None:
    found = rendered(VARIANTS["canary"][0])
    for name in ("package-texts-server", "package-texts-canary"):
        pool = found["InferencePool", name]["spec"]
        picker = pool["endpointPickerRef"]
        [port] = found["Service", picker["name"]]["spec"]["ports"]
        pod = found["Deployment", picker["name"]]["spec"]["template"]
        [container] = pod["spec"]["containers"]

        assert {found[kind, name]["spec"]["targetRef"]["name"] for kind in ("HealthCheckPolicy", "GCPBackendPolicy")} == {name}
        assert (picker["name"], picker["port"]["number"], picker["failureMode"]) == (f"{name}-epp", port["port"], "FailOpen")
        assert f"--pool-name={name}" in container["args"]
        assert found["Service", picker["name"]]["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
        assert not pool["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items(), "it is no server"
        [to_servers, _] = found["NetworkPolicy", picker["name"]]["spec"]["egress"]
        assert to_servers["to"] == [{"podSelector": pool["selector"]}]


def test_elsewhere_a_gateway_has_none_of_googles_policies(tmp_path: Path) -> None:
    found = render(an_order(GATEWAY, replace(SETTINGS, runtime="kubernetes")))
    path = write(tmp_path, changed(EXAMPLE, scaling=SCALING), "stream.yaml")
    options = StreamOptions(path, engine_url=GATEWAY.engine_url, gateway=GATEWAY.gateway)
    said = "NIGHTSHIFT_RUNTIME names no cluster of GKE"

    assert not {"HealthCheckPolicy", "GCPBackendPolicy"} & {each["kind"] for each in found}
    assert "InferencePool" in {each["kind"] for each in found}
    assert said in preview(options, {})
    assert said not in preview(options, {"NIGHTSHIFT_RUNTIME": CLUSTER})


def test_a_canary_gets_its_share_and_has_servers_of_its_own() -> None:
    found = rendered(VARIANTS["canary"][0])
    route = found["HTTPRoute", "package-texts"]["spec"]
    args = {
        name: found["Deployment", f"package-texts-{name}"]["spec"]["template"]["spec"]["containers"][0]["args"]
        for name in ("server", "canary")
    }

    assert "hostnames" not in route
    assert [(each["name"], each["weight"]) for each in route["rules"][0]["backendRefs"]] == [
        ("package-texts-server", 75),
        ("package-texts-canary", 25),
    ]
    assert "gs://models/minilm/2" in args["canary"]
    assert "sentence-transformers/all-MiniLM-L6-v2" in args["server"]
    assert found["HorizontalPodAutoscaler", "package-texts-canary"]["spec"]["maxReplicas"] == 2
    assert found["HorizontalPodAutoscaler", "package-texts-subscriber"]["spec"]["maxReplicas"] == 4


def test_a_slice_of_several_hosts_is_refused_with_what_to_do() -> None:
    several: dict[str, Any] = {"compute": {"profile": "tpu-v6e-spot", "topology": "4x4"}}

    [problem] = refused(**several)

    assert problem == (
        "compute: A Deployment's pod is one host, and this server needs 4. Choose a smaller one, or run the server yourself, "
        "for example with LeaderWorkerSet, and pass --engine-url."
    )
    assert rendered(Variant(engine_url="http://slice:8000"), **several)


def test_without_scaling_it_is_asked_for() -> None:
    [problem] = refused(scaling=None)

    assert problem.startswith("scaling: The key is missing, and replicas are planned from it.")


def test_everything_that_does_not_go_together_is_said_at_once() -> None:
    other = a_stream(model={**CANARY, "name": "other"}, scaling=None)
    found = refused(
        Variant(engine_url="ftp://x", canary=other),
        scaling={**SCALING, "subscribers": {"min": 0}},
    )

    assert [problem.split(": ")[0] for problem in found] == [
        "scaling.subscribers.min",
        "--engine-url",
        "--canary",
        "--canary",
        "--canary",
    ]
    assert refused(Variant(gateway="g"))[0].startswith("--gateway: Subscribers have to know its address.")
    assert "Only KEDA scales to zero" in refused(scaling={**SCALING, "servers": {"min": 0, "max": 1}})[0]
    same = Variant(engine_url="http://g", gateway="g", canary=a_stream())
    assert refused(same) == ["--canary: Both files name the same model, revision and engine. Change one of these there."]


def test_the_comments_say_the_formula_and_what_is_missing(tmp_path: Path) -> None:
    path = write(tmp_path, changed(EXAMPLE, scaling=SCALING), "stream.yaml")
    text = preview(StreamOptions(path), {"NIGHTSHIFT_POD_PATCH": "/patch.yaml"})
    comments = [line for line in text.splitlines() if line.startswith("# ")]

    assert "one for each 60s x 12.5/s = 750 of the messages in the backlog of package-texts (project PROJECT)." in comments[1]
    assert "at most 50 messages a second" in comments[2]
    assert "the Secret package-texts-sink, whose key url" in comments[3]
    assert "# NIGHTSHIFT_PROJECT is not set here: PROJECT is a placeholder." in comments
    assert any("NIGHTSHIFT_POD_PATCH" in line for line in comments)
    [config] = [each for each in yaml.safe_load_all(text) if each["kind"] == "ConfigMap"]
    assert config["data"]["stream.yaml"] == path.read_text()


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, text in golden():
        (GOLDEN / f"{name}.yaml").write_text(text)
