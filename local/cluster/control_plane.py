"""etcd, the API server, the controller manager and the scheduler, with client certificates and role-based access."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from local.cluster.context import HOST, Context
from local.ports import new_port

FRONT_PROXY: Final = "front-proxy"
METRICS_HOST: Final = "metrics.kube-system.svc"


def start(context: Context) -> None:
    """Returns when namespaces get their default service account: only then can pods be created."""
    layout, authority, pki = context.layout, context.authority, context.layout.pki
    names = (layout.gateway, HOST, f"{layout.services}.0.1", "localhost", "kubernetes.default.svc")
    authority.issue("apiserver", "kube-apiserver", hosts=names)
    authority.issue("webhook", "webhook", hosts=(HOST, "localhost"))
    authority.issue("front-proxy", FRONT_PROXY)
    authority.issue("metrics", "metrics", hosts=(HOST, METRICS_HOST))
    context.client("kubeconfig", "admin", "admin", "system:masters")
    tokens = authority.key("service-accounts")

    etcd = f"http://{HOST}:{new_port()}"
    context.start(
        "etcd",
        *("--data-dir", layout.path / "etcd"),
        *("--listen-client-urls", etcd, "--advertise-client-urls", etcd, "--listen-peer-urls", f"http://{HOST}:{new_port()}"),
        # Nothing in it needs to outlive the machine.
        "--unsafe-no-fsync",
    )
    context.start(
        "kube-apiserver",
        f"--etcd-servers={etcd}",
        f"--secure-port={context.port}",
        "--bind-address=0.0.0.0",
        f"--advertise-address={layout.gateway}",
        f"--service-cluster-ip-range={layout.services}.0.0/16",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--client-ca-file={pki}/ca.crt",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged=true",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={tokens}",
        f"--service-account-signing-key-file={tokens}",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        f"--kubelet-client-certificate={pki}/admin.crt",
        f"--kubelet-client-key={pki}/admin.key",
        "--kubelet-preferred-address-types=InternalIP",
        *_aggregation(pki),
    )
    context.group.wait_for("kube-apiserver", lambda: context.answers(f"https://{HOST}:{context.port}/readyz"))
    common = (f"--kubeconfig={layout.kubeconfig}", "--leader-elect=false", "--secure-port=0")
    context.start(
        "kube-controller-manager",
        *common,
        f"--root-ca-file={pki}/ca.crt",
        f"--service-account-private-key-file={tokens}",
        "--controllers=*,-node-ipam-controller",
        # It ignores kinds that are newer than the controller until its next check, by default after five minutes.
        "--resource-quota-sync-period=10s",
    )
    context.start("kube-scheduler", *common)
    context.group.wait_for(
        "kube-controller-manager",
        lambda: "default" in context.kubectl("get", "serviceaccounts", "--ignore-not-found", "-o", "name"),
    )


def _aggregation(pki: Path) -> tuple[str, ...]:
    """How this API server passes on to others behind it (`local.cluster.metrics`) who asks."""
    return (
        f"--requestheader-client-ca-file={pki}/ca.crt",
        f"--requestheader-allowed-names={FRONT_PROXY}",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        f"--proxy-client-cert-file={pki}/front-proxy.crt",
        f"--proxy-client-key-file={pki}/front-proxy.key",
    )
