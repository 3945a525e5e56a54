"""Reads the part of a JobSet manifest that the local runtime carries out.

Unsupported fields that would change behaviour are refused by name: a manifest that passes does here what it does on GKE,
except for what the docstring of `local.runtime.agent` lists. Fields of placement, identity and resources are accepted
without effect.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Literal, cast

from local.runtime.expansion import EnvVar
from local.runtime.fields import Fields, ManifestError
from local.runtime.model import ContainerSpec, JobSetSpec, PodTemplate, Probe
from local.runtime.policy import Action, IndexedJob, Rule
from nightshift.jobset.labels import INDEX_ANNOTATION, JOBSET_API_VERSION, PORT_ENV_ANNOTATION

FIELD_PATHS: Final = ("metadata.name", "metadata.namespace", f"metadata.annotations['{INDEX_ANNOTATION}']", "spec.nodeName")
CPU_REQUEST: Final = "requests.cpu"
_DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
LABEL_MAX: Final = 63
_SUFFIX: Final = 6
"""Length of a pod name's end after the index: a dash and five random characters."""

# One node, one user, no scheduler: these choose where and as whom a pod runs, and change nothing here.
_POD_WITHOUT_EFFECT: Final = (
    "affinity", "automountServiceAccountToken", "dnsPolicy", "enableServiceLinks", "nodeSelector", "priorityClassName",
    "runtimeClassName", "schedulerName", "securityContext", "serviceAccount", "serviceAccountName", "tolerations",
    "topologySpreadConstraints",
)  # fmt: skip
_CONTAINER_WITHOUT_EFFECT: Final = (
    "imagePullPolicy", "resources", "securityContext", "volumeMounts",
)  # fmt: skip


def read_manifest(manifest: Any) -> JobSetSpec:
    """Raises ManifestError for the first field that is wrong or not supported."""
    top = Fields(manifest, "")
    top.expect("apiVersion", JOBSET_API_VERSION)
    top.expect("kind", "JobSet")
    metadata = top.child("metadata")
    name = metadata.need("name", str)
    _check_dns_label(name, metadata.at("name"))
    namespace = metadata.get("namespace", str, "default")
    metadata.strings("annotations")
    metadata.strings("labels")
    metadata.close()
    spec = top.child("spec")
    replicated = _only(spec.children("replicatedJobs"), spec.at("replicatedJobs"))
    group = replicated.need("name", str)
    _check_dns_label(group, replicated.at("name"))
    replicated.expect("replicas", 1, default=1)
    replicated.ignore("groupName")
    template = replicated.child("template")
    job_metadata = template.optional("metadata")
    if job_metadata is not None:
        job_metadata.ignore("labels", "annotations", "creationTimestamp")
        job_metadata.close()
    job_spec = template.child("spec")
    pod = _read_pod(job_spec.child("template"))
    job = _read_job(job_spec, pod)
    longest = len(f"{name}-{group}-0-{job.completions - 1}") + _SUFFIX
    if longest > LABEL_MAX:
        raise ManifestError(f"metadata.name: pod names would have {longest} characters, {LABEL_MAX} are allowed; shorten it")
    suspended = spec.get("suspend", bool, False)
    ttl_s = spec.number("ttlSecondsAfterFinished", None, least=0)
    _read_success_policy(spec)
    # The pods get no service, so their names cannot be looked up: nothing in a one-pod-per-index job does that.
    spec.ignore("network")
    for fields in (job_spec, template, replicated, spec):
        fields.close()
    top.ignore("status")
    top.close()
    return JobSetSpec(name, namespace, group, job, pod, suspended, ttl_s)


def _read_success_policy(spec: Fields) -> None:
    """With one replicated job, both operators mean the same."""
    policy = spec.optional("successPolicy")
    if policy is not None:
        policy.choice("operator", ("All", "Any"))
        policy.ignore("targetReplicatedJobs")
        policy.close()


