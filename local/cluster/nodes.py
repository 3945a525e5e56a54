"""Nodes: real ones, each a containerd and a kubelet, and kwok's, which only simulate their pods."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from local.cluster.context import HOST, Context
from local.cluster.packages import cgroup_roots
from local.cluster.processes import run, succeeds
from local.ports import new_port

PAUSE: Final = "localhost/pause:1"
GRACE_S: Final = 15
"""As on GKE's Spot nodes: of the 30 s between notice and end, users' pods have the first 15."""


def start_runtime(context: Context, name: str) -> None:
    """A node's containerd, which needs no cluster."""
    layout = context.layout
    folder = layout.node(name)
    for part in ("cni", "containerd", "kubelet", "pod-logs"):
        (folder / part).mkdir(parents=True)
    layout.write(f"{name}/cni/10-pods.conflist", json.dumps(_pod_network(context)))
    context.group.start(
        f"{name}-containerd",
        context.programs["containerd"],
        "-c",
        layout.write(f"{name}/containerd.toml", _containerd(context, folder)),
        # containerd looks for its shim on the PATH.
        environment={
            "PATH": f"{context.programs['containerd-shim-runc-v2'].parent}:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"
        },
    )
    ctr = (context.programs["ctr"], "-a", layout.containerd(name))
    context.group.wait_for(f"{name}-containerd", lambda: succeeds(*ctr, "plugins", "ls"))


def start(context: Context, name: str, number: int) -> None:
    """The kubelet beside a runtime: the node `name`, labelled ``pool=NAME``. number: decides its address."""
    layout, address, folder = context.layout, context.layout.node_address(number), context.layout.node(name)
    run("ip", "addr", "add", f"{address}/16", "dev", layout.bridge)
    for root in cgroup_roots():
        (root / layout.cgroup / name).mkdir(parents=True, exist_ok=True)
    context.authority.issue(f"{name}-serving", name, hosts=(address, name))
    bus = _start_bus(context, name)
    kubeconfig = context.client(f"{name}/kubeconfig", name, f"system:node:{name}", "system:nodes")
    context.group.start(
        name,
        context.programs["kubelet"],
        *("--kubeconfig", kubeconfig, "--config", layout.write(str(layout.kubelet(name)), _kubelet(context, name, address))),
        *("--root-dir", folder / "kubelet", "--cert-dir", folder / "kubelet" / "pki"),
        *("--hostname-override", name, "--node-ip", address, "--node-labels", f"pool={name}"),
        environment={"DBUS_SYSTEM_BUS_ADDRESS": bus},
    )


def start_kwok(context: Context, count: int) -> None:
    """Nodes ``kwok-1`` and so on: for placement, quota and scale. Tainted: only pods that tolerate the taint land there."""
    context.start(
        "kwok",
        *("--kubeconfig", context.layout.kubeconfig, "--config", context.programs.manifest("kwok-stages.yaml")),
        *("--manage-all-nodes=false", "--manage-nodes-with-label-selector=type=kwok"),
        *(f"--server-address={HOST}:{new_port()}", "--node-lease-duration-seconds=40"),
    )
    context.apply([_kwok_node(f"kwok-{number}") for number in range(1, count + 1)])


def _kwok_node(name: str) -> dict[str, Any]:
    room = {"cpu": "32", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"type": "kwok", "pool": name, "kubernetes.io/hostname": name}},
        "spec": {"taints": [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]},
        "status": {"allocatable": room, "capacity": room},
    }


def _pod_network(context: Context) -> dict[str, Any]:
    layout = context.layout
    addresses = {
        "type": "host-local",
        # One range for all nodes, so that no two pods get the same address.
        "dataDir": str(layout.path / "ipam"),
        "routes": [{"dst": "0.0.0.0/0"}],
        "ranges": [
            [
                {
                    "subnet": f"{layout.network}.0.0/16",
                    "rangeStart": f"{layout.network}.1.1",
                    "rangeEnd": f"{layout.network}.250.254",
                    "gateway": layout.gateway,
                }
            ]
        ],
    }
    bridge = {"type": "bridge", "bridge": layout.bridge, "hairpinMode": True, "ipam": addresses}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}


def _containerd(context: Context, folder: Path) -> str:
    return f"""version = 2
root = "{folder}/containerd/root"
state = "{folder}/containerd/state"
[grpc]
  address = "{context.layout.containerd(folder.name)}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  # runc may not lower oom_score_adj without CAP_SYS_RESOURCE.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{context.programs.cni}"
    conf_dir = "{folder}/cni"
"""


def _kubelet(context: Context, name: str, address: str) -> dict[str, Any]:
    layout, folder = context.layout, context.layout.node(name)
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.cgroup}/{name}",
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "containerRuntimeEndpoint": f"unix://{layout.containerd(name)}",
        "address": address,
        "port": 10250,
        "healthzPort": 0,
        "readOnlyPort": 0,
        "tlsCertFile": f"{layout.pki}/{name}-serving.crt",
        "tlsPrivateKeyFile": f"{layout.pki}/{name}-serving.key",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{layout.pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "clusterDNS": [layout.gateway],
        "clusterDomain": "cluster.local",
        "resolvConf": "",
        "podLogsDir": str(folder / "pod-logs"),
        "volumePluginDir": str(folder / "volume-plugins"),
        "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "50Mi"},
        "imageGCHighThresholdPercent": 100,
        "makeIPTablesUtilChains": False,
        **grace(),
    }


def grace(seconds: int = GRACE_S) -> dict[str, str]:
    """kubelet's settings for a node whose user pods have `seconds` between the notice and their end."""
    return {"shutdownGracePeriod": f"{seconds + 15}s", "shutdownGracePeriodCriticalPods": "15s"}


def _start_bus(context: Context, name: str) -> str:
    """The node's own system bus with the stand-in for systemd-logind, which announces a preemption to kubelet."""
    socket = context.layout.node(name) / "bus.sock"
    policy = '<allow user="*"/><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/>'
    text = f'<busconfig><listen>unix:path={socket}</listen><policy context="default">{policy}</policy></busconfig>'
    config = context.layout.write(f"{name}/bus.conf", text)
    context.group.start(f"{name}-bus", "dbus-daemon", "--nofork", "--nopidfile", "--config-file", config)
    context.group.wait_for(f"{name}-bus", socket.exists)
    bus = f"unix:path={socket}"
    logind = f"{name}-logind"
    context.group.start(logind, context.programs["logind"], environment={"DBUS_SYSTEM_BUS_ADDRESS": bus})
    context.group.wait_for(logind, lambda: "ready" in context.layout.log(logind).read_text())
    return bus
