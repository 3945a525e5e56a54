"""What a cluster leaves on a machine; nothing, when it is gone."""

from __future__ import annotations

import subprocess
from pathlib import Path

from local.cluster.layout import Layout
from local.cluster.packages import cgroup_roots
from local.cluster.processes import run
from local.cluster.teardown import links_to_logs
from local.stack import marks


def traces(layout: Layout) -> list[str]:
    """Of the cluster of one state folder, but for `rules`."""
    found = [str(layout.path)] if layout.path.exists() else []
    found += [f"process {pid}" for pid in marks.marked({marks.STACK: str(layout.path)})]
    found += [f"mount {line.split()[1]}" for line in Path("/proc/mounts").read_text().splitlines() if str(layout.path) in line]
    found += [str(root / layout.cgroup) for root in cgroup_roots() if (root / layout.cgroup).exists()]
    found += [str(link) for link in links_to_logs(layout)]
    if subprocess.run(["ip", "link", "show", layout.bridge], capture_output=True).returncode == 0:
        found.append(f"bridge {layout.bridge}")
    return found


def rules() -> list[str]:
    """The chains of kube-proxy and kubelet in this machine's packet filter."""
    # It is in a folder of administrators' programs, which PATH may lack.
    return [line for line in run("iptables-save").splitlines() if line.startswith(":KUBE-")]
