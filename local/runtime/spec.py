"""The part of a JobSet manifest that the local runtime carries out, read into frozen records.

A field that would change behaviour and is not supported is refused by name: a manifest that passes does here what it does
on GKE, but for the differences that the package's docstring lists. Fields of placement, identity and resources are accepted
without effect.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, cast

from local.runtime.expansion import EnvVar
from local.runtime.policy import Action, Job, Rule
from nightshift.jobset.names import INDEX_ANNOTATION, JOBSET_API_VERSION, PORT_ENV_ANNOTATION

T = TypeVar("T")

FIELD_PATHS: Final = ("metadata.name", "metadata.namespace", f"metadata.annotations['{INDEX_ANNOTATION}']", "spec.nodeName")
CPU_REQUEST: Final = "requests.cpu"
_DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_MAX_NAME: Final = 63
_SUFFIX: Final = 6
"""Characters of a pod name after its index: a dash and five random ones."""

# One node, one user, no scheduler: these choose where and as whom a pod runs, and change nothing here.
_POD_WITHOUT_EFFECT: Final = (
    "affinity", "automountServiceAccountToken", "dnsPolicy", "enableServiceLinks", "nodeSelector", "priorityClassName",
    "runtimeClassName", "schedulerName", "securityContext", "serviceAccount", "serviceAccountName", "tolerations",
    "topologySpreadConstraints",
)  # fmt: skip
_CONTAINER_WITHOUT_EFFECT: Final = (
    "imagePullPolicy", "resources", "securityContext", "terminationMessagePolicy", "volumeMounts",
)  # fmt: skip


class ManifestError(ValueError):
    """The manifest is wrong, or asks for what the local runtime cannot do; the message starts with the field's path."""


@dataclass(frozen=True)
class Probe:
    """A startup, liveness or readiness probe; one of ``command``, ``path`` (HTTP GET) or only ``port`` (TCP). Times in seconds.

    port: a number, or the name of a containerPort of the same container.
    """

    port: int | str = 0
    path: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    command: tuple[str, ...] = ()
    initial_delay_s: int = 0
    period_s: int = 10
    timeout_s: int = 1
    failure_threshold: int = 3
    success_threshold: int = 1


@dataclass(frozen=True)
class Container:
    """One container. sidecar: an init container with restartPolicy Always. ports: name -> containerPort."""

    name: str
    image: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[EnvVar, ...] = ()
    ports: tuple[tuple[str, int], ...] = ()
    sidecar: bool = False
    startup: Probe | None = None
    liveness: Probe | None = None
    readiness: Probe | None = None


