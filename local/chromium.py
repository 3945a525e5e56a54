"""The browser of this machine, for pictures and for tests of pages. Playwright's package brings none."""

from __future__ import annotations

import os
import shutil
import subprocess

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-sync",
    "--no-first-run",
)


class NothingToShow(Exception):
    """Something that a picture needs is missing; the message says what to do."""


def chromium() -> str:
    """The system's browser; as root on Debian or Ubuntu, installs it. Raises NothingToShow."""
    if not any(map(shutil.which, BROWSERS)) and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "update", "-qq"], check=False)
        subprocess.run(["apt-get", "install", "-qq", "--yes", "--no-install-recommends", "chromium"], check=False)
    for name in BROWSERS:
        if path := shutil.which(name):
            return path
    raise NothingToShow(f"There is no browser ({', '.join(BROWSERS)}): install Debian's or Ubuntu's package chromium")
