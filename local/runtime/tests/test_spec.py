"""What the local runtime reads of a manifest, what it refuses, and how it expands variables."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from local.runtime.expansion import EnvVar, declared_environment, expand, static_variables
from local.runtime.fields import ManifestError
from local.runtime.policy import Rule
from local.runtime.spec import read_manifest

pytestmark = pytest.mark.unit

POD = "spec.replicatedJobs[0].template.spec.template.spec"
JOB = "spec.replicatedJobs[0].template.spec"

MANIFEST: dict[str, Any] = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {
        "name": "night",
        "namespace": "batch",
        "labels": {"kueue.x-k8s.io/queue-name": "q"},
        "annotations": {"a": "b"},
    },
    "spec": {
        "ttlSecondsAfterFinished": 60,
        "network": {"enableDNSHostnames": False},
        "successPolicy": {"operator": "All"},
        "replicatedJobs": [
            {
                "name": "worker",
                "replicas": 1,
                "template": {
                    "metadata": {"labels": {"x": "y"}},
                    "spec": {
                        "completionMode": "Indexed",
                        "completions": 4,
                        "parallelism": 2,
                        "backoffLimitPerIndex": 3,
                        "maxFailedIndexes": 1,
                        "activeDeadlineSeconds": 600,
                        "podReplacementPolicy": "Failed",
                        "podFailurePolicy": {
                            "rules": [
                                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
                                {
                                    "action": "FailIndex",
                                    "onExitCodes": {"containerName": "driver", "operator": "In", "values": [78]},
                                },
                            ]
                        },
                        "template": {
                            "metadata": {
                                "labels": {"l": "m"},
                                "annotations": {"nightshift.dev/port-env": "engine=ENGINE_PORT"},
                            },
                            "spec": {
                                "restartPolicy": "Never",
                                "nodeSelector": {"gpu": "l4"},
                                "tolerations": [{"key": "spot"}],
                                "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
                                "initContainers": [
                                    {
                                        "name": "server",
                                        "image": "s:1",
                                        "restartPolicy": "Always",
                                        "args": ["--port", "$(ENGINE_PORT)"],
                                        "ports": [{"name": "engine", "containerPort": 8000}],
                                        "startupProbe": {"httpGet": {"path": "/health", "port": "engine"}, "periodSeconds": 5},
                                        "livenessProbe": {"tcpSocket": {"port": 8000}},
                                        "readinessProbe": {"exec": {"command": ["true"]}},
                                        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
                                        "resources": {"limits": {"nvidia.com/gpu": 1}},
                                    }
                                ],
                                "containers": [
                                    {
                                        "name": "driver",
                                        "image": "d:1",
                                        "command": ["run"],
                                        "env": [
                                            {"name": "A", "value": "1"},
                                            {"name": "P", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                                        ],
                                    }
                                ],
                            },
                        },
                    },
                },
            }
        ],
    },
}


def changed(change: Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], object]) -> dict[str, Any]:
    """MANIFEST after ``change(manifest, job spec, pod spec)``."""
    manifest = copy.deepcopy(MANIFEST)
    job = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
    change(manifest, job, job["template"]["spec"])
    return manifest


def test_supported_manifest_is_read() -> None:
    spec = read_manifest(MANIFEST)

    assert (spec.name, spec.namespace, spec.job_name, spec.ttl_s, spec.suspended) == (
        "night",
        "batch",
        "night-worker-0",
        60,
        False,
    )
    assert (spec.job.completions, spec.job.parallelism, spec.job.backoff_limit_per_index) == (4, 2, 3)
    assert (spec.job.max_failed_indexes, spec.job.active_deadline_s, spec.job.backoff_limit) == (1, 600, None)
    assert spec.job.rules == (Rule("Ignore"), Rule("FailIndex", "In", (78,), "driver"))
    assert (spec.pod.grace_s, spec.pod.port_env) == (30, (("engine", "ENGINE_PORT"),))
    (server,), (driver,) = spec.pod.init, spec.pod.main
    assert server.startup is not None
    assert server.liveness is not None
    assert server.readiness is not None
    assert (server.sidecar, server.startup.path, server.startup.period_s) == (True, "/health", 5)
    assert (server.startup.timeout_s, server.startup.failure_threshold) == (1, 3)
    # A number that is the port of a name follows the name, so that the port that the runtime chooses is probed.
    assert (server.liveness.port, server.readiness.command) == ("engine", ("true",))
    assert driver.env == (EnvVar("A", "1"), EnvVar("P", field="metadata.name"))


def test_defaults_are_kubernetes() -> None:
    def drop(_: dict[str, Any], job: dict[str, Any], __: dict[str, Any]) -> None:
        for key in ("parallelism", "backoffLimitPerIndex", "maxFailedIndexes", "activeDeadlineSeconds", "podFailurePolicy"):
            del job[key]

    job = read_manifest(changed(drop)).job

    assert (job.parallelism, job.backoff_limit, job.backoff_limit_per_index, job.rules) == (1, 6, None, ())


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("apiVersion", lambda top, job, pod: top.update(apiVersion="batch/v1")),
        ("kind", lambda top, job, pod: top.update(kind="Job")),
        ("metadata.name", lambda top, job, pod: top["metadata"].update(name="No_Name")),
        ("metadata.name", lambda top, job, pod: top["metadata"].update(name="x" * 50)),
        ("metadata.generateName", lambda top, job, pod: top["metadata"].update(generateName="x-")),
        ("metadata.annotations.n", lambda top, job, pod: top["metadata"].update(annotations={"n": 1})),
        ("spec.replicatedJobs", lambda top, job, pod: top["spec"]["replicatedJobs"].append({})),
        ("spec.replicatedJobs[0].replicas", lambda top, job, pod: top["spec"]["replicatedJobs"][0].update(replicas=2)),
        ("spec.failurePolicy", lambda top, job, pod: top["spec"].update(failurePolicy={})),
        ("spec.suspend", lambda top, job, pod: top["spec"].update(suspend="yes")),
        (f"{JOB}.completionMode", lambda top, job, pod: job.update(completionMode="NonIndexed")),
        (f"{JOB}.completions", lambda top, job, pod: job.pop("completions")),
        (f"{JOB}.completions", lambda top, job, pod: job.update(completions=True)),
        (f"{JOB}.parallelism", lambda top, job, pod: job.update(parallelism=-1)),
        (f"{JOB}.maxFailedIndexes", lambda top, job, pod: job.pop("backoffLimitPerIndex")),
        (f"{JOB}.successPolicy", lambda top, job, pod: job.update(successPolicy={})),
        (f"{JOB}.podReplacementPolicy", lambda top, job, pod: job.update(podReplacementPolicy="TerminatingOrFailed")),
        (
            f"{JOB}.podFailurePolicy.rules[0].onPodConditions[0].type",
            lambda top, job, pod: job["podFailurePolicy"]["rules"][0]["onPodConditions"][0].update(type="ConfigIssue"),
        ),
        (
            f"{JOB}.podFailurePolicy.rules[1].onExitCodes.containerName",
            lambda top, job, pod: job["podFailurePolicy"]["rules"][1]["onExitCodes"].update(containerName="drvier"),
        ),
        (
            f"{JOB}.podFailurePolicy.rules[1].onExitCodes.values",
            lambda top, job, pod: job["podFailurePolicy"]["rules"][1]["onExitCodes"].update(values=[0]),
        ),
        (
            f"{JOB}.podFailurePolicy.rules[0]",
            lambda top, job, pod: job["podFailurePolicy"]["rules"][0].pop("onPodConditions"),
        ),
        (
            f"{JOB}.template.metadata.annotations[nightshift.dev/port-env]",
            lambda top, job, pod: job["template"]["metadata"]["annotations"].update({"nightshift.dev/port-env": "metrics=M"}),
        ),
        (f"{POD}.restartPolicy", lambda top, job, pod: pod.pop("restartPolicy")),
        (f"{POD}.activeDeadlineSeconds", lambda top, job, pod: pod.update(activeDeadlineSeconds=5)),
        (f"{POD}.volumes[0].configMap", lambda top, job, pod: pod["volumes"][0].update(configMap={"name": "c"})),
        (f"{POD}.containers", lambda top, job, pod: pod.update(containers=[])),
        (f"{POD}.containers", lambda top, job, pod: pod["containers"].append(pod["containers"][0])),
        (f"{POD}.containers[0].lifecycle", lambda top, job, pod: pod["containers"][0].update(lifecycle={})),
        (f"{POD}.containers[0].workingDir", lambda top, job, pod: pod["containers"][0].update(workingDir="/app")),
        (f"{POD}.containers[0].image", lambda top, job, pod: pod["containers"][0].pop("image")),
        (f"{POD}.containers[0].envFrom", lambda top, job, pod: pod["containers"][0].update(envFrom=[])),
        (
            f"{POD}.containers[0].env[1].valueFrom.secretKeyRef",
            lambda top, job, pod: pod["containers"][0]["env"][1].update(valueFrom={"fieldRef": {}, "secretKeyRef": {}}),
        ),
        (
            f"{POD}.containers[0].env[1].valueFrom.fieldRef.fieldPath",
            lambda top, job, pod: pod["containers"][0]["env"][1]["valueFrom"]["fieldRef"].update(fieldPath="status.podIP"),
        ),
        (
            f"{POD}.containers[0].env[1].valueFrom.resourceFieldRef.resource",
            lambda top, job, pod: pod["containers"][0]["env"][1].update(
                valueFrom={"resourceFieldRef": {"resource": "limits.cpu"}}
            ),
        ),
        (
            f"{POD}.containers[0].env[1].valueFrom.resourceFieldRef.divisor",
            lambda top, job, pod: pod["containers"][0]["env"][1].update(
                valueFrom={"resourceFieldRef": {"resource": "requests.cpu", "divisor": "1m"}}
            ),
        ),
        (
            f"{POD}.initContainers[0].restartPolicy",
            lambda top, job, pod: pod["initContainers"][0].update(restartPolicy="Never"),
        ),
        (f"{POD}.initContainers[0]", lambda top, job, pod: pod["initContainers"][0].pop("restartPolicy")),
        (
            f"{POD}.initContainers[0].startupProbe.httpGet.scheme",
            lambda top, job, pod: pod["initContainers"][0]["startupProbe"]["httpGet"].update(scheme="HTTPS"),
        ),
        (
            f"{POD}.initContainers[0].startupProbe.httpGet.host",
            lambda top, job, pod: pod["initContainers"][0]["startupProbe"]["httpGet"].update(host="example.org"),
        ),
        (
            f"{POD}.initContainers[0].startupProbe.httpGet.port",
            lambda top, job, pod: pod["initContainers"][0]["startupProbe"]["httpGet"].update(port="engin"),
        ),
        (
            f"{POD}.initContainers[0].startupProbe",
            lambda top, job, pod: pod["initContainers"][0]["startupProbe"].pop("httpGet"),
        ),
        (
            f"{POD}.initContainers[0].startupProbe.grpc",
            lambda top, job, pod: pod["initContainers"][0]["startupProbe"].update(grpc={"port": 1}),
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name(path: str, change: Callable[..., object]) -> None:
    with pytest.raises(ManifestError) as caught:
        read_manifest(changed(change))

    assert str(caught.value).partition(": ")[0] == path


def test_manifest_that_is_no_mapping() -> None:
    with pytest.raises(ManifestError, match="not a mapping"):
        read_manifest([])


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("plain", "plain"),
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y"),
        ("$(NONE)", "$(NONE)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$$$", "$$"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A", "$(A"),
        ("$()", "$()"),
        ("100$", "100$"),
        ("$$A", "$A"),
        ("$?$!$@", "$?$!$@"),
        ("\\$(A)", "\\1"),
        ("$$$$$(A)", "$$1"),
        ("$$$$$$(A)", "$$$(A)"),
        ("$(A$(A))", "$(A$(A))"),
        ("$($($(A)", "$($($(A)"),
        ("$(A$$A)", "$(A$$A)"),
        ("-$(", "-$("),
        ("$A)", "$A)"),
        ("$(R)", "$(A)"),
        ("\n", "\n"),
    ],
)
def test_expansion(text: str, expanded: str) -> None:
    """As Kubernetes' own table has it (third_party/forked/golang/expansion)."""
    assert expand(text, {"A": "1", "B": "", "R": "$(A)"}) == expanded