@dataclass(frozen=True)
class PodTemplate:
    """port_env: containerPort name -> environment variable that gets the port that the runtime chose."""

    init: tuple[Container, ...]
    main: tuple[Container, ...]
    grace_s: int
    port_env: tuple[tuple[str, str], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class JobSetSpec:
    """ttl_s: seconds between the end of the JobSet and its removal; None to keep it."""

    name: str
    namespace: str
    replicated_job: str
    job: Job
    pod: PodTemplate
    suspended: bool
    ttl_s: int | None
    annotations: tuple[tuple[str, str], ...]

    @property
    def job_name(self) -> str:
        return f"{self.name}-{self.replicated_job}-0"


def read_manifest(manifest: Any) -> JobSetSpec:
    """Raises ManifestError for the first field that is wrong or not supported."""
    top = _Fields(manifest, "")
    top.expect("apiVersion", JOBSET_API_VERSION)
    top.expect("kind", "JobSet")
    metadata = top.child("metadata")
    name = metadata.need("name", str)
    _check_dns_label(name, metadata.at("name"))
    namespace = metadata.get("namespace", str, "default")
    annotations = metadata.strings("annotations")
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
    if longest > _MAX_NAME:
        raise ManifestError(f"metadata.name: pod names would have {longest} characters, {_MAX_NAME} are allowed; shorten it")
    suspended = spec.get("suspend", bool, False)
    ttl_s = spec.number("ttlSecondsAfterFinished", None, least=0)
    _read_success_policy(spec)
    # No service is made for the pods, so no name of one can be looked up: nothing in a one-pod-per-index job does.
    spec.ignore("network")
    for fields in (job_spec, template, replicated, spec):
        fields.close()
    top.ignore("status")
    top.close()
    return JobSetSpec(name, namespace, group, job, pod, suspended, ttl_s, annotations)


def _read_success_policy(spec: _Fields) -> None:
    """With one replicated job both operators mean the same."""
    policy = spec.optional("successPolicy")
    if policy is not None:
        policy.choice("operator", ("All", "Any"))
        policy.ignore("targetReplicatedJobs")
        policy.close()


def _read_job(fields: _Fields, pod: PodTemplate) -> Job:
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
    return Job(
        completions=completions,
        parallelism=fields.number("parallelism", 1, least=0) or 0,
        backoff_limit=fields.number("backoffLimit", 6 if per_index is None else None, least=0),
        backoff_limit_per_index=per_index,
        max_failed_indexes=max_failed,
        active_deadline_s=fields.number("activeDeadlineSeconds", None, least=0),
        rules=rules,
    )


def _read_rule(fields: _Fields, containers: set[str], per_index: bool) -> Rule:
    action = cast(Action, fields.choice("action", ("FailJob", "FailIndex", "Ignore", "Count")))
    if action == "FailIndex" and not per_index:
        raise ManifestError(f"{fields.at('action')}: FailIndex needs backoffLimitPerIndex")
    on_exit = fields.optional("onExitCodes")
    conditions = fields.children("onPodConditions", default=[])
    fields.close()
    if (on_exit is None) == (not conditions):
        raise ManifestError(f"{fields.path}: give onExitCodes or onPodConditions, one of them")
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
        raise ManifestError(f"{on_exit.at('containerName')}: there is no container {container!r}")
    return Rule(action, operator, values, container)


def _read_pod(template: _Fields) -> PodTemplate:
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
        raise ManifestError(f"{spec.at('containers')}: a pod needs one at least")
    names = [container.name for container in (*init, *main)]
    if len(set(names)) < len(names):
        raise ManifestError(f"{spec.at('containers')}: container names {', '.join(names)} are not all different")
    grace_s = spec.number("terminationGracePeriodSeconds", 30, least=0) or 0
    spec.ignore(*_POD_WITHOUT_EFFECT)
    spec.close()
    port_env = _read_port_env(dict(annotations).get(PORT_ENV_ANNOTATION, ""), (*init, *main), template.path)
    return PodTemplate(init, main, grace_s, port_env, labels, annotations)


def _read_port_env(text: str, containers: Sequence[Container], path: str) -> tuple[tuple[str, str], ...]:
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


def _read_container(fields: _Fields, *, init: bool) -> Container:
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
    container = Container(
        name=name,
        image=fields.need("image", str),
        command=tuple(fields.items("command", str)),
        args=tuple(fields.items("args", str)),
        env=tuple(_read_env(item) for item in fields.children("env", default=[])),
        ports=tuple(ports),
        sidecar=sidecar,
        **probes,
    )
    fields.ignore(*_CONTAINER_WITHOUT_EFFECT)
    fields.close()
    return container


def _read_env(fields: _Fields) -> EnvVar:
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


def _read_probe(fields: _Fields | None, ports: dict[str, int]) -> Probe | None:
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
    if len(text) > _MAX_NAME or not _DNS_LABEL.fullmatch(text):
        raise ManifestError(f"{where}: {text!r} is not a DNS label (a-z, 0-9 and dashes, {_MAX_NAME} characters at most)")


def _only(items: list[_Fields], where: str) -> _Fields:
    if len(items) != 1:
        raise ManifestError(f"{where}: the local runtime runs exactly one replicated job, here are {len(items)}")
    return items[0]


class _Fields:
    """One mapping of a manifest. Remembers what was read, so that `close` can refuse the rest by name."""

    def __init__(self, value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise ManifestError(f"{path or 'manifest'}: not a mapping")
        self.path = path
        self._values = value
        self._read: set[str] = set()

    def at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def _value(self, key: str) -> Any:
        self._read.add(key)
        return self._values.get(key)

    def get(self, key: str, kind: type[T], default: Any) -> Any:
        """The value; ``default`` when it is missing or null. Raises ManifestError when it is of another type."""
        value = self._value(key)
        if value is None:
            return default
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ManifestError(f"{self.at(key)}: {value!r} is not of type {kind.__name__}")
        return value

    def need(self, key: str, kind: type[T]) -> T:
        value = self.get(key, kind, None)
        if value is None:
            raise ManifestError(f"{self.at(key)}: missing")
        return cast(T, value)

    def number(self, key: str, default: int | None, *, least: int) -> int | None:
        value = cast("int | None", self.get(key, int, default))
        if value is not None and value < least:
            raise ManifestError(f"{self.at(key)}: {value} is less than {least}")
        return value

    def choice(self, key: str, allowed: Sequence[str]) -> str:
        value = self.need(key, str)
        if value not in allowed:
            raise ManifestError(f"{self.at(key)}: {value!r} is not supported here; supported: {', '.join(allowed)}")
        return value

    def expect(self, key: str, wanted: Any, **default: Any) -> None:
        """Refuses any other value; with ``default``, a missing one counts as that."""
        value = self._value(key)
        if value is None and "default" in default:
            return
        if value != wanted:
            raise ManifestError(f"{self.at(key)}: {value!r} is not supported here; it has to be {wanted!r}")

    def port(self, key: str, names: dict[str, int]) -> int | str:
        value = self._value(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return next((name for name, number in names.items() if number == value), value)
        if value not in names:
            raise ManifestError(f"{self.at(key)}: {value!r} is neither a number nor the name of a port of this container")
        return cast(str, value)

    def items(self, key: str, kind: type[T]) -> list[T]:
        values = self.get(key, list, [])
        for value in values:
            if not isinstance(value, kind) or isinstance(value, bool):
                raise ManifestError(f"{self.at(key)}: {value!r} is not of type {kind.__name__}")
        return cast("list[T]", values)

    def strings(self, key: str) -> tuple[tuple[str, str], ...]:
        fields = self.optional(key)
        return () if fields is None else tuple((name, fields.need(name, str)) for name in fields._values)

    def child(self, key: str) -> _Fields:
        if self._value(key) is None:
            raise ManifestError(f"{self.at(key)}: missing")
        return _Fields(self._values[key], self.at(key))

    def optional(self, key: str) -> _Fields | None:
        return None if self._value(key) is None else self.child(key)

    def children(self, key: str, default: list[Any] | None = None) -> list[_Fields]:
        values = self.get(key, list, default)
        if values is None:
            raise ManifestError(f"{self.at(key)}: missing")
        return [_Fields(value, f"{self.at(key)}[{number}]") for number, value in enumerate(values)]

    def ignore(self, *keys: str) -> None:
        self._read.update(keys)

    def close(self) -> None:
        unread = sorted(set(self._values) - self._read)
        if unread:
            raise ManifestError(f"{self.at(unread[0])}: the local runtime does not support this field; remove it")
