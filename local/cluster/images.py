"""Container images without a registry or a builder: a root file system in a tar, packed as `docker save` packs one."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from local.cluster.build import Programs
from local.cluster.processes import run
from local.environments import cache_dir

SUITE: Final = "bookworm"
# libnuma is vLLM's on a CPU.
PACKAGES: Final = "python3,python3-venv,ca-certificates,libnuma1"
# Root's home: what is mounted below it would be closed to any other user.
OPEN_HOME: Final = 'chmod 755 "$1/root"'
PYTHON: Final = f"localhost/python:{SUITE}-2"
"""Raise the number when the image is made otherwise."""
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


def python(say: Callable[[str], None]) -> Path:
    """Debian with Python, named `PYTHON`: what pods of tests run, and what the driver's image may be built on. Made once."""
    home = cache_dir() / "cluster" / "images"
    home.mkdir(parents=True, exist_ok=True)
    target = home / f"{PYTHON.replace('/', '-').replace(':', '-')}.tar"
    with open(target.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            say(f"making the image {PYTHON}")
            with tempfile.TemporaryDirectory(dir=home) as folder:
                root = Path(folder) / "root.tar"
                options = ("--quiet", "--variant=minbase", f"--include={PACKAGES}", f"--customize-hook={OPEN_HOME}")
                run("mmdebstrap", *options, SUITE, root, seconds=600)
                pack(PYTHON, root, Path(folder) / "image.tar", ["python3"]).replace(target)
    return target


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))
