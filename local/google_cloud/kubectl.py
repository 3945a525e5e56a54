"""kubectl, as far as pages use it. What a real API server says of the same manifests, `tests/cluster` asks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import yaml

from local.google_cloud import kubernetes, streams
from local.google_cloud.cloud import Cloud, Refused
from local.google_cloud.manifests import brought, kustomized, read, release

NO_CLUSTER: Final = "The connection to the server localhost:8080 was refused - did you specify the right host or port?"
_SHORT: Final = {
    "-n": "--namespace", "-f": "--filename", "-k": "--kustomize", "-o": "--output", "-l": "--selector",
}  # fmt: skip
_FLAGS: Final = {
    "apply": "--server-side --filename --kustomize --dry-run --namespace --force-conflicts",
    "create": "--namespace --dry-run --output --from-literal",
    "get": "--namespace --output --selector",
    "rollout": "--namespace --timeout",
    "wait": "--for --timeout --namespace --selector --all",
    "auth": "--namespace --as",
    "logs": "--namespace --tail --selector",
    "version": "",
}
_SWITCHES: Final = {"--server-side", "--force-conflicts", "--all"}
_PLURALS: Final = {
    "hpa": "horizontalpodautoscalers", "crd": "customresourcedefinitions", "deployment": "deployments", "pods": "pods",
    "rolebinding": "rolebindings", "clusterqueue": "clusterqueues",
}  # fmt: skip
_CREATED: Final = {"serviceaccount": "ServiceAccount", "secret": "Secret", "namespace": "Namespace"}


def run(cloud: Cloud, words: Sequence[str], stdin: str) -> str:
    arguments, flags = _parse(words)
    if arguments[0] == "create" and flags.get("--dry-run") == "client":
        return yaml.safe_dump(_created(arguments, flags))
    if not cloud.machine.cluster:
        raise Refused(NO_CLUSTER)
    cluster = cloud.machine.cluster
    match arguments:
        case ["version"]:
            return "Client Version: v1.36.3\nServer Version: v1.34.1-gke.1829001"
        case ["apply"]:
            return _apply(cloud, cluster, flags, stdin)
        case ["create", *_]:
            return "\n".join(kubernetes.apply(cloud, cluster, [_created(arguments, flags)], dry_run=False))
        case ["get", kind, *names]:
            return _get(cloud, cluster, kind, names, flags)
        case ["rollout", "status", target]:
            return _rolled_out(cloud, cluster, target.partition("/")[2], flags.get("--namespace", "default"))
        case ["wait", *targets]:
            return _wait(cloud, cluster, targets, flags)
        case ["auth", "can-i", _, _]:
            return _can_i(cloud, cluster, flags)
        case ["logs", target]:
            found = _find(cloud, cluster, "deployments", target.partition("/")[2], flags.get("--namespace", "default"))
            return f'{{"severity": "INFO", "answered": {streams.answered(cloud, cluster, found)}}}'
    raise Refused(f'error: unknown command "{" ".join(arguments)}" for "kubectl"')


def _parse(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Raises Refused for a flag that the command does not have."""
    arguments: list[str] = []
    flags: dict[str, str] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        if not word.startswith("-") or word == "-":
            arguments.append(word)
            continue
        name, equals, value = word.partition("=")
        name = _SHORT.get(name, name)
        flags[name] = "" if name in _SWITCHES else value if equals else left.pop(0)
    known = _FLAGS.get(arguments[0] if arguments else "")
    if known is None:
        raise Refused(f'error: unknown command "{" ".join(arguments)}" for "kubectl"')
    if unknown := sorted(set(flags) - set(known.split())):
        raise Refused(f"error: unknown flag: {unknown[0]}\nSee 'kubectl {arguments[0]} --help' for usage.")
    return arguments, flags


def _apply(cloud: Cloud, cluster: str, flags: dict[str, str], stdin: str) -> str:
    if "--server-side" not in flags and "--dry-run" not in flags:
        raise Refused("the stand-in knows server-side apply alone: the CRDs of Kueue are too large for another")
    kinds: tuple[str, ...] = ()
    if folder := flags.get("--kustomize"):
        try:
            documents = list(kustomized(cloud.machine.folder / folder))
            kinds = brought(cloud.machine.folder / folder)
        except FileNotFoundError:
            raise Refused(f"error: unable to find one of 'kustomization.yaml' in directory '{folder}'") from None
    elif flags["--filename"] == "-":
        documents = read(stdin)
        if not documents:
            raise Refused("error: no objects passed to apply")
    elif flags["--filename"].startswith("https://"):
        found = release(flags["--filename"])
        if found is None:
            raise Refused(f'error: unable to read URL "{flags["--filename"]}", server reported 404 Not Found, status code=404')
        documents, kinds = found
    else:
        documents = read((cloud.machine.folder / flags["--filename"]).read_text())
    for each in documents:
        if "--namespace" in flags:
            each["metadata"].setdefault("namespace", flags["--namespace"])
    try:
        lines = kubernetes.apply(cloud, cluster, documents, dry_run=flags.get("--dry-run") == "server")
    finally:
        # kubectl goes on after what it cannot apply, and CRDs are among what it can.
        kubernetes.bring(cloud, cluster, kinds)
    return "\n".join(lines)


