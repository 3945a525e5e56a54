"""Where a cluster keeps its files, and the names and addresses that follow from that place."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from local.stack.folder import ROOT

DEFAULT_STATE: Final = ROOT / ".cluster"
PATH_MAX: Final = 80
"""Longest path of a state folder: the paths of the sockets below it must stay under the kernel's 108 characters."""


@dataclass(frozen=True)
class Layout:
    """One state folder; `path` is absolute. Two folders have different names and, usually, different addresses."""

    path: Path

    @classmethod
    def at(cls, state: Path) -> Layout:
        path = state.resolve()
        if len(str(path)) > PATH_MAX:
            raise ValueError(f"{path} is too long a path for the sockets of a cluster: at most {PATH_MAX} characters")
        return cls(path)

    @property
    def _digest(self) -> bytes:
        return hashlib.sha256(str(self.path).encode()).digest()

    @property
    def name(self) -> str:
        return self._digest.hex()[:6]

    @property
    def bridge(self) -> str:
        return f"ns{self.name}"

    @property
    def bridge_mac(self) -> str:
        """Fixed: otherwise a bridge takes the lowest address of its ports, and pods lose the host as ports come and go."""
        return "02:" + ":".join(self.name[at : at + 2] for at in (0, 2, 4)) + ":00:01"

    @property
    def network(self) -> str:
        """The first half of the addresses of pods, nodes and the host, a /16."""
        return f"10.{100 + self._digest[0] % 50}"

    @property
    def services(self) -> str:
        return f"10.{160 + self._digest[1] % 50}"

    @property
    def gateway(self) -> str:
        """The host, as the pods see it."""
        return f"{self.network}.0.1"

    def node_address(self, number: int) -> str:
        return f"{self.network}.0.{10 + number}"

    @property
    def cgroup(self) -> str:
        return f"nightshift-{self.name}"

    @property
    def kubeconfig(self) -> Path:
        return self.path / "kubeconfig"

    @property
    def pki(self) -> Path:
        return self.path / "pki"

    @property
    def proxy(self) -> Path:
        """kube-proxy's configuration. If it exists, kube-proxy may have changed this machine's packet filter."""
        return self.path / "kube-proxy.yaml"

    @property
    def document(self) -> Path:
        """What the supervisor reports about the cluster."""
        return self.path / "cluster.json"

    @property
    def lock(self) -> Path:
        return self.path.with_name(f"{self.path.name}.lock")

    def log(self, name: str) -> Path:
        return self.path / "log" / f"{name}.log"

    def node(self, name: str) -> Path:
        return self.path / name

    def kubelet(self, node: str) -> Path:
        """The configuration of a node's kubelet."""
        return self.path / node / "kubelet.yaml"

    def held_down(self, part: str) -> Path:
        """If this file exists, the supervisor does not restart the part when it dies."""
        return self.path / "held-down" / part

    def containerd(self, node: str) -> Path:
        """The socket of a node's containerd."""
        return self.path / node / "c.sock"

    def write(self, file: str, content: object) -> Path:
        """A file below the folder: text as it is, a list as several YAML documents, anything else as one."""
        target = self.path / file
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            target.write_text(content)
        elif isinstance(content, list):
            target.write_text(yaml.safe_dump_all(content))
        else:
            target.write_text(yaml.safe_dump(content))
        return target

    def read(self) -> dict[str, Any] | None:
        try:
            document: dict[str, Any] = json.loads(self.document.read_text())
        except FileNotFoundError:
            return None
        return document
