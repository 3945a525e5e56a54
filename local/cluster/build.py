"""Builds the cluster's programs from the Go modules in `programs/`, each once per machine and version.

Each folder of `programs/` is one module, whose go.mod and go.sum pin everything that it builds. Builds are kept in
nightshift's cache by a digest of the module's files, so all clones share them and a changed pin makes a new one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from local.environments import cache_dir

SOURCES: Final = Path(__file__).resolve().parent / "programs"
RECIPE: Final = "1"
"""Raise it when the way of building changes without a change to a module."""
GO_MIN: Final = (1, 26)
GO_PLACE: Final = Path("/usr/local/go/bin")
"""Where Go's own archive is unpacked; rarely on the PATH."""


class BuildError(Exception):
    """A program cannot be built here; the message says why and what to do."""


@dataclass(frozen=True)
class Module:
    """One folder of `programs/`. programs: name -> Go package. manifests: file -> (Go module, folder in it), for kustomize if
    the folder has instructions for it.

    sources: the folder `programs/`, the cluster's own unless another part of `local/` has one. Its parent names the cache's.
    """

    name: str
    programs: dict[str, str]
    manifests: dict[str, tuple[str, str]] = field(default_factory=dict)
    tags: str = ""
    sources: Path = SOURCES

    @property
    def home(self) -> Path:
        """Where it is built: its folder in the cache, named by a digest of its files."""
        digest = hashlib.sha256(RECIPE.encode())
        for file in sorted((self.sources / self.name).rglob("*")):
            if file.is_file():
                digest.update(str(file.relative_to(self.sources)).encode() + b"\0" + file.read_bytes())
        return cache_dir() / self.sources.parent.name / f"{self.name}-{digest.hexdigest()[:16]}"


_KUBERNETES: Final = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
_JOBSET: Final = "sigs.k8s.io/jobset"
_KUEUE: Final = "sigs.k8s.io/kueue"
MODULES: Final = (
    Module("kubernetes", {**{name: f"k8s.io/kubernetes/cmd/{name}" for name in _KUBERNETES}, "logind": "./logind"}),
    Module("etcd", {"etcd": "go.etcd.io/etcd/server/v3"}),
    Module(
        "jobset",
        {"jobset": _JOBSET},
        {
            "jobset-crds.yaml": (_JOBSET, "config/components/crd"),
            "jobset-webhooks.yaml": (_JOBSET, "config/components/webhook"),
        },
    ),
    Module(
        "kueue",
        {"kueue": f"{_KUEUE}/cmd/kueue"},
        {"kueue-crds.yaml": (_KUEUE, "config/components/crd"), "kueue-webhooks.yaml": (_KUEUE, "config/components/webhook")},
    ),
    Module("kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}, {"kwok-stages.yaml": ("sigs.k8s.io/kwok", "kustomize/stage/fast")}),
    Module("coredns", {"coredns": "."}),
    Module(
        "containerd",
        {name: f"github.com/containerd/containerd/v2/cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")},
        tags="no_btrfs,no_zfs,no_devmapper",
    ),
    Module(
        "cni",
        {
            name: f"github.com/containernetworking/plugins/plugins/{kind}/{name}"
            for kind, name in (("main", "bridge"), ("main", "loopback"), ("ipam", "host-local"))
        },
    ),
    Module("pause", {"pause": "."}),
    # What others run in a cluster, so that the API server can judge a stream's manifests: no program of theirs is built.
    Module(
        "crds",
        {},
        {
            "gateway-crds.yaml": ("sigs.k8s.io/gateway-api", "config/crd"),
            "inference-crds.yaml": ("sigs.k8s.io/gateway-api-inference-extension", "config/crd"),
            "gke-gateway-crds.yaml": ("github.com/GoogleCloudPlatform/gke-gateway-api", "config/crd"),
            "keda-crds.yaml": ("github.com/kedacore/keda/v2", "config/crd"),
        },
    ),
)


ON_DEMAND: Final = (
    Module("metrics", {"metrics": "."}),
    Module("collector", {"collector": "."}),
    Module("picker", {"epp": "sigs.k8s.io/gateway-api-inference-extension/cmd/epp"}),
)
"""What a cluster starts without; `on_demand` builds them."""
EVERYTHING: Final = (*MODULES, *ON_DEMAND)


class Programs:
    """What was built: `programs["kubectl"]` and `manifest("jobset-crds.yaml")` are local paths."""

    def __init__(self) -> None:
        self._homes = {name: module.home for module in EVERYTHING for name in (*module.programs, *module.manifests)}

    def __getitem__(self, program: str) -> Path:
        return self._homes[program] / "bin" / program

    def manifest(self, file: str) -> Path:
        return self._homes[file] / "manifests" / file

    @property
    def cni(self) -> Path:
        """The folder of the CNI plugins."""
        return self["bridge"].parent


