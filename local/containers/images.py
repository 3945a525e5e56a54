"""``python3 -m local.containers.images [--bases debian]``: builds nightshift's images (`make images`).

By Docker if its daemon answers, otherwise by buildah. With ``--bases debian`` on bases that are made here, without a registry.
Exit codes: 0, 1 if an image could not be built, 2 for a wrong command line.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from local.cluster import packages
from local.cluster.images import PYTHON, python
from local.environments import ROOT
from local.stack.parts import DRIVER_IMAGE, STREAM_IMAGE

VERSION: Final = DRIVER_IMAGE.rpartition(":")[2]
CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
BASES: Final = {name: f"nightshift/base-{name}:{VERSION}" for name in ("python", "airflow", "postgres")}
"""The stand-ins, by their targets in local/containers/base/Dockerfile."""


@dataclass(frozen=True)
class Image:
    """dockerfile: below the repository's root. base: which of `BASES` stands in for its public base. arguments: NAME=VALUE."""

    name: str
    dockerfile: str
    base: str
    arguments: tuple[str, ...] = ()


IMAGES: Final = (
    Image(DRIVER_IMAGE, "images/driver/Dockerfile", "python"),
    Image(STREAM_IMAGE, "images/driver/Dockerfile", "python", ("REQUIREMENTS=stream.txt",)),
    Image(f"nightshift/airflow:{VERSION}", "images/airflow/Dockerfile", "airflow"),
    Image(f"nightshift/server-cpu:{VERSION}", "images/server-cpu/Dockerfile", "python"),
    Image(f"nightshift/local:{VERSION}", "local/Dockerfile", "python"),
)
"""images/server is not among them: it is vLLM's public image under another name."""


class BuildError(Exception):
    """An image was not built; the message says which, and what to do."""


class Builder:
    """Docker or buildah. Raises BuildError if there is neither."""

    def __init__(self) -> None:
        docker = shutil.which("docker")
        self._archive = ""
        if docker and subprocess.run([docker, "info"], capture_output=True).returncode == 0:
            self._build: tuple[str, ...] = (docker, "build", "--network", "host")
            self._load: tuple[str, ...] = (docker, "load", "--quiet", "--input")
        elif buildah := shutil.which("buildah"):
            self._build = (buildah, "bud", "--isolation", "chroot", "--layers")
            self._load = (buildah, "pull", "--quiet")
            self._archive = "docker-archive:"
        else:
            raise BuildError("No Docker daemon answers, and there is no buildah. Start Docker, or install buildah.")

    def load(self, tar: Path) -> None:
        self._run(*self._load, f"{self._archive}{tar}")

    def build(self, name: str, context: Path, *options: str) -> None:
        print(f"[images] {name}", flush=True)
        self._run(*self._build, *options, "--tag", name, str(context))

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise BuildError(f"'{' '.join(command)}' failed with exit code {done.returncode}; its message is above.")


def make_bases(builder: Builder) -> None:
    """Builds `BASES`. Raises BuildError, and packages.Unsupported where Debian cannot be made."""
    packages.ensure(print)
    builder.load(python(print))
    with tempfile.TemporaryDirectory() as folder:
        context = Path(shutil.copytree(ROOT / "local" / "containers" / "base", Path(folder) / "base"))
        shutil.copy(CERTIFICATES, context)
        for target, name in BASES.items():
            builder.build(name, context, "--build-arg", f"DEBIAN={PYTHON}", "--target", target)


def make_images(builder: Builder, *, own_bases: bool) -> None:
    """Builds `IMAGES`. own_bases: on `BASES`, not on the Dockerfiles' public ones. Raises BuildError."""
    for image in IMAGES:
        arguments = (*image.arguments, *((f"BASE={BASES[image.base]}",) if own_bases else ()))
        options = (word for argument in arguments for word in ("--build-arg", argument))
        builder.build(image.name, ROOT, "--file", str(ROOT / image.dockerfile), *options)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m local.containers.images", description="Builds nightshift's images.")
    parser.add_argument("--bases", choices=("public", "debian"), default="public", help="default: %(default)s")
    options = parser.parse_args(arguments)
    try:
        builder = Builder()
        if options.bases == "debian":
            make_bases(builder)
        make_images(builder, own_bases=options.bases == "debian")
    except (BuildError, packages.Unsupported) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