def _read_job(fields: Fields, pod: PodTemplate) -> IndexedJob:
    fields.expect("completionMode", "Indexed")
    fields.expect("podReplacementPolicy", "Failed", default="Failed")
    completions = fields.number("completions", None, least=1)
    if completions is None:
        raise ManifestError(f"{fields.at('completions')}: missing; an Indexed Job needs it")
    per_index = fields.number("backoffLimitPerIndex", None, least=0)
    max_failed = fields.number("maxFailedIndexes", None, least=0)
    if max_failed is not None and per_index is None:
        raise ManifestError(f"{fields.at('maxFailedIndexes')}: needs backoffLimitPerIndex")
    rules: tuple[Rule, ...] = ()
    policy = fields.optional("podFailurePolicy")
    if policy is not None:
        names = {container.name for container in (*pod.init, *pod.main)}
        rules = tuple(_read_rule(rule, names, per_index is not None) for rule in policy.children("rules"))
        policy.close()
    return IndexedJob(
        completions=completions,
        parallelism=fields.number("parallelism", 1, least=0) or 0,
        backoff_limit=fields.number("backoffLimit", 6 if per_index is None else None, least=0),
        backoff_limit_per_index=per_index,
        max_failed_indexes=max_failed,
        active_deadline_s=fields.number("activeDeadlineSeconds", None, least=0),
        rules=rules,
    )


def _read_rule(fields: Fields, containers: set[str], per_index: bool) -> Rule:
    action = cast(Action, fields.choice("action", ("FailJob", "FailIndex", "Ignore", "Count")))
    if action == "FailIndex" and not per_index:
        raise ManifestError(f"{fields.at('action')}: FailIndex needs backoffLimitPerIndex")
    on_exit = fields.optional("onExitCodes")
    conditions = fields.children("onPodConditions", default=[])
    fields.close()
    if (on_exit is None) == (not conditions):
        raise ManifestError(f"{fields.path}: give either onExitCodes or onPodConditions")
    if on_exit is None:
        for condition in conditions:
            condition.expect("type", "DisruptionTarget")
            condition.expect("status", "True", default="True")
            condition.close()
        return Rule(action)
    operator = cast(Literal["In", "NotIn"], on_exit.choice("operator", ("In", "NotIn")))
    values = tuple(on_exit.items("values", int))
    container = on_exit.get("containerName", str, None)
    on_exit.close()
    if not values or (operator == "In" and 0 in values):
        raise ManifestError(f"{on_exit.at('values')}: give exit codes; 0 is not a failure")
    if container is not None and container not in containers:
        raise ManifestError(f"{on_exit.at('containerName')}: no container is called {container!r}")
    return Rule(action, operator, values, container)


def _read_pod(template: Fields) -> PodTemplate:
    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    metadata = template.optional("metadata")
    if metadata is not None:
        labels, annotations = metadata.strings("labels"), metadata.strings("annotations")
        metadata.ignore("creationTimestamp")
        metadata.close()
    spec = template.child("spec")
    template.close()
    spec.expect("restartPolicy", "Never")
    for volume in spec.children("volumes", default=[]):
        volume.need("name", str)
        volume.ignore("emptyDir")
        volume.close()
        volume.child("emptyDir")
    init = tuple(_read_container(item, init=True) for item in spec.children("initContainers", default=[]))
    main = tuple(_read_container(item, init=False) for item in spec.children("containers"))
    if not main:
        raise ManifestError(f"{spec.at('containers')}: a pod needs at least one")
    names = [container.name for container in (*init, *main)]
    if len(set(names)) < len(names):
        raise ManifestError(f"{spec.at('containers')}: container names {', '.join(names)} are not all different")
    grace_s = spec.number("terminationGracePeriodSeconds", 30, least=0) or 0
    spec.ignore(*_POD_WITHOUT_EFFECT)
    spec.close()
    port_env = _read_port_env(dict(annotations).get(PORT_ENV_ANNOTATION, ""), (*init, *main), template.path)
    return PodTemplate(init, main, grace_s, port_env, labels, annotations)


def _read_port_env(text: str, containers: Sequence[ContainerSpec], path: str) -> tuple[tuple[str, str], ...]:
    where = f"{path}.metadata.annotations[{PORT_ENV_ANNOTATION}]"
    known = {name for container in containers for name, _ in container.ports}
    pairs = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        port, equals, variable = item.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
            raise ManifestError(f"{where}: {item!r} is not PORTNAME=VARIABLE")
        if port not in known:
            raise ManifestError(f"{where}: no container has a port named {port!r}")
        pairs.append((port, variable))
    return tuple(pairs)


