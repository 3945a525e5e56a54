"""Removes every trace of a cluster from this machine, from its state folder alone, even after a crash or a failed start."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Final

from local.cluster.build import Programs
from local.cluster.layout import Layout
from local.cluster.packages import cgroup_roots
from local.cluster.processes import run, succeeds
from local.stack import marks

DIE_S: Final = 10.0


class NotGone(Exception):
    """Something of the cluster is still there; the message says what."""


def teardown(layout: Layout) -> None:
    """Processes, containers, mounts, cgroups, the bridge, kube-proxy's rules, the folder. Harmless if there is nothing.

    Raises NotGone.
    """
    # All at once, including kubelets and containerds, so that nothing is left to restart anything.
    _sweep(layout)
    _kill_containers(layout)
    _sweep(layout)
    _unmount(layout)
    _remove_cgroups(layout)
    if layout.proxy.exists():
        _remove_rules()
    if succeeds("ip", "link", "show", layout.bridge):
        run("ip", "link", "del", layout.bridge)
    _remove_links(layout)
    shutil.rmtree(layout.path, ignore_errors=True)
    if layout.path.exists():
        raise NotGone(f"{layout.path} cannot be removed")


def _sweep(layout: Layout) -> None:
    try:
        marks.sweep({marks.STACK: str(layout.path)})
    except TimeoutError as error:
        raise NotGone(str(error)) from error


def _kill_containers(layout: Layout) -> None:
    end = time.monotonic() + DIE_S
    while pids := _pids_in_cgroups(layout):
        if time.monotonic() > end:
            raise NotGone(f"processes {pids} of the cluster's containers do not die")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _pids_in_cgroups(layout: Layout) -> list[int]:
    files = [file for root in cgroup_roots() for file in (root / layout.cgroup).rglob("cgroup.procs")]
    found: set[int] = set()
    for file in files:
        with contextlib.suppress(OSError):
            found.update(int(pid) for pid in file.read_text().split())
    return sorted(found - {0})


def _unmount(layout: Layout) -> None:
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in reversed([mount for mount in mounts if mount.startswith(f"{layout.path}/")]):
        run("umount", "-l", mount)


def _remove_cgroups(layout: Layout) -> None:
    end = time.monotonic() + DIE_S
    for tree in (root / layout.cgroup for root in cgroup_roots()):
        while tree.exists():
            for group in [*sorted((entry for entry in tree.rglob("*") if entry.is_dir()), reverse=True), tree]:
                # A killed process keeps its cgroup busy until it is waited for.
                with contextlib.suppress(OSError):
                    group.rmdir()
            if tree.exists():
                if time.monotonic() > end:
                    raise NotGone(f"the cgroup {tree} cannot be removed")
                time.sleep(0.05)


def _remove_rules() -> None:
    """kube-proxy's chains, and kubelet's, which its own clean-up leaves behind."""
    programs = Programs()
    if programs["kube-proxy"].exists():
        succeeds(programs["kube-proxy"], "--cleanup")
    for rest in ("-D INPUT -j", "-D OUTPUT -j", "-F", "-X"):
        succeeds("iptables", "-w", *rest.split(), "KUBE-FIREWALL")


def links_to_logs(layout: Layout) -> list[Path]:
    """kubelet's, always in this place, whatever its own log folder. Another cluster's kubelet may remove its own meanwhile."""
    found = []
    for link in Path("/var/log/containers").glob("*"):
        with contextlib.suppress(OSError):
            if str(link.readlink()).startswith(f"{layout.path}/"):
                found.append(link)
    return found


def _remove_links(layout: Layout) -> None:
    for link in links_to_logs(layout):
        link.unlink(missing_ok=True)
