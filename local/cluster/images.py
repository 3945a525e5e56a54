"""Container images without a registry or a builder: a root file system in a tar, packed as `docker save` packs one."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from local.cluster.build import Programs

PATH: Final = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def pack(name: str, root: Path, target: Path, command: Sequence[str]) -> Path:
    """An image of one layer. root: the tar of its files. target: the tar to write, which `ctr images import` reads."""
    digest = hashlib.sha256(root.read_bytes()).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Cmd": list(command), "Env": [PATH]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    layer = f"{digest}/layer.tar"
    with tarfile.open(target, "w") as tar:
        _add(tar, config_name, config)
        tar.add(root, layer)
        _add(tar, "manifest.json", json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": [layer]}]).encode())
    return target


def pause(programs: Programs, folder: Path, name: str) -> Path:
    """The image that holds a pod's namespaces open."""
    root = folder / "pause-root.tar"
    with tarfile.open(root, "w") as tar:
        tar.add(programs["pause"], "pause")
    return pack(name, root, folder / "pause.tar", ["/pause"])


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))
