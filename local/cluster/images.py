"""Container images without a registry: root file systems packed as `docker save` packs them, and the driver's Dockerfile.

Images are kept in nightshift's cache: Debian with Python by its name, those of our code by a digest of what goes into them.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import shutil
import tarfile
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from local.cluster.build import Programs
from local.cluster.layout import Layout
from local.cluster.processes import run
from local.environments import ROOT, cache_dir, uv_program
from local.stack.parts import DRIVER_IMAGE, STREAM_IMAGE

SUITE: Final = "bookworm"
# vLLM on a CPU needs libnuma.
PACKAGES: Final = "python3,python3-venv,ca-certificates,libnuma1"
# Root's home: no other user could read what is mounted below it.
OPEN_HOME: Final = 'chmod 755 "$1/root"'
EXCLUDED: Final = ("/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/man/*")
PYTHON: Final = f"localhost/python:{SUITE}-4"
"""Raise the number when the way of making the image changes."""
DRIVER_INPUTS: Final = ("images/driver/Dockerfile", "pyproject.toml", "hatch_build.py", "README.md", "plugins/nightshift")
DRIVER_RECIPE: Final = "2"
DRIVERS_KEPT: Final = 3
"""Of each image."""
WHEEL_PLATFORMS: Final = ("manylinux_2_28_x86_64", "manylinux2014_x86_64", "manylinux_2_17_x86_64", "any")
PATH: Final = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def pack(name: str, root: Path, target: Path, command: Sequence[str]) -> Path:
    """Packs an image of one layer. root: the tar of its files. target: the tar to write, for `ctr images import`."""
    digest = hashlib.sha256(root.read_bytes()).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Cmd": list(command), "Env": [PATH]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            # buildah builds on an image only if the history names every layer.
            "history": [{"created_by": "nightshift"}],
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


@contextmanager
def loading(layout: Layout, nodes: Sequence[str], tars: Sequence[Path]) -> Iterator[None]:
    """Loads the images into all nodes' runtimes at once, while the block runs; done when the block ends.

    Raises StartError.
    """

    def load(node: str) -> None:
        for tar in tars:
            run(Programs()["ctr"], "-a", layout.containerd(node), "-n", "k8s.io", "images", "import", tar, seconds=600)

    with ThreadPoolExecutor(max(1, len(nodes))) as pool:
        loads = [pool.submit(load, node) for node in nodes]
        yield
        for each in loads:
            each.result()


def python(say: Callable[[str], None]) -> Path:
    """Debian with Python, named `PYTHON`: for test pods, and the base of the driver's image here. Made once."""

    def make(folder: Path) -> Path:
        say(f"making the image {PYTHON}")
        root = folder / "root.tar"
        options = ["--quiet", "--variant=minbase", f"--include={PACKAGES}", f"--customize-hook={OPEN_HOME}"]
        options += [f"--dpkgopt=path-exclude={pattern}" for pattern in EXCLUDED]
        run("mmdebstrap", *options, SUITE, root, seconds=600)
        return pack(PYTHON, root, folder / "image.tar", ["python3"])

    return _kept(PYTHON.replace("/", "-").replace(":", "-"), make)


def driver(say: Callable[[str], None]) -> Path:
    """The driver's image, named `DRIVER_IMAGE`, built from this clone's images/driver/Dockerfile on `PYTHON`."""
    return _of_our_code(DRIVER_IMAGE, "driver.txt", say)


def stream(say: Callable[[str], None]) -> Path:
    """The same for a stream's subscribers, named `STREAM_IMAGE`."""
    return _of_our_code(STREAM_IMAGE, "stream.txt", say)


def _of_our_code(name: str, requirements: str, say: Callable[[str], None]) -> Path:
    """requirements: the file in requirements/ that the image installs."""
    base = python(say)
    with tempfile.TemporaryDirectory() as copy:
        # A copy, so that the image matches its name even if files are edited meanwhile.
        context = Path(copy)
        digest = hashlib.sha256(f"{PYTHON} {DRIVER_RECIPE}".encode())
        places = (*DRIVER_INPUTS, f"requirements/{requirements}")
        for file in sorted(file for place in places for file in _files(ROOT / place)):
            content, path = file.read_bytes(), file.relative_to(ROOT)
            digest.update(str(path).encode() + b"\0" + content)
            (context / path).parent.mkdir(parents=True, exist_ok=True)
            (context / path).write_bytes(content)

        def make(folder: Path) -> Path:
            say(f"building the image {name}")
            return _build(name, requirements, context, base, folder)

        kind = requirements.removesuffix(".txt")
        image = _kept(f"{kind}-{digest.hexdigest()[:16]}", make)
    # Each change of the code makes another image of half a gigabyte; keep the newest few, for clones side by side.
    for old in sorted(image.parent.glob(f"{kind}-*.tar"), key=lambda file: file.stat().st_mtime)[:-DRIVERS_KEPT]:
        old.unlink(missing_ok=True)
    return image


def _build(name: str, requirements: str, context: Path, base: Path, folder: Path) -> Path:
    wheels = _wheels(context, requirements, folder / "wheels")
    # No overlay file system, no user namespace, no daemon: this works in a container or on a small machine.
    buildah = ("buildah", "--storage-driver=vfs", "--root", folder / "root", "--runroot", folder / "run")
    target = folder / "image.tar"
    arguments = (f"BASE={PYTHON}", f"REQUIREMENTS={requirements}", "PIP_FIND_LINKS=/wheels", "PIP_NO_INDEX=1")
    run(*buildah, "pull", "--quiet", f"docker-archive:{base}", seconds=300)
    run(
        *(*buildah, "bud", "--isolation=chroot", "--pull-never", "--timestamp=0", "--quiet"),
        *(word for argument in arguments for word in ("--build-arg", argument)),
        *("--volume", f"{wheels}:/wheels:ro", "--file", context / "images/driver/Dockerfile"),
        *("--tag", name, context),
        seconds=600,
    )
    # What a node calls it when a manifest names it.
    run(*buildah, "push", "--quiet", name, f"docker-archive:{target}:docker.io/{name}", seconds=300)
    return target


def _wheels(context: Path, requirements: str, folder: Path) -> Path:
    """Everything that the image installs, fetched by this machine's pip with its settings."""
    # For the image's Python and Linux, whatever this machine's are.
    pip = [Path(uv_program()).with_name("pip"), "download", "--quiet", "--only-binary", ":all:", "--dest", folder]
    pip += ["--python-version", "3.11", *(word for name in WHEEL_PLATFORMS for word in ("--platform", name))]
    run(*pip, "--no-deps", "--requirement", context / "requirements" / requirements, seconds=600)
    backend = tomllib.loads((context / "pyproject.toml").read_text())["build-system"]["requires"]
    run(*pip, *backend, seconds=600)
    return folder


def _files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    return [file for file in place.rglob("*") if file.is_file() and "__pycache__" not in file.parts]


def _kept(name: str, make: Callable[[Path], Path]) -> Path:
    """NAME.tar in the cache; if it is missing, `make` makes it in a temporary folder."""
    home = cache_dir() / "cluster" / "images"
    home.mkdir(parents=True, exist_ok=True)
    target, folder = home / f"{name}.tar", home / "making"
    with open(home / "images.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            # Left by a killed process.
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder).replace(target)
            shutil.rmtree(folder)
    return target


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))
