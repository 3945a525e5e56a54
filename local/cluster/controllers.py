"""JobSet and Kueue, run beside the cluster instead of in it: their webhooks are URLs on this machine."""

from __future__ import annotations

import shutil
from typing import Any, Final

import yaml

from local.cluster.context import HOST, Context
from local.ports import new_port

_SHOW_ETC: Final = 'mount -t overlay overlay -o "lowerdir=$0:/etc" /etc; exec "$@"'


def start_jobset(context: Context) -> None:
    _start(context, "jobset", {"apiVersion": "config.jobset.x-k8s.io/v1alpha1", "kind": "Configuration"})


def start_kueue(context: Context) -> None:
    context.kubectl("create", "namespace", "kueue-system")
    config = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "integrations": {"frameworks": ["batch/job", "jobset.x-k8s.io/jobset"]},
    }
    _start(context, "kueue", config, "--feature-gates=VisibilityOnDemand=false")


def _start(context: Context, name: str, config: dict[str, Any], *arguments: str) -> None:
    """CRDs first, then the controller, and its webhook configurations once it answers."""
    layout = context.layout
    port, health = new_port(), new_port()
    folder = layout.path / name
    certificates = folder / "certs"
    certificates.mkdir(parents=True)
    for end in ("crt", "key"):
        shutil.copy(layout.pki / f"webhook.{end}", certificates / f"tls.{end}")
    config |= {
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": f"{HOST}:{health}"},
        "webhook": {"host": HOST, "port": port, "certDir": str(certificates)},
    }
    crds = layout.write(f"{name}/crds.yaml", _pointed_here(context, name, "crds", port))
    hooks = layout.write(f"{name}/webhooks.yaml", _pointed_here(context, name, "webhooks", port))
    context.kubectl("apply", "--server-side", "-f", crds)
    # The wait fails while a new CRD has no conditions yet.
    established = ("wait", "--for=condition=Established", "--timeout=30s", "-f", crds)
    context.group.wait_for(f"{name} CRDs", lambda: context.kubectl_succeeds(*established))
    # Kueue insists on /etc/kueue/metrics/certs although its metrics are off: it is shown such a folder, and no other of ours.
    shutil.copytree(certificates, folder / "etc" / name / "metrics" / "certs")
    options = ("--config", layout.write(f"{name}/config.yaml", config), "--kubeconfig", layout.kubeconfig, *arguments)
    context.group.start(name, "unshare", "--mount", "sh", "-ec", _SHOW_ETC, folder / "etc", context.programs[name], *options)
    context.group.wait_for(name, lambda: context.answers(f"http://{HOST}:{health}/readyz"))
    context.kubectl("apply", "--server-side", "-f", hooks)


def _pointed_here(context: Context, name: str, part: str, port: int) -> list[dict[str, Any]]:
    """The documents of a manifest; webhooks that name a Service get a URL on this machine instead."""
    authority = context.authority.data("ca.crt")
    text = context.programs.manifest(f"{name}-{part}.yaml").read_text()
    documents = [document for document in yaml.safe_load_all(text) if document and document["kind"] != "Service"]
    for document in documents:
        configs = [webhook["clientConfig"] for webhook in document.get("webhooks", [])]
        if configs:
            # Both projects call theirs "mutating-webhook-configuration": one would replace the other.
            document["metadata"]["name"] = f"{name}-{document['metadata']['name']}"
        if "webhook" in document.get("spec", {}).get("conversion", {}):
            configs.append(document["spec"]["conversion"]["webhook"]["clientConfig"])
        for config in configs:
            config.update(url=f"https://{HOST}:{port}{config.pop('service')['path']}", caBundle=authority)
    return documents