def _read_container(fields: Fields, *, init: bool) -> ContainerSpec:
    name = fields.need("name", str)
    _check_dns_label(name, fields.at("name"))
    sidecar = False
    if init:
        fields.expect("restartPolicy", "Always", default=None)
        sidecar = fields.get("restartPolicy", str, None) is not None
    ports: list[tuple[str, int]] = []
    for port in fields.children("ports", default=[]):
        number = port.need("containerPort", int)
        ports.append((port.get("name", str, str(number)), number))
        port.ignore("protocol", "hostPort")
        port.close()
    probes = {key: _read_probe(fields.optional(f"{key}Probe"), dict(ports)) for key in ("startup", "liveness", "readiness")}
    if init and not sidecar and any(probes.values()):
        raise ManifestError(f"{fields.path}: an init container has probes only with restartPolicy Always")
    container = ContainerSpec(
        name=name,
        image=fields.need("image", str),
        command=tuple(fields.items("command", str)),
        args=tuple(fields.items("args", str)),
        env=tuple(_read_env(item) for item in fields.children("env", default=[])),
        ports=tuple(ports),
        sidecar=sidecar,
        last_lines=fields.get("terminationMessagePolicy", str, "File") == "FallbackToLogsOnError",
        **probes,
    )
    fields.ignore(*_CONTAINER_WITHOUT_EFFECT)
    fields.close()
    return container


def _read_env(fields: Fields) -> EnvVar:
    name = fields.need("name", str)
    value = fields.get("value", str, "")
    source = fields.optional("valueFrom")
    fields.close()
    if source is None:
        return EnvVar(name, value)
    resource = source.optional("resourceFieldRef")
    reference = resource or source.child("fieldRef")
    source.close()
    if resource is not None:
        resource.expect("divisor", "1", default="1")
        field = resource.choice("resource", (CPU_REQUEST,))
    else:
        reference.expect("apiVersion", "v1", default="v1")
        field = reference.choice("fieldPath", FIELD_PATHS)
    reference.close()
    return EnvVar(name, field=field)


def _read_probe(fields: Fields | None, ports: dict[str, int]) -> Probe | None:
    if fields is None:
        return None
    http, tcp, command = fields.optional("httpGet"), fields.optional("tcpSocket"), fields.optional("exec")
    kinds = [kind for kind in (http, tcp, command) if kind is not None]
    if len(kinds) != 1:
        raise ManifestError(f"{fields.path}: give one of httpGet, tcpSocket and exec")
    port: int | str = 0
    path: str | None = None
    headers: list[tuple[str, str]] = []
    if http is not None:
        path = http.get("path", str, "/")
        http.expect("scheme", "HTTP", default="HTTP")
        for header in http.children("httpHeaders", default=[]):
            headers.append((header.need("name", str), header.need("value", str)))
            header.close()
    for target in (http, tcp):
        if target is not None:
            port = target.port("port", ports)
    words = tuple(command.items("command", str)) if command is not None else ()
    if command is not None and not words:
        raise ManifestError(f"{fields.path}.exec.command: missing")
    kinds[0].close()
    probe = Probe(
        port=port,
        path=path,
        headers=tuple(headers),
        command=words,
        initial_delay_s=fields.number("initialDelaySeconds", 0, least=0) or 0,
        period_s=fields.number("periodSeconds", 10, least=1) or 1,
        timeout_s=fields.number("timeoutSeconds", 1, least=1) or 1,
        failure_threshold=fields.number("failureThreshold", 3, least=1) or 1,
        success_threshold=fields.number("successThreshold", 1, least=1) or 1,
    )
    fields.close()
    return probe


def _check_dns_label(text: str, where: str) -> None:
    if len(text) > LABEL_MAX or not _DNS_LABEL.fullmatch(text):
        raise ManifestError(f"{where}: {text!r} is not a DNS label (a-z, 0-9 and dashes, {LABEL_MAX} characters at most)")


def _only(items: list[Fields], where: str) -> Fields:
    if len(items) != 1:
        raise ManifestError(f"{where}: the local runtime runs exactly one replicated job, not {len(items)}")
    return items[0]