def test_values_see_only_what_is_before_them() -> None:
    declared = [EnvVar("A", "1"), EnvVar("B", "$(A)$(C)$(JOB_COMPLETION_INDEX)"), EnvVar("C", "3"), EnvVar("N", field="f")]

    assert declared_environment(declared, {"f": "name"}, {}, 7) == {
        "A": "1",
        "B": "1$(C)$(JOB_COMPLETION_INDEX)",
        "C": "3",
        "N": "name",
        "JOB_COMPLETION_INDEX": "7",
    }


def test_a_probe_sees_values_as_the_manifest_has_them() -> None:
    """Not expanded, and of a field nothing; the Job's index is a field."""
    declared = [EnvVar("A", "1"), EnvVar("B", "$(A)"), EnvVar("N", field="f"), EnvVar("PORT", "8000")]

    assert static_variables(declared, {"PORT": "4321"}) == {
        "A": "1",
        "B": "$(A)",
        "N": "",
        "PORT": "4321",
        "JOB_COMPLETION_INDEX": "",
    }


def test_chosen_port_takes_the_place_of_the_manifests() -> None:
    """Also in values that are made of it, and in a container that does not declare it."""
    declared = [EnvVar("PORT", "8000"), EnvVar("URL", "http://127.0.0.1:$(PORT)")]

    assert declared_environment(declared, {}, {"PORT": "4321", "OTHER": "5"}, 0) == {
        "OTHER": "5",
        "PORT": "4321",
        "URL": "http://127.0.0.1:4321",
        "JOB_COMPLETION_INDEX": "0",
    }
