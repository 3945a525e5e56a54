"""What the cluster takes from the Linux distribution: programs not written in Go, or that need C libraries to build."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

PACKAGES: Final = {
    "runc": "runc",
    "dbus-daemon": "dbus-daemon",
    "ip": "iproute2",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "mmdebstrap": "mmdebstrap",
    "buildah": "buildah",
}
"""Program -> Debian's and Ubuntu's package."""


NO_CLUSTER_VARIABLE: Final = "NIGHTSHIFT_NO_CLUSTER"
"""Set to the reason why this machine cannot run a cluster, if the caller already knows it (`local.test`)."""
_RIGHTS: Final = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
"""What root lacks in an unprivileged container: capability -> its bit (linux/capability.h)."""


class Unsupported(Exception):
    """This machine cannot run the cluster; the message says what it lacks."""


def obstacle() -> str | None:
    """Why a cluster cannot run here, or None. What `ensure` can install is not an obstacle."""
    if known := os.environ.get(NO_CLUSTER_VARIABLE):
        return known
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"the cluster's parts are built for Linux on x86-64, and this is {platform.system()} on {platform.machine()}"
    if os.geteuid() != 0:
        return "kubelet and containerd need root"
    if rights := ", ".join(_rights_lacking()):
        return f"this root may not mount or make networks ({rights}): use a virtual machine or a privileged container"
    if _missing() and not shutil.which("apt-get"):
        return f"{', '.join(_missing())} are missing, and this is not Debian or Ubuntu, where they could be installed"
    return None


def ensure(say: Callable[[str], None]) -> None:
    """Installs the packages that are missing. Raises Unsupported."""
    if reason := obstacle():
        raise Unsupported(f"{reason[0].upper()}{reason[1:]}. Set KUBECONFIG to a cluster with JobSet and Kueue instead.")
    missing = _missing()
    if not missing:
        return
    say(f"installing the packages {', '.join(missing)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *missing]):
        done = subprocess.run(["apt-get", *command], env=environment, text=True, capture_output=True)
        if done.returncode != 0:
            raise Unsupported(f"'apt-get {' '.join(command)}' failed:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")


def _rights_lacking() -> list[str]:
    status = Path("/proc/self/status").read_text()
    effective = int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), 16)
    lacking = [name for name, bit in _RIGHTS.items() if not effective >> bit & 1]
    # Root of a user namespace has every capability, and none of them outside it.
    if Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]:
        lacking.append("it is root of a user namespace only")
    return lacking or [f"{folder} is read-only" for folder in cgroup_roots() if not os.access(folder, os.W_OK)]


def _missing() -> list[str]:
    # Not every root has sbin on the PATH.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    return [package for program, package in PACKAGES.items() if not shutil.which(program, path=path)]


def cgroup_roots() -> list[Path]:
    """The folders in which to make a cgroup: one in version 2, one for each controller in version 1."""
    top = Path("/sys/fs/cgroup")
    if (top / "cgroup.controllers").exists():
        return [top]
    return [folder for folder in top.iterdir() if folder.is_dir() and not folder.is_symlink()]