def _created(arguments: list[str], flags: dict[str, str]) -> dict[str, Any]:
    kind, *rest = arguments[1:]
    if kind not in _CREATED:
        raise Refused(f"the stand-in does not create a {kind}")
    data = {"stringData": dict([flags["--from-literal"].split("=", 1)])} if "--from-literal" in flags else {}
    meta = {"name": rest[-1], "namespace": flags.get("--namespace", "default")}
    return {"apiVersion": "v1", "kind": _CREATED[kind], "metadata": meta, **data}


def _find(cloud: Cloud, cluster: str, resources: str, name: str, namespace: str) -> dict[str, Any]:
    for where in (namespace, ""):
        if (found := kubernetes.get(cloud, cluster, resources, name, where)) is not None:
            return found
    raise Refused(f'Error from server (NotFound): {resources} "{name}" not found')


def _get(cloud: Cloud, cluster: str, kind: str, names: list[str], flags: dict[str, str]) -> str:
    lines = []
    for each in kind.split(","):
        resources = _PLURALS.get(each, each)
        if resources == "computeclasses" and not kubernetes.knows(cloud, cluster, "cloud.google.com/v1", "ComputeClass"):
            raise Refused('error: the server doesn\'t have a resource type "computeclasses"')
        for name in names:
            _find(cloud, cluster, resources, name, flags.get("--namespace", "default"))
        here = f"{cluster}/k8s/"
        lines += [name.split("/")[-1] for objects in cloud.state.resources.values() for name in objects
                  if name.startswith(here) and name.split("/")[-2] == resources]  # fmt: skip
    return "\n".join(names or lines)


def _rolled_out(cloud: Cloud, cluster: str, name: str, namespace: str) -> str:
    if problem := streams.unavailable(cloud, cluster, _find(cloud, cluster, "deployments", name, namespace)):
        raise Refused(f'error: deployment "{name}" exceeded its progress deadline: {problem}')
    cloud.state.seconds += 60
    return f'deployment "{name}" successfully rolled out'


def _wait(cloud: Cloud, cluster: str, targets: list[str], flags: dict[str, str]) -> str:
    """Pretended time passes, as much as it takes or as the timeout allows."""
    condition, namespace = flags["--for"], flags.get("--namespace", "default")
    if condition == "create":
        [target] = targets
        return _wait_for_crd(cloud, cluster, target, _seconds(flags.get("--timeout", "30s")))
    resources = _PLURALS.get(targets[0].partition("/")[0], targets[0])
    wanted = dict(each.split("=") for each in flags.get("--selector", "").split(",") if each)
    found = [
        each
        for objects in cloud.state.resources.values()
        for name, each in objects.items()
        if name.startswith(f"{cluster}/k8s/namespaces/{namespace}/{resources}/")
        and wanted.items() <= each["metadata"].get("labels", {}).items()
    ]
    if not found:
        raise Refused("error: no matching resources found")
    check = {"condition=ScalingActive": streams.blind, "condition=Available": streams.unavailable}[condition]
    for each in found:
        name = f"{targets[0]}/{each['metadata']['name']}"
        if problem := check(cloud, cluster, each):
            raise Refused(f"error: timed out waiting for the condition on {name}: {problem}")
    return "\n".join(f"{each['metadata']['name']} condition met" for each in found)


def _wait_for_crd(cloud: Cloud, cluster: str, target: str, timeout_s: int) -> str:
    if target != "crd/computeclasses.cloud.google.com":
        raise Refused(f"Error from server (NotFound): {target} not found")
    start = cloud.state.seconds
    while not kubernetes.knows(cloud, cluster, "cloud.google.com/v1", "ComputeClass"):
        if cloud.state.seconds - start >= timeout_s:
            raise Refused(f"error: timed out waiting for the condition on {target}")
        cloud.state.seconds += 60
    return f"{target} condition met"


def _seconds(text: str) -> int:
    match = re.fullmatch(r"(\d+)([smh])", text)
    if match is None:
        raise Refused(f'error: invalid argument "{text}" for "--timeout" flag')
    return int(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def _can_i(cloud: Cloud, cluster: str, flags: dict[str, str]) -> str:
    """Both names of Airflow are subjects of the RoleBinding that kustomize fills in, which `manifests.py` leaves out."""
    found = kubernetes.get(cloud, cluster, "rolebindings", "nightshift-airflow", flags.get("--namespace", "default"))
    if found is None or not flags.get("--as"):
        raise Refused("no")
    return "yes"
