"""A real Prometheus: the one on the PATH, or Debian's package, which is fetched once and not installed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import yaml

from local.ports import new_port
from tests.integration.debian import Missing, unpacked
from tests.integration.emulators import HOST, Emulator

__all__ = ["Missing", "program", "promtool", "scraping"]

NAME: Final = "prometheus"


def program() -> Path:
    """Raises Missing."""
    if found := shutil.which(NAME):
        return Path(found)
    file = f"usr/bin/{NAME}"
    return unpacked(file, NAME) / file


def promtool() -> Path:
    """Beside Prometheus, as its package and its archive have it. Raises Missing."""
    found = program().resolve().with_name("promtool")
    if not found.exists():
        raise Missing(f"there is a prometheus on the PATH, but no promtool beside it: {found}")
    return found


@contextmanager
def scraping(folder: Path, targets: Sequence[tuple[str, dict[str, str]]], rules: Path | None = None) -> Iterator[str]:
    """Its URL. targets: HOST:PORT and the labels that its metrics get; read every second. rules: a file, evaluated as often."""
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)] if rules else [],
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
