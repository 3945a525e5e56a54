"""A stream as `nightshift render` prints it, under the real autoscaler: the backlog decides subscribers, what waits servers.

The pods run the real subscriber, in the image that a cluster gets, between the Pub/Sub emulator and a real PostgreSQL. Where
vLLM would be is the tests' engine, which computes a few rows at once and says truthfully what waits. Metrics come from
`local.cluster.metrics`, which is as strict about names and selectors as Google's adapter.

Of what is rendered, a test changes what two cores demand (images, resources) and how long the autoscaler waits; its metrics,
targets, limits and selectors are as rendered.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
import yaml

from local.cluster import metrics
from local.cluster.cluster import Cluster
from local.cluster.faults import Faults
from local.cluster.processes import StartError
from nightshift.jobset.manifest.constants import ENGINE_PORT
from nightshift.settings import Settings
from nightshift.spec import StreamSpec
from nightshift.stream.manifests.render import render
from nightshift.stream.manifests.render_request import StreamRequest
from tests.cluster.kube import IMAGE, Namespace
from tests.cluster.relay import Relay
from tests.cluster.watch import Watch
from tests.integration.emulators import PROJECT, start_postgres, start_pubsub
from tests.integration.pubsub import PubSub

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]

ENGINE: Final = Path(__file__).with_name("engine.py")
SEATS: Final = 8
ROW_S: Final = 0.5
MESSAGES: Final = 4000
"""At 16 a second and server, two servers take two minutes for them."""
SUBSCRIBERS, SERVERS = "texts-subscriber", "texts-server"
QUICK_S: Final = 15
"""In place of the minutes that the autoscaler waits otherwise; it looks every 15 s."""
PATIENCE_S: Final = 600.0
SMALL: Final = {"requests": {"cpu": "10m"}}


@dataclass
class Stage:
    """A stream in a namespace, and what it reads and writes."""

    cluster: Cluster
    namespace: Namespace
    pubsub: PubSub
    subscription: str
    topic: str
    database: str
    sink: str
    table: str = "texts"

    def document(self) -> dict[str, Any]:
        """The stream's file. One subscriber answers 20 messages a second within 10 s: so many, 200, for each subscriber."""
        return {
            "job": "texts",
            "owner": "tests",
            "source": {"subscription": self.subscription, "format": "json"},
            "task": "embedding",
            "request": {"input": "{{ text }}", "dimensions": 2, "timeout": "30s"},
            "model": {"name": "m", "uri": "hf://a/b", "revision": "1"},
            "engine": {"max_num_seqs": SEATS},
            "latency": {"target": "10s", "flush": "50ms"},
            "sink": {"table": self.table, "column": "embedding"},
            "dead_letters": {"topic": self.pubsub.topic()},
            "compute": {"profile": "cpu"},
            "scaling": {"messages_per_second": 20, "subscribers_per_server": 2, "servers": {"max": 2}},
        }

    def deploy(self) -> None:
        document = self.document()
        settings = Settings(bucket="none", project=PROJECT, namespace=self.namespace.name, image_pull_policy="IfNotPresent")
        order = StreamRequest(StreamSpec.model_validate(document), yaml.safe_dump(document), settings)
        secret = ("create", "secret", "generic", "texts-sink", f"--from-literal=url={self.sink}")
        self.namespace.kubectl(*secret)
        self.namespace.kubectl("create", "serviceaccount", "nightshift-worker")
        documents = [self.here(each) for each in render(order)]
        self.namespace.kubectl("apply", "--server-side", "--validate=strict", "-f", "-", text=yaml.safe_dump_all(documents))

    def here(self, document: dict[str, Any]) -> dict[str, Any]:
        """What this machine needs different."""
        if document["kind"] == "HorizontalPodAutoscaler":
            behavior = document["spec"]["behavior"]
            behavior["scaleDown"]["stabilizationWindowSeconds"] = QUICK_S
            for direction in behavior.values():
                direction["policies"][0]["periodSeconds"] = QUICK_S
        if document["kind"] == "Deployment":
            [container] = document["spec"]["template"]["spec"]["containers"]
            container["resources"] = SMALL
            if container["name"] == "subscriber":
                container["env"].append({"name": "PUBSUB_EMULATOR_HOST", "value": self.pubsub.emulator.target})
            else:
                engine = {"ENGINE_PORT": ENGINE_PORT, "ENGINE_SEATS": SEATS, "ENGINE_ROW_S": ROW_S}
                container |= {
                    "image": IMAGE,
                    "command": ["python3", "-u", "-c", ENGINE.read_text()],
                    "env": [{"name": name, "value": str(value)} for name, value in engine.items()],
                }
                del container["args"]
        return document

    def publish(self, numbers: range) -> None:
        for start in range(numbers.start, numbers.stop, 500):
            part = range(start, min(start + 500, numbers.stop))
            self.pubsub.publish(self.topic, *(json.dumps({"text": f"text {number}"}).encode() for number in part))

    @property
    def backlog(self) -> int:
        return int(self.pubsub.statistics(self.subscription)["num_undelivered_messages"])

    def replicas(self) -> dict[str, int]:
        """Of each Deployment, those that it has now."""
        found = self.namespace.get("deployments")
        return {each["metadata"]["name"]: each["status"].get("replicas", 0) for each in found}

    def reach(self, name: str, count: int) -> None:
        self.namespace.wait_until(f"{name} x {count}", lambda: self.replicas().get(name) == count, PATIENCE_S)

    def answered(self) -> Counter[str]:
        """How often each message's id is in the sink."""
        with psycopg.connect(self.database) as connection:
            return Counter(row[0] for row in connection.execute(f"SELECT nightshift_message_id FROM {self.table}"))

    def dead(self) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database) as connection:
            return connection.execute(f"SELECT message_id, reason, text FROM {self.table}_dead_letters").fetchall()


