"""One bridge that carries the host, the nodes and the pods; services and names above it."""

from __future__ import annotations

from pathlib import Path

from local.cluster.context import HOST, Context
from local.cluster.layout import Layout
from local.cluster.processes import run
from local.ports import new_port


def make_bridge(layout: Layout) -> None:
    run("ip", "link", "add", layout.bridge, "address", layout.bridge_mac, "type", "bridge")
    run("ip", "addr", "add", f"{layout.gateway}/16", "dev", layout.bridge)
    run("ip", "link", "set", layout.bridge, "up")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def start_services(context: Context) -> None:
    """kube-proxy for service addresses, CoreDNS for names; one of each, since all nodes share this machine's network."""
    layout = context.layout
    proxy = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        # Otherwise it changes how this machine routes packets to itself.
        "iptables": {"localhostNodePorts": False},
        "clientConnection": {"kubeconfig": str(layout.kubeconfig)},
        "clusterCIDR": f"{layout.network}.0.0/16",
        "hostnameOverride": "node-1",
        "healthzBindAddress": f"{HOST}:{new_port()}",
        "metricsBindAddress": f"{HOST}:{new_port()}",
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }
    context.start("kube-proxy", "--config", layout.write(layout.proxy.name, proxy))
    corefile = f"""cluster.local:53 {{
    bind {layout.gateway}
    errors
    kubernetes cluster.local {{
        kubeconfig {layout.kubeconfig} cluster
        ttl 0
    }}
}}
"""
    context.start("coredns", "-conf", layout.write("Corefile", corefile))
