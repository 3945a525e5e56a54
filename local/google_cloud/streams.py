"""Whether a stream works: its Deployments become available, its autoscalers see their metrics, its messages are answered."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import yaml

from local.google_cloud import access, clusters, kubernetes, messages, registry
from local.google_cloud import state as types
from local.google_cloud.cloud import Cloud
from local.google_cloud.state import Fields

ADAPTER: Final = ("custom-metrics", "custom-metrics-stackdriver-adapter")
GSA: Final = "iam.gke.io/gcp-service-account"


def unavailable(cloud: Cloud, cluster: str, deployment: dict[str, Any]) -> str:
    """Why the pods of a Deployment do not become ready; '' if they do."""
    namespace = deployment["metadata"].get("namespace", "default")
    template = deployment.get("spec", {}).get("template", {}).get("spec")
    if template is None:
        return ""
    account = template.get("serviceAccountName", "default")
    found = kubernetes.get(cloud, cluster, "serviceaccounts", account, namespace)
    if found is None and account != "default":
        return f"error looking up service account {namespace}/{account}: not found"
    node = _node_account(cloud, cluster)
    for container in (*template.get("initContainers", ()), *template["containers"]):
        if problem := registry.has_image(cloud, container["image"], node):
            return f"ErrImagePull: {problem}"
        for variable in container.get("env", ()):
            secret = variable.get("valueFrom", {}).get("secretKeyRef")
            if secret and kubernetes.get(cloud, cluster, "secrets", secret["name"], namespace) is None:
                return f'CreateContainerConfigError: secret "{secret["name"]}" not found'
        if container.get("command", [])[:2] == ["nightshift", "stream"]:
            return _not_ready(cloud, cluster, namespace, found or {}, template, container)
    return ""


def _node_account(cloud: Cloud, cluster: str) -> str:
    pools = [fields for name, fields in cloud.state.of(types.NODE_POOL).items() if name.startswith(f"{cluster}/")]
    return next((str(each["config"].get("serviceAccount", "")) for each in pools), "")


def member_of(cloud: Cloud, cluster: str, namespace: str, account: Fields) -> tuple[str, str]:
    """(the member as which pods of a Kubernetes account act, why they cannot or '')."""
    project = cluster.split("/")[4]
    google = account["metadata"].get("annotations", {}).get(GSA)
    name = account["metadata"]["name"]
    if google is None:
        return access.workload(project, cloud.number(project), namespace, name), ""
    subject = f"serviceAccount:{project}.svc.id.goog[{namespace}/{name}]"
    if "iam.workloadIdentityUser" not in access.roles(cloud.account(google), subject):
        return "", f"{subject} may not act as {google}: roles/iam.workloadIdentityUser"
    return f"serviceAccount:{google}", ""


def _not_ready(
    cloud: Cloud, cluster: str, namespace: str, account: Fields, template: dict[str, Any], container: dict[str, Any]
) -> str:
    """What a subscriber's readiness path says."""
    member, problem = member_of(cloud, cluster, namespace, account)
    config = next(volume["configMap"]["name"] for volume in template["volumes"] if "configMap" in volume)
    held = kubernetes.get(cloud, cluster, "configmaps", config, namespace)
    if problem or held is None:
        return problem or f'configmap "{config}" not found'
    stream = yaml.safe_load(held["data"]["stream.yaml"])
    environment = {each["name"]: each.get("value", "") for each in container["env"]}
    project = environment["NIGHTSHIFT_PROJECT"]
    subscription = cloud.state.get(types.SUBSCRIPTION, messages.subscription_name(project, stream["source"]["subscription"]))
    if subscription is None:
        return f"Pub/Sub: NOT_FOUND: Resource not found (resource={stream['source']['subscription']})."
    if "pubsub.subscriber" not in access.roles(subscription, member):
        return f"Pub/Sub: PERMISSION_DENIED: {member} lacks roles/pubsub.subscriber on {stream['source']['subscription']}"
    topic = stream["dead_letters"]["topic"]
    if "pubsub.publisher" not in access.roles(cloud.state.get(types.TOPIC, messages.topic_name(project, topic)), member):
        return f"Pub/Sub: PERMISSION_DENIED: {member} lacks roles/pubsub.publisher on {topic}"
    if problem := messages.dead_letters_work(cloud, project, stream["source"]["subscription"]):
        return problem
    if problem := _no_database(cloud, environment.get("NIGHTSHIFT_SINK_URL", ""), member):
        return problem
    return _no_backend(cloud, cluster)


