"""A real Prometheus: the one on the PATH, or Debian's package, which is fetched once and not installed."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import yaml

from local.environments import cache_dir
from local.ports import new_port
from tests.integration.emulators import HOST, Emulator

NAME: Final = "prometheus"


class Missing(Exception):
    """There is no Prometheus, and it cannot be fetched here; the message says why."""


def program() -> Path:
    """Raises Missing."""
    if found := shutil.which(NAME):
        return Path(found)
    home = cache_dir() / NAME
    target = home / "usr" / "bin" / NAME
    home.mkdir(parents=True, exist_ok=True)
    with open(home.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _fetch(home)
    return target


def _fetch(home: Path) -> None:
    if not shutil.which("apt-get"):
        raise Missing("there is no prometheus on the PATH, and this is not Debian or Ubuntu, whose package could be fetched")
    done = subprocess.run(["apt-get", "download", "-qq", NAME], cwd=home, text=True, capture_output=True)
    if done.returncode != 0:
        raise Missing(f"'apt-get download {NAME}' failed: {done.stderr[-500:]}")
    for package in home.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, home], check=True)
        package.unlink()


@contextmanager
def scraping(folder: Path, targets: Sequence[tuple[str, dict[str, str]]]) -> Iterator[str]:
    """Its URL. targets: HOST:PORT and the labels that its metrics get; read every second."""
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [
            {"job_name": "tests", "static_configs": [{"targets": [place], "labels": labels} for place, labels in targets]}
        ],
    }
    folder.mkdir(parents=True)
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    url = f"http://{HOST}:{new_port()}"
    options = (f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={url[7:]}")
    server = Emulator((str(program()), *options), {}, f"{url}/-/ready", folder / "prometheus.log")
    server.start()
    try:
        yield url
    finally:
        server.stop()