@pytest.fixture
def stage(own_cluster: Cluster, namespace: Namespace, stream_kinds: None, stream_tar: Path, tmp_path: Path) -> Iterator[Stage]:
    database = start_postgres(tmp_path)
    emulator = start_pubsub(tmp_path, own_cluster.gateway)
    pubsub = PubSub(emulator)
    try:
        topic, subscription = pubsub.pair(ack_deadline_seconds=20)
        with Relay(own_cluster.gateway, ("127.0.0.1", database.port)) as relay, metrics.served(own_cluster, emulator.control):
            sink = database.url.replace(f"127.0.0.1:{database.port}", f"{relay.host}:{relay.port}")
            assert sink != database.url
            yield Stage(own_cluster, namespace, pubsub, subscription, topic, database.url, sink)
    finally:
        pubsub.close()
        emulator.stop()
        database.stop()


def counts(watch: Watch) -> dict[str, list[int]]:
    """The replicas of each Deployment, in the order in which they were seen, without repeats."""
    found: dict[str, list[int]] = {}
    for _, each in watch.changes():
        seen = found.setdefault(each["metadata"]["name"], [])
        count = each["status"].get("replicas", 0)
        if not seen or seen[-1] != count:
            seen.append(count)
    return found


def limited(watch: Watch, name: str) -> bool:
    """Whether the autoscaler ever wanted more than it may have."""
    conditions = [
        condition
        for _, each in watch.changes()
        if each["metadata"]["name"] == name
        for condition in each.get("status", {}).get("conditions", [])
    ]
    return any(each["reason"] == "TooManyReplicas" and each["status"] == "True" for each in conditions)


def fullest_node(stage: Stage) -> str:
    """That has most of the stream's subscribers."""
    pods = stage.namespace.get("pods", "app.kubernetes.io/component=subscriber")
    [(node, _)] = Counter(each["spec"]["nodeName"] for each in pods if "nodeName" in each["spec"]).most_common(1)
    return str(node)


def running_on(stage: Stage, node: str) -> list[str]:
    pods = [each for each in stage.namespace.get("pods") if each["spec"].get("nodeName") == node]
    return [each["metadata"]["name"] for each in pods if each["status"]["phase"] in ("Pending", "Running")]


def test_subscribers_and_servers_follow_the_work_and_nothing_is_lost(stage: Stage, faults: Faults) -> None:
    stage.deploy()
    stage.reach(SUBSCRIBERS, 1)
    stage.reach(SERVERS, 1)

    with Watch(stage.namespace, "deployments") as deployments, Watch(stage.namespace, "hpa") as autoscalers:
        stage.publish(range(MESSAGES))
        stage.reach(SUBSCRIBERS, 4)
        stage.reach(SERVERS, 2)

        node = fullest_node(stage)
        faults.preempt(node)
        stage.namespace.wait_until(f"the end of the pods on {node}", lambda: not running_on(stage, node))
        assert stage.backlog > 0, "the node has to end in the middle of the work"
        faults.restore(node)

        stage.namespace.wait_until("an empty backlog", lambda: stage.backlog == 0, PATIENCE_S)
        stage.reach(SUBSCRIBERS, 1)
        stage.reach(SERVERS, 1)

    found = counts(deployments)
    assert (max(found[SUBSCRIBERS]), max(found[SERVERS])) == (4, 2), found
    assert limited(autoscalers, SUBSCRIBERS), "4000 messages at 200 each would be 20 subscribers"
    assert stage.dead() == []
    answered = stage.answered()
    assert (len(answered), set(answered.values())) == (MESSAGES, {1})


def test_the_metrics_are_strict_about_their_names(stage: Stage) -> None:
    """Else the test above would not notice a wrong name in what is rendered."""
    _, project, _, name = stage.subscription.split("/")
    ours = f"resource.labels.project_id%3D{project}%2Cresource.labels.subscription_id%3D{name}"
    base = f"/apis/external.metrics.k8s.io/v1beta1/namespaces/{stage.namespace.name}"
    metric = "pubsub.googleapis.com%7Csubscription%7Cnum_undelivered_messages"
    stage.publish(range(3))

    def ask(path: str) -> Any:
        return json.loads(stage.cluster.kubectl("get", "--raw", f"{base}/{path}"))

    [value] = ask(f"{metric}?labelSelector={ours}")["items"]
    assert value["value"] == "3"
    for nobodys in (ours.replace(name, "none"), ours.replace(project, "another-project")):
        assert ask(f"{metric}?labelSelector={nobodys}")["items"] == []
    for wrong in (
        f"pubsub.googleapis.com%7Csubscription%7Cbacklog?labelSelector={ours}",
        f"{metric}?labelSelector=resource.labels.subscription_id%3D{name}",
        f"{metric}?labelSelector={ours.replace('resource.labels.', '')}",
        metric,
    ):
        with pytest.raises(StartError):
            ask(wrong)
