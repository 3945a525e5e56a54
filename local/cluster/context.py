"""What every part of a cluster builds on: its place, its programs, its authority, its processes, and kubectl."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from local.cluster.build import Programs
from local.cluster.layout import Layout
from local.cluster.pki import Authority
from local.cluster.processes import ProgramGroup, run, succeeds

HOST: Final = "127.0.0.1"


@dataclass(frozen=True)
class Context:
    """port: the API server's, on all addresses of this machine."""

    layout: Layout
    programs: Programs
    authority: Authority
    group: ProgramGroup
    port: int

    @property
    def server(self) -> str:
        """The API server's URL, for programs on this machine and for pods."""
        return f"https://{self.layout.gateway}:{self.port}"

    def client(self, file: str, name: str, common_name: str, organization: str | None = None) -> Path:
        """A kubeconfig with its own certificate."""
        self.authority.issue(name, common_name, organization)
        return self.layout.write(file, self.authority.kubeconfig(name, self.server))

    def kubectl(self, *arguments: object, text: str | None = None) -> str:
        return run(self.programs["kubectl"], "--kubeconfig", self.layout.kubeconfig, *arguments, text=text)

    def kubectl_succeeds(self, *arguments: object) -> bool:
        return succeeds(self.programs["kubectl"], "--kubeconfig", self.layout.kubeconfig, *arguments)

    def apply(self, documents: list[dict[str, object]]) -> None:
        self.kubectl("apply", "--server-side", "-f", "-", text=yaml.safe_dump_all(documents))

    def start(self, program: str, *arguments: object) -> None:
        self.group.start(program, self.programs[program], *arguments)

    def answers(self, url: str) -> bool:
        """Whether a server that this cluster's authority signed, or one without TLS, answers 200."""
        tls = ssl.create_default_context(cafile=str(self.layout.pki / "ca.crt")) if url.startswith("https") else None
        try:
            with urllib.request.urlopen(url, context=tls, timeout=5) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False