def _no_backend(cloud: Cloud, cluster: str) -> str:
    """Why a gateway has no server for a request; '' also where there is no gateway.

    GKE's load balancer asks each server for ``/`` unless a HealthCheckPolicy says otherwise, and vLLM has no such path
    (kubernetes-sigs/gateway-api-inference-extension, config/charts/inferencepool/templates/gke.yaml).
    """
    policies = kubernetes.objects(cloud, cluster, "networking.gke.io/v1", "HealthCheckPolicy")
    asked = {
        each["spec"]["targetRef"]["name"]: each["spec"]["default"]["config"]["httpHealthCheck"]["requestPath"]
        for each in policies
    }
    for pool in kubernetes.objects(cloud, cluster, "inference.networking.k8s.io/v1", "InferencePool"):
        if (path := asked.get(pool["metadata"]["name"], "/")) != "/health":
            return f"the engine: 503 no healthy upstream: vLLM answers {path} with 404, so no server of the pool is healthy"
    return ""


def _no_database(cloud: Cloud, url: str, member: str) -> str:
    parts = urlsplit(url)
    user, host = unquote(parts.username or ""), parts.hostname
    for name, instance in cloud.state.of(types.ALLOYDB_INSTANCE).items():
        if instance["ipAddress"] != host:
            continue
        found = cloud.state.get(types.ALLOYDB_USER, f"{name.split('/instances/')[0]}/users/{user}")
        if found is None or f"serviceAccount:{user}.gserviceaccount.com" != member:
            return f'FATAL: password authentication failed for user "{user}"'
        if instance["databaseFlags"].get("alloydb.iam_authentication") != "on":
            return f'FATAL: the instance has no IAM login: password authentication failed for user "{user}"'
        held = access.roles(cloud.project(name.split("/")[4]), member)
        lacking = {"alloydb.databaseUser", "alloydb.client", "serviceusage.serviceUsageConsumer"} - held
        if lacking:
            return f'FATAL: IAM login of "{user}" refused: {member} lacks {sorted(lacking)}'
        if "alloydbsuperuser" not in found["databaseRoles"]:
            return f'ERROR: permission denied for schema public (user "{user}")'
        return ""
    return f"no answer from {host}: no AlloyDB instance has this address"


def blind(cloud: Cloud, cluster: str, autoscaler: dict[str, Any]) -> str:
    """Why an autoscaler does not scale (its condition ScalingActive); '' if it does."""
    if clusters.disabled(cloud.state.of(types.CLUSTER)[cluster], "horizontalPodAutoscaling"):
        return "the cluster's add-on HorizontalPodAutoscaling is disabled: no controller looks at HorizontalPodAutoscalers"
    namespace, name = ADAPTER
    if kubernetes.get(cloud, cluster, "deployments", name, namespace) is None:
        return "unable to get external metric: no custom metrics API (external.metrics.k8s.io) registered"
    project = cluster.split("/")[4]
    adapter = access.workload(project, cloud.number(project), namespace, name)
    for metric in autoscaler["spec"]["metrics"]:
        labels = metric.get("external", {}).get("metric", {}).get("selector", {}).get("matchLabels", {})
        asked = labels.get("resource.labels.project_id", project)
        if "monitoring.viewer" not in access.roles(cloud.project(asked), adapter):
            return f"unable to fetch metrics: googleapi: Error 403: {adapter} lacks roles/monitoring.viewer on {asked}"
        subscription = labels.get("resource.labels.subscription_id")
        if subscription and cloud.state.get(types.SUBSCRIPTION, messages.subscription_name(asked, subscription)) is None:
            return f"no metrics returned: there is no subscription {subscription} in {asked}"
    return ""


def answered(cloud: Cloud, cluster: str, deployment: dict[str, Any]) -> int:
    """How many messages the subscribers of a stream have answered: all that were published while the stream worked."""
    if unavailable(cloud, cluster, deployment):
        return 0
    config = re.sub("-subscriber$", "", deployment["metadata"]["name"])
    found = [fields for fields in cloud.state.of(types.TOPIC).values() if fields.get("published")]
    servers = kubernetes.get(cloud, cluster, "deployments", f"{config}-server", deployment["metadata"]["namespace"])
    if servers is None or unavailable(cloud, cluster, servers):
        return 0
    return sum(len(each["published"]) for each in found)
