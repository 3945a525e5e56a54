"""Whether a stream that is deployed is scaled: the adapter serves its metrics, and its autoscalers could read them.

Conditions of a HorizontalPodAutoscaler: ``AbleToScale``, ``ScalingActive`` (Kubernetes, "Horizontal Pod Autoscaling", "Status
conditions"). ``ScalingDisabled`` means that it is at zero, which is KEDA's doing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from nightshift.doctor import cluster_objects
from nightshift.doctor.context import Surroundings
from nightshift.doctor.findings import Failed, Finding, NotKnown, Ok, Skipped
from nightshift.fields.text import n
from nightshift.jobset.labels import JOB_LABEL
from nightshift.stream.manifests.autoscaling import PROJECT_LABEL

ADAPTER: Final = "metrics adapter"
NAME: Final = "autoscalers"
BREAKS: Final = "autoscaling: the number of replicas stays as it is, whatever the backlog"
_ADAPTER_ACCOUNT: Final = "subject/ns/custom-metrics/sa/custom-metrics-stackdriver-adapter"
_ADAPTER_STEP: Final = "the section Streams of k8s/README.md has the commands that install it"


def adapter(here: Surroundings) -> Iterator[Finding]:
    """Whether the cluster serves the kinds of metrics that the stream's autoscalers ask for."""
    found = _autoscalers(here)
    asked = {metric["type"] for each in found for metric in each["spec"].get("metrics", ())}
    wanted = {"External": "external.metrics.k8s.io", "Pods": "custom.metrics.k8s.io"}
    groups = [group for kind, group in wanted.items() if kind in asked]
    if not groups:
        yield Skipped(ADAPTER, f"no autoscaler of {here.named_stream.job} asks for such metrics")
        return
    missing = [group for group in groups if cluster_objects.get(here, f"/apis/{group}") is None]
    if missing:
        show = f"kubectl get apiservices | grep metrics ({_ADAPTER_STEP})"
        yield Failed(ADAPTER, f"the cluster does not serve {' and '.join(missing)}", BREAKS, show)
    else:
        yield Ok(ADAPTER, f"the cluster serves {' and '.join(groups)}")


def health(here: Surroundings) -> Iterator[Finding]:
    """A finding for each autoscaler."""
    for each in _autoscalers(here):
        yield _judged(here, each)


def _judged(here: Surroundings, found: dict[str, Any]) -> Finding:
    name, namespace = found["metadata"]["name"], here.settings.namespace
    check = f"autoscaler {name}"
    describe = f"kubectl describe hpa {name} --namespace={namespace}"
    if not found.get("status", {}).get("conditions"):
        return Failed(check, "no controller has looked at it yet", BREAKS, describe)
    for kind in ("AbleToScale", "ScalingActive"):
        condition = cluster_objects.condition(found, kind)
        if condition and condition["status"] == "False" and condition.get("reason") != "ScalingDisabled":
            return Failed(check, f"{kind} is False, {cluster_objects.words(condition)}", BREAKS, _fix(here, found, condition))
    status = found["status"]
    spec = found["spec"]
    now = f"{n(status.get('currentReplicas', 0), 'replica')} now, {spec.get('minReplicas', 1)} to {spec['maxReplicas']}"
    limited = cluster_objects.condition(found, "ScalingLimited")
    most = ", as many as it may have" if limited and limited.get("reason") == "TooManyReplicas" else ""
    return Ok(check, f"{now}{most}")


def _fix(here: Surroundings, found: dict[str, Any], condition: cluster_objects.Object) -> str:
    """The commonest causes, in the adapter's own words; else how to see more."""
    external = [metric["external"]["metric"] for metric in found["spec"].get("metrics", ()) if metric["type"] == "External"]
    if any(PROJECT_LABEL not in metric.get("selector", {}).get("matchLabels", {}) for metric in external):
        # Then the adapter asks the cluster's project, whatever project the subscription is in.
        return f"nightshift render streams/{here.named_stream.job}.yaml | kubectl apply --server-side -f -"
    message = condition.get("message", "").lower()
    if "permission" in message or "403" in message:
        project = next((metric["selector"]["matchLabels"][PROJECT_LABEL] for metric in external), here.settings.project)
        pool = "principal://iam.googleapis.com/projects/NUMBER/locations/global/workloadIdentityPools/PROJECT.svc.id.goog"
        role = "--role=roles/monitoring.viewer --condition=None"
        return f"gcloud projects add-iam-policy-binding {project} --member={pool}/{_ADAPTER_ACCOUNT} {role}"
    return f"kubectl describe hpa {found['metadata']['name']} --namespace={here.settings.namespace}"


def _autoscalers(here: Surroundings) -> list[dict[str, Any]]:
    """Raises NotKnown if the stream has none: it is not deployed."""
    job, namespace = here.named_stream.job, here.settings.namespace
    path = f"/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers"
    found = cluster_objects.listed(here, path, f"{JOB_LABEL}={job}")
    if not found:
        raise NotKnown(f"namespace {namespace} has no autoscaler of {job}: it is not deployed, or not scaled")
    return found