def built(modules: Iterable[Module] = MODULES) -> bool:
    """Whether all of them are there; of MODULES: whether a cluster can start."""
    return all((module.home / ".complete").exists() for module in modules)


def obstacle(modules: Iterable[Module] = MODULES) -> str | None:
    """Why nothing can be built here, or None; also None if all of them are built already."""
    if built(modules):
        return None
    return without_go("the cluster's programs")


def without_go(what: str) -> str | None:
    """Why `what` (a plural) cannot be built here, or None."""
    if not _go_program():
        return f"{what} are built from source and there is no 'go' on the PATH or in {GO_PLACE}"
    version = _go(SOURCES, "version").strip()
    found = re.search(r"go(\d+)\.(\d+)", version)
    if not found or (int(found[1]), int(found[2])) < GO_MIN:
        return f"{what} need Go {GO_MIN[0]}.{GO_MIN[1]} or later, and this is {version}"
    return None


def ensure(say: Callable[[str], None], modules: Sequence[Module] = MODULES) -> Programs:
    """Builds what is missing. A full build takes about a quarter of an hour on two cores. Raises BuildError."""
    if not built(modules):
        if reason := obstacle(modules):
            advice = "Install it, or set KUBECONFIG to a cluster with JobSet and Kueue."
            raise BuildError(f"{reason[0].upper()}{reason[1:]}. {advice}")
        # kubectl renders the manifests of the others, so its module comes first.
        for module in modules:
            make(module, say)
    return Programs()


def on_demand(name: str, say: Callable[[str], None]) -> Path:
    """The program of `ON_DEMAND`, built if it is missing. Raises BuildError."""
    [module] = [each for each in ON_DEMAND if name in each.programs]
    if not built([module]) and not _go_program():
        raise BuildError(f"{name} is built from source and there is no 'go' on the PATH or in {GO_PLACE}. Install it.")
    make(module, say)
    return Programs()[name]


def make(module: Module, say: Callable[[str], None]) -> None:
    """Builds one module unless that was done before; safe to call from several processes at once. Raises BuildError."""
    home = module.home
    home.parent.mkdir(parents=True, exist_ok=True)
    with open(home.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (home / ".complete").exists():
            return
        began = time.monotonic()
        _build(module, home, say)
        (home / ".complete").touch()
        say(f"{module.name} built in {time.monotonic() - began:.0f} s")


def _build(module: Module, home: Path, say: Callable[[str], None]) -> None:
    shutil.rmtree(home, ignore_errors=True)
    (home / "bin").mkdir(parents=True)
    (home / "manifests").mkdir()
    source = module.sources / module.name
    flags = ["-trimpath", "-ldflags", f"-s -w {_version_flags(module)}", "-tags", module.tags]
    for program, package in module.programs.items():
        say(f"building {program}")
        _go(source, "build", *flags, "-o", str(home / "bin" / program), package)
    for file, (name, folder) in module.manifests.items():
        # A module of which nothing is built has not been fetched yet.
        _go(source, "mod", "download", name)
        place = Path(_go(source, "list", "-m", "-f", "{{.Dir}}", name).strip(), folder)
        (home / "manifests" / file).write_text(_manifests(place))


def _manifests(folder: Path) -> str:
    if not (folder / "kustomization.yaml").exists():
        return "---\n".join(each.read_text().removeprefix("---\n") for each in sorted(folder.glob("*.yaml")))
    return _run(str(Programs()["kubectl"]), "kustomize", str(folder))


def _version_flags(module: Module) -> str:
    """The version that Kubernetes' programs report: without it they report v0.0.0 and refuse each other."""
    if module.name != "kubernetes":
        return ""
    version = _go(module.sources / module.name, "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes").strip()
    name, (major, minor) = "k8s.io/component-base/version", version.lstrip("v").split(".")[:2]
    return f"-X {name}.gitVersion={version} -X {name}.gitMajor={major} -X {name}.gitMinor={minor}"


def _go(folder: Path, *arguments: str) -> str:
    return _run(str(_go_program()), *arguments, cwd=folder)


def _go_program() -> str | None:
    return shutil.which("go") or shutil.which("go", path=str(GO_PLACE))


def _run(*command: str, cwd: Path | None = None) -> str:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
    done = subprocess.run(command, cwd=cwd, env=environment, text=True, capture_output=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise BuildError(f"'{' '.join(command)}' failed with exit code {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout
